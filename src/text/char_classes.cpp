#include "text/char_classes.h"

#include <unicode/uchar.h>
#include <unicode/uvernum.h>

#include <algorithm>

namespace onecard::text {
namespace {

static_assert(U_ICU_VERSION_MAJOR_NUM >= 72,
              "the character classes have to be Unicode 15 or newer");

uint8_t class_of(UCharCategory category) {
  const uint32_t mask = U_MASK(category);
  if (mask & U_GC_L_MASK) return kLetter;
  if (mask & U_GC_M_MASK) return kMark;
  if (mask & U_GC_N_MASK) return kNumber;
  if (mask & U_GC_P_MASK) return kPunctuation;
  if (mask & U_GC_S_MASK) return kSymbol;
  return 0;
}

UBool U_CALLCONV fill_range(const void* context, UChar32 start, UChar32 limit,
                            UCharCategory category) {
  auto& classes = *static_cast<std::vector<uint8_t>*>(const_cast<void*>(context));
  std::fill(classes.begin() + start, classes.begin() + limit, class_of(category));
  return true;
}

std::vector<uint8_t> build() {
  std::vector<uint8_t> classes(UCHAR_MAX_VALUE + 1);
  u_enumCharTypes(fill_range, &classes);
  // All of White_Space lies below U+3001.
  for (UChar32 c = 0; c <= 0x3000; ++c)
    if (u_isUWhiteSpace(c)) classes[c] |= kSpace;
  for (UChar32 c = 0x3040; c <= 0x30FF; ++c) classes[c] |= kCjk;
  for (UChar32 c = 0x4E00; c <= 0x9FA5; ++c) classes[c] |= kCjk;
  return classes;
}

}  // namespace

const std::vector<uint8_t>& char_classes() {
  static const std::vector<uint8_t> classes = build();
  return classes;
}

}  // namespace onecard::text
