// The one place where absl::Status becomes grpc::Status and back. An absl::Status carries its
// machine-readable reason as a google.rpc.ErrorInfo payload; on the wire the same ErrorInfo travels
// in a google.rpc.Status in the error details, where every gRPC tool looks for it. Pure functions,
// any thread.

#ifndef SERVER_RPC_STATUS_CONVERSION_H_
#define SERVER_RPC_STATUS_CONVERSION_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace fuseboard {

// Codes have equal numbers on both sides. A status without ErrorInfo gets one whose reason is the
// code's own name ("NOT_FOUND"), so that clients can rely on its presence. The message is cut at
// 2048 bytes, and metadata beyond that left out: both travel in headers, of which a client receives
// at most 8 KiB by default.
grpc::Status ToGrpcStatus(const absl::Status& status);

// Inverse of ToGrpcStatus. Details that are not a google.rpc.Status are left out, never an error.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace fuseboard

#endif  // SERVER_RPC_STATUS_CONVERSION_H_
