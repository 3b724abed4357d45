// UTF-8, which every text in a message must be: a receiver refuses a whole message because of one
// byte that is not. Whatever comes from files or file names is checked or made so. Pure.

#ifndef SERVER_COMMON_UTF8_H_
#define SERVER_COMMON_UTF8_H_

#include <string>

#include "absl/strings/string_view.h"

namespace fuseboard {

// Whether all of `text` is UTF-8: no overlong form, no surrogate, nothing beyond U+10FFFF.
bool IsUtf8(absl::string_view text);

// `text` with each byte that is no part of a character written as "\xff".
std::string ToUtf8(absl::string_view text);

}  // namespace fuseboard

#endif  // SERVER_COMMON_UTF8_H_
