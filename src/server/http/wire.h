// The text of HTTP/1.1 answers, and request ids.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace onecard::server::http {

/// "HTTP/1.1 404 Not Found\r\n"
std::string status_line(int status);
/// "Name: value\r\n"; control characters of the value become spaces, so that it stays one header.
void append_header(std::string& out, std::string_view name, std::string_view value);
/// The line in front of a chunk: its size in hexadecimal.
void append_chunk_size(std::string& out, size_t num_bytes);

std::string lower_case(std::string_view text);

/// 1 to 128 printable ASCII characters without spaces: what is logged and sent back.
bool is_request_id(std::string_view text);

}  // namespace onecard::server::http
