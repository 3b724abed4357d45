#include "server/fusectl/table.h"

#include <gtest/gtest.h>

namespace fuseboard::fusectl {
namespace {

TEST(TableTest, AlignsColumnsAndEndsLinesWithoutSpaces) {
  Table table({{"NAME"}, {"COUNT", Align::kRight}, {"WHY"}});
  table.AddRow({"rms_norm", "7", "because"});
  table.AddRow({"x", "12345678", "y"});
  EXPECT_EQ(table.ToString(),
            "NAME         COUNT  WHY\n"
            "rms_norm         7  because\n"
            "x         12345678  y\n");
}

TEST(TableTest, WhatIsNotKnownIsADashNotAZero) {
  Table table({{"A"}, {"B", Align::kRight}});
  table.AddRow({"", ""});
  EXPECT_EQ(table.ToString(), "A  B\n-  -\n");
}

TEST(TableTest, CharactersCountNotBytes) {
  Table table({{"A"}, {"B"}});
  table.AddRow({"éé", "x"});
  table.AddRow({"abc", "x"});
  EXPECT_EQ(table.ToString(), "A    B\néé   x\nabc  x\n");
}

TEST(TableTest, TextOfOthersCannotMoveTheCursor) {
  Table table({{"A"}});
  table.AddRow({"\x1b[2J\n"});
  EXPECT_EQ(table.ToString(), "A\n\\x1b[2J\\n\n");
}

}  // namespace
}  // namespace fuseboard::fusectl
