#include "server/common/utf8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace fuseboard {
namespace {

TEST(Utf8Test, CharactersOfOneToFourBytesAreUtf8AndStayAsTheyAre) {
  // The first and the last of each length, and the neighbours of the surrogates.
  for (const char* text :
       {"", "plain\n", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
        "\xee\x80\x80", "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsUtf8(text)) << text;
    EXPECT_EQ(ToUtf8(text), text);
  }
  EXPECT_TRUE(IsUtf8(std::string(1, '\0')));
}

TEST(Utf8Test, BytesThatAreNoCharacterAreNotUtf8AndAreWrittenAsHex) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\xff", R"(\xff)"},
      {"\x80", R"(\x80)"},  // A continuation without a beginning.
      {"\xc3", R"(\xc3)"},  // Cut short.
      {"\xe2\x82", R"(\xe2\x82)"},
      {"\xf0\x9f\x98", R"(\xf0\x9f\x98)"},
      {"\xc0\xaf", R"(\xc0\xaf)"},  // Overlong.
      {"\xc1\xbf", R"(\xc1\xbf)"},
      {"\xe0\x9f\xbf", R"(\xe0\x9f\xbf)"},
      {"\xf0\x8f\xbf\xbf", R"(\xf0\x8f\xbf\xbf)"},
      {"\xed\xa0\x80", R"(\xed\xa0\x80)"},          // A surrogate.
      {"\xf4\x90\x80\x80", R"(\xf4\x90\x80\x80)"},  // Beyond U+10FFFF.
      {"\xc3 \xc3\xbc", "\\xc3 \xc3\xbc"},          // Only what is broken.
      {"a\xff\"", "a\\xff\""},
  };
  for (const auto& [bytes, shown] : cases) {
    EXPECT_FALSE(IsUtf8(bytes)) << shown;
    EXPECT_EQ(ToUtf8(bytes), shown);
    EXPECT_TRUE(IsUtf8(ToUtf8(bytes))) << shown;
  }
}

}  // namespace
}  // namespace fuseboard
