// How often each operation ran its kernel library, and how often, and why, it ran the composite.
//
// A forward and a backward count one each; fused_linear_cross_entropy counts once per phase, not
// per chunk. Thread-safe. Counting a fused call is one relaxed atomic addition.

#ifndef KERNELS_TORCH_COUNTERS_H_
#define KERNELS_TORCH_COUNTERS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "kernels/torch/operation.h"

namespace fuseboard::torch_binding {

class Counters {
 public:
  static Counters& Instance();

  // Counts one phase: fused if `fallback_reason` is null, else a fall-back for that reason.
  void Add(Operation operation, const char* fallback_reason) {
    if (fallback_reason == nullptr) {
      fused_[static_cast<size_t>(operation)].fetch_add(1, std::memory_order_relaxed);
    } else {
      AddFallback(operation, fallback_reason);
    }
  }

  // {"<operation>": {"fused": n, "fallback": {"<reason>": n, ...}}, ...}
  std::string ToJson() const;

 private:
  // Reasons carry values ("want ..., got 4097"); beyond this many the rest is counted as "other".
  static constexpr size_t kMaxReasons = 64;

  void AddFallback(Operation operation, const char* reason);

  std::array<std::atomic<int64_t>, kOperationNames.size()> fused_{};
  mutable std::mutex mutex_;  // Guards fallback_.
  std::array<std::map<std::string, int64_t, std::less<>>, kOperationNames.size()> fallback_;
};

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_COUNTERS_H_
