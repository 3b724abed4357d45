#include "server/rpc/status_conversion.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "google/rpc/status.pb.h"
#include "server/common/error_reason.h"

namespace fuseboard {
namespace {

constexpr size_t kMaxMessageBytes = 2048;
constexpr size_t kMaxMetadataBytes = 2048;

google::rpc::ErrorInfo WireErrorInfo(const absl::Status& status) {
  const absl::Status named = WithReason(status, absl::StatusCodeToString(status.code()));
  const std::optional<google::rpc::ErrorInfo> given = ErrorInfoOf(status);
  google::rpc::ErrorInfo error =
      given.has_value() ? *given : ErrorInfoOf(named).value_or(google::rpc::ErrorInfo());
  if (error.ByteSizeLong() > kMaxMetadataBytes) error.clear_metadata();
  return error;
}

// Cuts before a UTF-8 continuation byte, so that the message stays valid text.
std::string Shorten(absl::string_view message) {
  if (message.size() <= kMaxMessageBytes) return std::string(message);
  size_t end = kMaxMessageBytes;
  while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xC0) == 0x80) --end;
  return std::string(message.substr(0, end)) + "...";
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string message = Shorten(status.message());
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(message);
  details.add_details()->PackFrom(WireErrorInfo(status));
  return {static_cast<grpc::StatusCode>(status.code()), message, details.SerializeAsString()};
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return result;
  for (const google::protobuf::Any& any : details.details()) {
    google::rpc::ErrorInfo error;
    if (any.Is<google::rpc::ErrorInfo>() && any.UnpackTo(&error)) {
      result.SetPayload(kErrorInfoTypeUrl, absl::Cord(error.SerializeAsString()));
    }
  }
  return result;
}

}  // namespace fuseboard
