// The frame of every unary call: run the logic, count it, finish the reactor. The logic runs on
// gRPC's thread; it may wait for the disk, never for a process.

#ifndef SERVER_RPC_UNARY_H_
#define SERVER_RPC_UNARY_H_

#include <grpcpp/support/server_callback.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "server/rpc/call_stats.h"
#include "server/rpc/status_conversion.h"

namespace fuseboard {

// `logic` returns absl::StatusOr<Response>.
template <typename Response, typename Logic>
grpc::ServerUnaryReactor* AnswerUnary(CallStats* stats, absl::string_view method,
                                      grpc::CallbackServerContext* context, Response* response,
                                      const Logic& logic) {
  const absl::Time start = absl::Now();
  absl::StatusOr<Response> result = logic();
  if (result.ok()) response->Swap(&*result);
  stats->Record(method, result.status().code(), absl::Now() - start);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(result.status()));
  return reactor;
}

}  // namespace fuseboard

#endif  // SERVER_RPC_UNARY_H_
