// Counts of finished calls by method and code, and how long they took. Bounded: methods are the
// services' own, codes are gRPC's. Thread-safe.

#ifndef SERVER_RPC_CALL_STATS_H_
#define SERVER_RPC_CALL_STATS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace fuseboard {

class CallStats {
 public:
  // Upper bounds of the latency buckets in seconds. A unary call over a Unix socket takes about
  // 100 us; a mutation waits for the disk.
  static const std::vector<double>& Bounds();

  struct Row {
    std::string method;
    std::string code;
    std::vector<uint64_t> buckets;  // Per bound, and one more for what is above the last.
    double sum_seconds = 0;
  };

  // `method` without the package, e.g. "Resolver/Resolve".
  void Record(absl::string_view method, absl::StatusCode code, absl::Duration elapsed);

  // By method, then code.
  std::vector<Row> Read() const;

 private:
  struct Cell {
    std::vector<uint64_t> buckets;
    double sum_seconds = 0;
  };

  mutable absl::Mutex mutex_;
  std::map<std::pair<std::string, absl::StatusCode>, Cell> cells_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fuseboard

#endif  // SERVER_RPC_CALL_STATS_H_
