// FB_RETURN_IF_ERROR and FB_ASSIGN_OR_RETURN.
//
// Same meaning as in absl/status/status_macros.h, which the packaged absl (20220623) lacks. Delete
// this file and rename the uses when absl is upgraded.

#ifndef SERVER_COMMON_STATUS_MACROS_H_
#define SERVER_COMMON_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define FB_RETURN_IF_ERROR(expr)                                            \
  do {                                                                      \
    if (absl::Status fb_status = (expr); !fb_status.ok()) return fb_status; \
  } while (false)

#define FB_STATUS_CONCAT_INNER(a, b) a##b
#define FB_STATUS_CONCAT(a, b) FB_STATUS_CONCAT_INNER(a, b)

// Expands to several statements: needs its own braces inside an `if`.
// NOLINTBEGIN(bugprone-macro-parentheses): `lhs` may be a declaration.
#define FB_ASSIGN_OR_RETURN(lhs, expr) \
  FB_ASSIGN_OR_RETURN_IMPL(FB_STATUS_CONCAT(fb_statusor_, __LINE__), lhs, expr)
#define FB_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = *std::move(tmp)
// NOLINTEND(bugprone-macro-parentheses)

#endif  // SERVER_COMMON_STATUS_MACROS_H_
