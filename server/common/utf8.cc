#include "server/common/utf8.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace fuseboard {
namespace {

// Bytes of the character that `text` begins with; 0 if it begins with none.
// REQUIRES: !text.empty().
size_t CharacterBytes(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  // 0xC0 and 0xC1 begin overlong forms only, 0xF5 and above what lies beyond U+10FFFF.
  if (first < 0xC2 || first > 0xF4) return 0;
  const size_t count = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (text.size() < count) return 0;
  for (size_t i = 1; i < count; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const uint8_t second = byte(1);
  const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool surrogate = first == 0xED && second > 0x9F;
  const bool too_large = first == 0xF4 && second > 0x8F;
  return overlong || surrogate || too_large ? 0 : count;
}

}  // namespace

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t count = CharacterBytes(text);
    if (count == 0) return false;
    text.remove_prefix(count);
  }
  return true;
}

std::string ToUtf8(absl::string_view text) {
  std::string utf8;
  while (!text.empty()) {
    const size_t count = CharacterBytes(text);
    if (count == 0) {
      absl::StrAppend(&utf8, absl::CHexEscape(text.substr(0, 1)));
      text.remove_prefix(1);
    } else {
      absl::StrAppend(&utf8, text.substr(0, count));
      text.remove_prefix(count);
    }
  }
  return utf8;
}

}  // namespace fuseboard
