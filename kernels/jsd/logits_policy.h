// How a forward from logits is cut for a device. Host-only and constexpr, so it is tested without a
// GPU.

#ifndef KERNELS_JSD_LOGITS_POLICY_H_
#define KERNELS_JSD_LOGITS_POLICY_H_

#include <cstdint>

namespace fuseboard::jsd {

inline constexpr int kLogitsThreads = 256;

struct LogitsPolicy {
  int threads;  // Of a block.
  int cluster;  // Blocks that share a row, a power of two.

  friend constexpr bool operator==(const LogitsPolicy&, const LogitsPolicy&) = default;
};

// `row_units` is the row's length in vector accesses, rounded down; `row_bytes` that of one matrix.
constexpr LogitsPolicy SelectLogitsPolicy(int sm, std::int64_t row_units, std::int64_t row_bytes) {
  // H200, in place, bf16: 16384 x 4096 0.233, 0.272 and 0.390 ms with 128, 256 and 512 threads;
  // with 256 threads 1024 x 128256 0.526, 0.529, 0.555, 0.515 in clusters of 1, 2, 4 and 8, and
  // 4096 x 32000 0.515, 0.478, 0.562, 0.674. A few wide rows need the clusters to fill a device.
  int threads = 32;
  while (threads < kLogitsThreads && threads * 4 < row_units) threads *= 2;
  int cluster = 1;
  constexpr std::int64_t kBlockBytes = 32 << 10;
  while (sm >= 90 && cluster < 8 && cluster * kBlockBytes < row_bytes) cluster *= 2;
  return {threads, cluster};
}

}  // namespace fuseboard::jsd

#endif  // KERNELS_JSD_LOGITS_POLICY_H_
