// The logic of the Resolver service without gRPC: messages in, messages or a Status out. Watching
// is PlanHub's. Thread-safe.

#ifndef SERVER_PLANS_RESOLVER_SERVICE_H_
#define SERVER_PLANS_RESOLVER_SERVICE_H_

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fuseboard/v1/resolver.pb.h"
#include "server/jobs/process_table.h"
#include "server/plans/snapshot_source.h"

namespace fuseboard {

class ResolverService {
 public:
  // All pointers outlive the service.
  struct Config {
    SnapshotSource* snapshots = nullptr;
    ProcessTable* processes = nullptr;
    absl::Duration liveness = absl::Seconds(30);
  };

  explicit ResolverService(Config config) : config_(config) {}

  // Errors: as CheckRequest.
  absl::StatusOr<v1::ResolveResponse> Resolve(const v1::ResolveRequest& request);

  // Errors: as CheckRequest; NotFound (UNKNOWN_INSTANCE, UNKNOWN_JOB); InvalidArgument if more than
  // one of request, instance_id and job_name is given, or none.
  absl::StatusOr<v1::ExplainResponse> Explain(const v1::ExplainRequest& request);

  // Errors: NotFound (UNKNOWN_INSTANCE); InvalidArgument for a negative step, revision or count, or
  // for more refusals than a request may have sites.
  absl::StatusOr<v1::AckPlanResponse> AckPlan(const v1::AckPlanRequest& request);

  // Errors: InvalidArgument for a negative step or counter.
  absl::StatusOr<v1::ReportProgressResponse> ReportProgress(
      const v1::ReportProgressRequest& request);

 private:
  const Config config_;
};

}  // namespace fuseboard

#endif  // SERVER_PLANS_RESOLVER_SERVICE_H_
