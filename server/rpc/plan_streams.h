// The open WatchPlan streams. Each has at most one message under way and no thread; a plan that
// comes meanwhile replaces the one that waits (PlanHub), so a slow reader gets the newest plan and
// costs one message of memory. EndAll finishes them for a drain. Thread-safe.

#ifndef SERVER_RPC_PLAN_STREAMS_H_
#define SERVER_RPC_PLAN_STREAMS_H_

#include <grpcpp/support/server_callback.h>

#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "fuseboard/v1/resolver.pb.h"
#include "server/plans/plan_hub.h"
#include "server/rpc/call_stats.h"

namespace fuseboard {

class PlanStreams {
 public:
  // Both outlive the streams.
  PlanStreams(PlanHub* hub, CallStats* stats) : hub_(hub), stats_(stats) {}

  // REQUIRES: no stream is open, i.e. the servers have been shut down.
  ~PlanStreams() = default;
  PlanStreams(const PlanStreams&) = delete;
  PlanStreams& operator=(const PlanStreams&) = delete;

  // A reactor that serves the stream and deletes itself when it is done. If `refusal` is an error,
  // or after EndAll, the stream is finished at once. REQUIRES: if `refusal` is OK, so is
  // CheckRequest(request.request()).
  grpc::ServerWriteReactor<v1::WatchPlanResponse>* Open(const v1::WatchPlanRequest& request,
                                                        absl::Status refusal);

  // Finishes all streams with `status`, now and from now on.
  void EndAll(const absl::Status& status);

 private:
  class Stream;

  void Remove(Stream* stream);

  PlanHub* const hub_;
  CallStats* const stats_;

  absl::Mutex mutex_;
  std::set<Stream*> streams_ ABSL_GUARDED_BY(mutex_);
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fuseboard

#endif  // SERVER_RPC_PLAN_STREAMS_H_
