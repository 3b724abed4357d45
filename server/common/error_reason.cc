#include "server/common/error_reason.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace fuseboard {

absl::Status WithReason(
    absl::Status status, absl::string_view reason,
    std::initializer_list<std::pair<absl::string_view, absl::string_view>> metadata) {
  google::rpc::ErrorInfo error_info;
  error_info.set_reason(std::string(reason));
  error_info.set_domain("fuseboard.dev");
  for (const auto& [key, value] : metadata) {
    (*error_info.mutable_metadata())[std::string(key)] = std::string(value);
  }
  status.SetPayload(kErrorInfoTypeUrl, absl::Cord(error_info.SerializeAsString()));
  return status;
}

absl::Status BadRequest(absl::string_view field, absl::string_view message) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat(field, ": ", message)), kBadRequest,
                    {{"field", field}});
}

absl::Status RevisionMismatch(int64_t expected, int64_t actual) {
  const std::string want = absl::StrCat(expected);
  const std::string have = absl::StrCat(actual);
  return WithReason(absl::AbortedError(absl::StrCat("expected revision ", want,
                                                    ", but the configuration is at ", have)),
                    kRevisionMismatch, {{"expected_revision", want}, {"revision", have}});
}

std::optional<google::rpc::ErrorInfo> ErrorInfoOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kErrorInfoTypeUrl);
  if (!payload.has_value()) return std::nullopt;
  google::rpc::ErrorInfo error_info;
  if (!error_info.ParseFromString(std::string(*payload))) return std::nullopt;
  return error_info;
}

std::string ReasonOf(const absl::Status& status) {
  const auto error_info = ErrorInfoOf(status);
  return error_info.has_value() ? error_info->reason() : "";
}

}  // namespace fuseboard
