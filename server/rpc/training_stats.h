// What training processes asked and reported since the daemon began, as totals that only grow: a
// process that ends takes nothing away. Bounded, whatever processes send: at most 64 operations,
// and 16 fall-back reasons for each; what comes later counts under "other". Thread-safe.

#ifndef SERVER_RPC_TRAINING_STATS_H_
#define SERVER_RPC_TRAINING_STATS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "fuseboard/v1/plan.pb.h"
#include "fuseboard/v1/resolver.pb.h"

namespace fuseboard {

class TrainingStats {
 public:
  static constexpr size_t kMaxOperations = 64;
  static constexpr size_t kMaxReasons = 16;

  struct Calls {
    int64_t fused = 0;
    std::map<std::string, int64_t> fallbacks;  // By reason.
  };

  struct Totals {
    // "kernel": at least one site runs a kernel; "native": none does; "rejected": malformed.
    std::map<std::string, int64_t> resolves;
    int64_t acked = 0;
    int64_t nacked = 0;
    std::map<std::string, Calls> operations;
  };

  void RecordResolve(const v1::Plan& plan);
  void RecordRejectedResolve();
  void RecordAck(bool applied);

  // Adds what the process counted since its last report. A count that went down (the process began
  // anew under its old id) counts from zero.
  void RecordProgress(const v1::ReportProgressRequest& progress);

  // Forgets the last reports of processes that `is_known` denies, so that memory stays bounded.
  void Prune(const std::function<bool(absl::string_view instance_id)>& is_known);

  Totals Read() const;

 private:
  mutable absl::Mutex mutex_;
  Totals totals_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::map<std::string, Calls>> last_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fuseboard

#endif  // SERVER_RPC_TRAINING_STATS_H_
