#include "client/http.h"

#include <curl/curl.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace onecard::client {
namespace {

struct Transfer {
  CURL* curl = nullptr;
  const std::function<bool(std::string_view)>* on_bytes = nullptr;
  const std::function<bool()>* keep_going = nullptr;
  std::string body;
  bool ended_by_us = false;
};

// Curl's own words for all failed connections are the same: why it failed is the system's to say.
std::string failure_text(CURL* curl, CURLcode code) {
  long system_error = 0;
  if (code == CURLE_COULDNT_CONNECT) curl_easy_getinfo(curl, CURLINFO_OS_ERRNO, &system_error);
  switch (system_error) {
    case 0:
      return curl_easy_strerror(code);
    case ECONNREFUSED:
      return "no server listens there";
    case ENETUNREACH:
    case EADDRNOTAVAIL:
      return "no network leads there; is the interface up (for 127.0.0.1: ip link set lo up)?";
    default:
      return "cannot connect: " + std::generic_category().message(int(system_error));
  }
}

size_t receive(char* data, size_t size, size_t count, void* context) {
  auto& transfer = *static_cast<Transfer*>(context);
  const std::string_view bytes(data, size * count);
  long status = 0;
  curl_easy_getinfo(transfer.curl, CURLINFO_RESPONSE_CODE, &status);
  if (transfer.on_bytes == nullptr || status != 200) {
    transfer.body += bytes;
    return bytes.size();
  }
  if ((*transfer.on_bytes)(bytes)) return bytes.size();
  transfer.ended_by_us = true;
  return CURL_WRITEFUNC_ERROR;
}

int progress(void* context, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  auto& transfer = *static_cast<Transfer*>(context);
  if (transfer.keep_going == nullptr || (*transfer.keep_going)()) return 0;
  transfer.ended_by_us = true;
  return 1;
}

struct CurlDeleter {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
};
struct ListDeleter {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using HeaderList = std::unique_ptr<curl_slist, ListDeleter>;

void add_header(HeaderList& headers, const std::string& line) {
  curl_slist* const longer = curl_slist_append(headers.get(), line.c_str());
  require(longer != nullptr, ErrorCode::kResourceExhausted, "http client: out of memory");
  static_cast<void>(headers.release());
  headers.reset(longer);
}

}  // namespace

struct Http::State {
  std::string base_url;
  std::string api_key;
  double timeout_seconds = 0;
  std::unique_ptr<CURL, CurlDeleter> curl{curl_easy_init()};

  Answer perform(const std::string& path, const std::string* body, Transfer transfer);
};

Http::Answer Http::State::perform(const std::string& path, const std::string* body,
                                  Transfer transfer) {
  CURL* const handle = curl.get();
  require(handle != nullptr, ErrorCode::kResourceExhausted, "http client: curl does not start");
  curl_easy_reset(handle);  // options alone; the connection stays
  const std::string url = base_url + path;
  HeaderList headers;
  add_header(headers, "Content-Type: application/json");
  add_header(headers, "Expect:");
  if (!api_key.empty()) add_header(headers, "Authorization: Bearer " + api_key);
  transfer.curl = handle;
  curl_easy_setopt(handle, CURLOPT_URL, url.c_str());
  curl_easy_setopt(handle, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT, 10L);
  curl_easy_setopt(handle, CURLOPT_TIMEOUT_MS, long(timeout_seconds * 1000));
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, &receive);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, &progress);
  curl_easy_setopt(handle, CURLOPT_XFERINFODATA, &transfer);
  curl_easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
  if (body != nullptr) {
    curl_easy_setopt(handle, CURLOPT_POSTFIELDS, body->data());
    curl_easy_setopt(handle, CURLOPT_POSTFIELDSIZE_LARGE, curl_off_t(body->size()));
  }
  const CURLcode code = curl_easy_perform(handle);
  if (code != CURLE_OK && !transfer.ended_by_us)
    throw Error(ErrorCode::kIo, url + ": " + failure_text(handle, code));
  long status = 0;
  curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
  return {int(status), std::move(transfer.body)};
}

Http::Http(std::string base_url, std::string api_key, double timeout_seconds)
    : state_(std::make_unique<State>()) {
  while (base_url.ends_with('/')) base_url.pop_back();
  if (base_url.ends_with("/v1")) base_url.resize(base_url.size() - 3);
  if (!base_url.starts_with("http://") && !base_url.starts_with("https://"))
    throw Error(ErrorCode::kInvalidArgument,
                "url: has to begin with http:// or https://, not \"" + base_url + "\"");
  state_->base_url = std::move(base_url);
  state_->api_key = std::move(api_key);
  state_->timeout_seconds = timeout_seconds;
}

Http::~Http() = default;
Http::Http(Http&&) noexcept = default;
Http& Http::operator=(Http&&) noexcept = default;

Http::Answer Http::get(const std::string& path) { return state_->perform(path, nullptr, {}); }

Http::Answer Http::post(const std::string& path, const std::string& json_body) {
  return state_->perform(path, &json_body, {});
}

Http::Answer Http::post_stream(const std::string& path, const std::string& json_body,
                               const std::function<bool(std::string_view)>& on_bytes,
                               const std::function<bool()>& keep_going) {
  Transfer transfer;
  transfer.on_bytes = &on_bytes;
  transfer.keep_going = &keep_going;
  return state_->perform(path, &json_body, std::move(transfer));
}

}  // namespace onecard::client
