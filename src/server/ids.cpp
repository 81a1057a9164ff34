#include "server/ids.h"

#include <random>

namespace onecard::server {

std::string random_id(std::string_view prefix) {
  constexpr std::string_view kAlphabet =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  constexpr int kLength = 24;
  thread_local std::random_device device;
  std::uniform_int_distribution<size_t> letter(0, kAlphabet.size() - 1);
  std::string id(prefix);
  for (int i = 0; i < kLength; ++i) id += kAlphabet[letter(device)];
  return id;
}

}  // namespace onecard::server
