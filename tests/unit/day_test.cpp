#include "core/day.h"

#include <gtest/gtest.h>

namespace patchbench {
namespace {

TEST(Day, IsYearMonthDay) {
  EXPECT_TRUE(is_day("2026-01-31"));
  for (const char* text : {"", "2026-1-31", "2026-01-311", "2026/01/31", "2026-01-3a", "20260131"})
    EXPECT_FALSE(is_day(text)) << text;
}

TEST(Time, IsADayAndASecondInUtc) {
  EXPECT_TRUE(is_time("2026-01-31T12:00:00Z"));
  for (const char* text : {"", "2026-01-31", "2026-01-31T12:00:00", "2026-01-31 12:00:00Z",
                           "2026-01-31T12:00:00+", "2026-01-31T12:0a:00Z"})
    EXPECT_FALSE(is_time(text)) << text;
}

}  // namespace
}  // namespace patchbench
