// IsOk(), StatusIs(code) and StatusIs(code, message matcher), named as in
// absl/status/status_matchers.h so that they can be dropped for absl's own.

#ifndef TESTS_TESTING_STATUS_MATCHERS_H_
#define TESTS_TESTING_STATUS_MATCHERS_H_

#include <gmock/gmock.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fuseboard::testing {

// NOLINTNEXTLINE(bugprone-return-const-ref-from-parameter): the matched status outlives the match.
inline const absl::Status& GetStatus(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& GetStatus(const absl::StatusOr<T>& status) {
  return status.status();
}

MATCHER(IsOk, "is OK") {
  *result_listener << GetStatus(arg);
  return GetStatus(arg).ok();
}

MATCHER_P(StatusIs, code, absl::StatusCodeToString(code)) {
  *result_listener << GetStatus(arg);
  return GetStatus(arg).code() == code;
}

MATCHER_P2(StatusIs, code, message, absl::StatusCodeToString(code)) {
  *result_listener << GetStatus(arg);
  return GetStatus(arg).code() == code &&
         ::testing::Matches(message)(std::string(GetStatus(arg).message()));
}

}  // namespace fuseboard::testing

#endif  // TESTS_TESTING_STATUS_MATCHERS_H_
