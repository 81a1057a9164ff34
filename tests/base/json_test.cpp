#include "base/json.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace onecard::json {
namespace {

TEST(Json, KeepsOrderAndLexemes) {
  const std::string text =
      R"({"b":1,"a":[100000.0,1e3,123456789012345678901234567890,-0.0],"c":"x\u00e9\n"})";
  const Value value = parse(text);
  EXPECT_EQ(
      dump(value),
      "{\"b\":1,\"a\":[100000.0,1e3,123456789012345678901234567890,-0.0],\"c\":\"x\xc3\xa9\\n\"}");
  EXPECT_TRUE(value.find("a")->items()[2].is_integer());
  EXPECT_FALSE(value.find("a")->items()[2].as_int64().has_value());
  EXPECT_FALSE(value.find("a")->items()[0].is_integer());
}

TEST(Json, RepeatedKeyKeepsFirstPlaceAndLastValue) {
  EXPECT_EQ(dump(parse(R"({"a":1,"b":2,"a":3})")), R"({"a":3,"b":2})");
  std::string many = "{";
  for (int i = 0; i < 40; ++i)
    many += "\"k" + std::to_string(i % 20) + "\":" + std::to_string(i) + ",";
  many.back() = '}';
  const Value value = parse(many);
  ASSERT_EQ(value.members().size(), 20u);
  EXPECT_EQ(value.members()[19].first, "k19");
  EXPECT_EQ(value.find("k19")->as_int64(), 39);
  EXPECT_THROW(parse(many, {.duplicate_keys = DuplicateKeys::kReject}), Error);
}

TEST(Json, RefusesWhatIsNotOneValue) {
  for (const char* text :
       {"", "{", "[1,]", "1 2", "nul", "\"\xff\"", "\xef\xbb\xbf{}", "[NaN]", "'a'"})
    EXPECT_THROW(parse(text), Error) << text;
}

TEST(Json, BoundsDepth) {
  const std::string deep(100000, '[');
  EXPECT_THROW(parse(deep), Error);
  EXPECT_NO_THROW(parse(std::string(100, '[') + std::string(100, ']')));
}

TEST(Json, NumbersBeyondDouble) {
  EXPECT_THROW(parse("1e999"), Error);
  EXPECT_EQ(parse("1e-999").as_double(), 0.0);
  EXPECT_THROW(parse("1" + std::string(400, '0')), Error);
  EXPECT_EQ(parse("-1" + std::string(300, '0')).as_double(), -1e300);
}

TEST(Json, ErrorsNameTheByte) {
  try {
    parse(R"({"a": tru})");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("byte 10"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace onecard::json
