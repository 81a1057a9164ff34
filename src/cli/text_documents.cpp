#include "cli/text_documents.h"

#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "io/file.h"
#include "text/tokenizer.h"

namespace onecard::cli {

std::vector<std::vector<int32_t>> read_documents(const std::string& flag, const std::string& path,
                                                 const std::string& model_dir, int64_t limit) {
  constexpr int64_t kMaxFileBytes = 256 << 20;
  const auto tokenizer = text::Tokenizer::load(model_dir + "/tokenizer.json");
  std::istringstream lines(io::read_text_file(path, kMaxFileBytes));
  std::vector<std::vector<int32_t>> documents;
  std::string line;
  while (limit > 0 && std::getline(lines, line)) {
    std::vector<int32_t> tokens = tokenizer.encode(json::parse(line).as_string());
    if (tokens.empty()) continue;
    if (int64_t(tokens.size()) > limit) tokens.resize(size_t(limit));
    limit -= int64_t(tokens.size());
    documents.push_back(std::move(tokens));
  }
  if (documents.empty()) throw Error(ErrorCode::kInvalidArgument, flag + ": no text in the file");
  return documents;
}

}  // namespace onecard::cli
