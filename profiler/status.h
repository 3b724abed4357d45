// Status and StatusOr, with the names and meaning of absl's, for a library that cannot contain
// Abseil: Debian 12 ships Abseil's archives without -fPIC (R_X86_64_TPOFF32 in
// libabsl_cordz_functions.a), its shared libraries are not where training runs, and a GPU host may
// have neither. Only what is used here.

#ifndef PROFILER_STATUS_H_
#define PROFILER_STATUS_H_

#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace fuseboard::profiler {

// As absl::StatusCode, less what nothing here returns.
enum class StatusCode {
  kOk,
  kInvalidArgument,
  kNotFound,
  kResourceExhausted,
  kFailedPrecondition,
  kInternal,
  kUnavailable,
  kDataLoss,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  // NOLINTBEGIN(readability-identifier-naming): absl's names.
  [[nodiscard]] bool ok() const { return code_ == StatusCode::kOk; }
  [[nodiscard]] StatusCode code() const { return code_; }
  [[nodiscard]] std::string_view message() const { return message_; }
  // NOLINTEND(readability-identifier-naming)

  // Takes `other` over if this is still OK: the first error stays.
  void Update(const Status& other) {
    if (ok()) *this = other;
  }
  // Says that nobody is left to tell.
  void IgnoreError() const {}

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() { return {}; }
inline Status InvalidArgumentError(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}
inline Status NotFoundError(std::string message) {
  return {StatusCode::kNotFound, std::move(message)};
}
inline Status ResourceExhaustedError(std::string message) {
  return {StatusCode::kResourceExhausted, std::move(message)};
}
inline Status FailedPreconditionError(std::string message) {
  return {StatusCode::kFailedPrecondition, std::move(message)};
}
inline Status InternalError(std::string message) {
  return {StatusCode::kInternal, std::move(message)};
}
inline Status UnavailableError(std::string message) {
  return {StatusCode::kUnavailable, std::move(message)};
}
inline Status DataLossError(std::string message) {
  return {StatusCode::kDataLoss, std::move(message)};
}

template <typename T>
class [[nodiscard]] StatusOr {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): as absl's, so that both can be returned.
  StatusOr(Status status) : value_(std::move(status)) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  StatusOr(T value) : value_(std::move(value)) {}

  // NOLINTBEGIN(readability-identifier-naming): absl's names.
  [[nodiscard]] bool ok() const { return std::holds_alternative<T>(value_); }
  [[nodiscard]] Status status() const { return ok() ? Status() : std::get<Status>(value_); }
  // NOLINTEND(readability-identifier-naming)
  // REQUIRES: ok().
  const T& operator*() const { return std::get<T>(value_); }
  const T* operator->() const { return &std::get<T>(value_); }

 private:
  std::variant<Status, T> value_;
};

// The parts as one text.
template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

}  // namespace fuseboard::profiler

#endif  // PROFILER_STATUS_H_
