#include "base/log.h"

#include <gtest/gtest.h>

namespace onecard::log {
namespace {

TEST(Log, AValueNeverBreaksItsLine) {
  EXPECT_EQ(format(Level::kInfo, "load", {{"file", "a b"}, {"n", "3"}}),
            "level=info event=load file=\"a b\" n=3");
  EXPECT_EQ(format(Level::kWarn, "x", {{"v", "a\nb\"c\x01"}}),
            "level=warn event=x v=\"a\\nb\\\"c\\x01\"");
  EXPECT_EQ(format(Level::kError, "x", {{"v", ""}}), "level=error event=x v=\"\"");
}

}  // namespace
}  // namespace onecard::log
