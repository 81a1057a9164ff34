#include "io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace onecard::io {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A file made by hand: length, JSON as given, `data_bytes` of data.
std::string make_file(const std::string& json, size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += char(json.size() >> (8 * i) & 0xff);
  return file + json + std::string(data_bytes, 'x');
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)), int64_t(file.size()), "f");
}

std::string error_of(const std::string& file, ErrorCode code = ErrorCode::kDataCorrupt) {
  try {
    parse(file);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "no error";
}

std::string one_tensor(const std::string& dtype, const std::string& shape,
                       const std::string& offsets) {
  return "{\"a\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
         "}}";
}

TEST(Safetensors, ReadsTensorsInFileOrder) {
  const std::string json = R"({"__metadata__":{"format":"pt"},)"
                           R"("b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},)"
                           R"("scalar":{"dtype":"I32","shape":[],"data_offsets":[0,4]},)"
                           R"("none":{"dtype":"U8","shape":[0,7],"data_offsets":[28,28]},)"
                           R"("c":{"dtype":"I8","shape":[1],"data_offsets":[28,29]}})";
  const SafetensorsHeader header = parse(make_file(json, 29));
  const auto data_begin = int64_t(8 + json.size());
  EXPECT_EQ(header.data_begin_bytes, data_begin);
  ASSERT_EQ(header.tensors.size(), 4u);
  EXPECT_EQ(header.tensors[0].name, "scalar");
  EXPECT_TRUE(header.tensors[0].shape.empty());
  EXPECT_EQ(header.tensors[1].name, "b");
  EXPECT_EQ(header.tensors[1].dtype, DType::kF32);
  EXPECT_THAT(header.tensors[1].shape, ElementsAre(2, 3));
  EXPECT_EQ(header.tensors[1].begin_bytes, data_begin + 4);
  EXPECT_EQ(header.tensors[1].end_bytes, data_begin + 28);
  EXPECT_EQ(header.tensors[2].name, "none");
  EXPECT_EQ(header.tensors[3].name, "c");
  EXPECT_THAT(header.metadata, ElementsAre(std::pair<std::string, std::string>("format", "pt")));
}

TEST(Safetensors, KnowsEveryDtypeOfTheFormats) {
  const std::pair<const char*, int> sizes[] = {
      {"BOOL", 1}, {"U8", 1},      {"I8", 1},      {"I16", 2},    {"U16", 2},  {"I32", 4},
      {"U32", 4},  {"I64", 8},     {"U64", 8},     {"F16", 2},    {"BF16", 2}, {"F32", 4},
      {"F64", 8},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}};
  for (const auto& [name, size] : sizes) {
    const std::string end = std::to_string(3 * size);
    const SafetensorsHeader header =
        parse(make_file(one_tensor(name, "[3]", "[0," + end + "]"), size_t(3 * size)));
    EXPECT_STREQ(dtype_name(header.tensors.at(0).dtype), name);
  }
  EXPECT_THAT(error_of(make_file(one_tensor("F4", "[2]", "[0,1]"), 1), ErrorCode::kUnsupported),
              HasSubstr("tensor \"a\": expected a dtype that is known here, found \"F4\""));
}

// The four of robustness R5, as the header sees them.
TEST(Safetensors, RefusesTruncatedExtendedAndZeroedFiles) {
  const std::string json = R"({"a":{"dtype":"U8","shape":[100],"data_offsets":[0,100]},)"
                           R"("b":{"dtype":"U8","shape":[50],"data_offsets":[100,150]}})";
  std::string file = make_file(json, 150);
  const std::string size = std::to_string(file.size());
  EXPECT_THAT(error_of(file.substr(0, file.size() - 1)),
              AllOf(HasSubstr("f: tensor \"b\": is cut off"),
                    HasSubstr("expected a file of " + size + " bytes, found " +
                              std::to_string(file.size() - 1))));
  EXPECT_THAT(error_of(file.substr(0, file.size() - 51)), HasSubstr("tensor \"a\": is cut off"));
  EXPECT_THAT(error_of(file + "x"),
              AllOf(HasSubstr("tensor \"b\": is the last one, but 1 bytes follow"),
                    HasSubstr("expected a file of " + size + " bytes")));
  EXPECT_THAT(error_of(std::string(4096, '\0') + file), HasSubstr("found 0"));
}

TEST(Safetensors, RefusesLengthsThatDoNotFit) {
  EXPECT_THAT(error_of(""), HasSubstr("found 0"));
  EXPECT_THAT(error_of("1234567"), HasSubstr("found 7"));
  EXPECT_THAT(error_of(std::string(8, '\xff') + "{}"), HasSubstr("no safetensors header length"));
  std::string one_more = make_file("{}", 0);
  one_more[0] = 3;
  EXPECT_THAT(error_of(one_more), HasSubstr("expected 2 to 2"));
  // A length beyond the limit is refused although the file claims to be that large.
  std::string huge = make_file("{}", 0);
  huge[4] = 1;  // 2^32 + 2
  EXPECT_THROW(safetensors_header_bytes(std::as_bytes(std::span(huge)), int64_t{1} << 40, "f"),
               Error);
}

TEST(Safetensors, RefusesOverlapsGapsAndSizesThatDisagree) {
  const auto two = [](const char* a, const char* b, size_t data_bytes) {
    return error_of(make_file(std::string(R"({"a":{"dtype":"U8","shape":[10],"data_offsets":)") +
                                  a + R"(},"b":{"dtype":"U8","shape":[10],"data_offsets":)" + b +
                                  "}}",
                              data_bytes));
  };
  EXPECT_THAT(two("[0,10]", "[9,19]", 19), HasSubstr("tensor \"b\": overlaps \"a\""));
  EXPECT_THAT(two("[0,10]", "[0,10]", 10), HasSubstr("overlaps"));
  EXPECT_THAT(two("[11,21]", "[0,10]", 21), HasSubstr("tensor \"a\": leaves a gap after \"b\""));
  EXPECT_THAT(two("[1,11]", "[11,21]", 21), HasSubstr("leaves a gap after the header"));
  EXPECT_THAT(two("[0,10]", "[10,19]", 19),
              HasSubstr("expected 10 bytes for U8 [10], found data_offsets [10, 19] of 9 bytes"));
}

TEST(Safetensors, RefusesNumbersThatOverflow) {
  for (const char* shape :
       {"[9223372036854775807,2]", "[4294967296,4294967296]", "[9223372036854775808]", "[-1]",
        "[1.0]", "[1e3]", "[\"1\"]", "[true]", "1", "null", "[1,1,1,1,1,1,1,1,1]"})
    EXPECT_NE(error_of(make_file(one_tensor("F32", shape, "[0,4]"), 4)), "no error") << shape;
  // A product that overflows although a later zero makes it small again.
  EXPECT_THAT(error_of(make_file(one_tensor("U8", "[9223372036854775807,3,0]", "[0,0]"), 0)),
              HasSubstr("overflows"));
  for (const char* offsets :
       {"[4,0]", "[0]", "[0,2,4]", "[0,9223372036854775807]", "[-4,0]", "{}", "[0,4.0]"})
    EXPECT_NE(error_of(make_file(one_tensor("U8", "[4]", offsets), 4)), "no error") << offsets;
}

TEST(Safetensors, RefusesHeadersOfAnotherForm) {
  EXPECT_THAT(error_of(make_file("[]", 0)), HasSubstr("to be an object"));
  EXPECT_THAT(error_of(make_file("{\"a\":1}", 0)), HasSubstr("tensor \"a\": expected an object"));
  EXPECT_THAT(error_of(make_file("{\"a\":{}}", 0)), HasSubstr("expected a member \"dtype\""));
  EXPECT_THAT(error_of(make_file(R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1)),
              HasSubstr("name"));
  EXPECT_THAT(error_of(make_file(R"({"__metadata__":{"a":1}})", 0)), HasSubstr("__metadata__"));
  EXPECT_THAT(error_of(make_file("{\"a\":", 0)), HasSubstr("header is broken"));
  EXPECT_THAT(error_of(make_file(R"({"a":{"shape":[[1]]}})", 0)), HasSubstr("nested deeper"));
  const std::string entry = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_THAT(error_of(make_file("{\"a\":" + entry + ",\"a\":" + entry + "}", 1)),
              HasSubstr("appears twice"));
}

TEST(Safetensors, MessagesEscapeNames) {
  EXPECT_THAT(error_of(make_file("{\"a\\n\\u0001\":1}", 0)), HasSubstr(R"("a\n\u0001")"));
}

// Any bit of a header may flip: it parses to something consistent or is refused, and what parses
// fills the file exactly.
TEST(Safetensors, FlippedBitsNeverGoUnnoticedOutsideNames) {
  const std::string json = R"({"alpha":{"dtype":"F32","shape":[5],"data_offsets":[0,20]},)"
                           R"("beta":{"dtype":"F32","shape":[1],"data_offsets":[20,24]}})";
  const std::string good = make_file(json, 24);
  for (size_t bit = 0; bit < 8 * (8 + json.size()); ++bit) {
    std::string bad = good;
    bad[bit / 8] = char(bad[bit / 8] ^ (1 << bit % 8));
    try {
      int64_t total = 0;
      const SafetensorsHeader header = parse(bad);
      for (const TensorInfo& tensor : header.tensors) total += tensor.size_bytes();
      EXPECT_EQ(header.data_begin_bytes + total, int64_t(bad.size())) << bit;
    } catch (const Error&) {
      continue;
    }
  }
}

}  // namespace
}  // namespace onecard::io
