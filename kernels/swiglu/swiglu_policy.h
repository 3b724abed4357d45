// How swiglu is cut for a device. Host-only and constexpr, so it is tested without a GPU.

#ifndef KERNELS_SWIGLU_SWIGLU_POLICY_H_
#define KERNELS_SWIGLU_SWIGLU_POLICY_H_

#include <stdint.h>

namespace fuseboard::swiglu {

struct Policy {
  int threads_per_row;  // A power of two.
  int rows_per_block;

  friend constexpr bool operator==(const Policy&, const Policy&) = default;
};

inline constexpr int kBlockThreads = 256;
// Runs of one thread, loaded before the first is used, and resident blocks to fit registers to.
// H200, 8192 x 14336 bf16, forward / forward + backward: 2 runs and 4 blocks 0.182 / 0.491 ms.
inline constexpr int kUnroll = 1;
inline constexpr int kBlocksPerSm = 6;

// `row_runs` is the row's length in vector accesses. Rows shorter than a block share one.
constexpr Policy SelectPolicy(int64_t row_runs) {
  int threads = 1;
  while (threads < kBlockThreads && int64_t{threads} * kUnroll < row_runs) threads *= 2;
  return {.threads_per_row = threads, .rows_per_block = kBlockThreads / threads};
}

// A tile is what a block does at a time: rows_per_block rows by threads_per_row * kUnroll runs.
struct Tiles {
  int64_t per_row;
  int64_t count;
};

constexpr Tiles TilesOf(const Policy& policy, int64_t rows, int64_t row_runs) {
  const int64_t width = int64_t{policy.threads_per_row} * kUnroll;
  const int64_t per_row = (row_runs + width - 1) / width;
  return {per_row, per_row * ((rows + policy.rows_per_block - 1) / policy.rows_per_block)};
}

}  // namespace fuseboard::swiglu

#endif  // KERNELS_SWIGLU_SWIGLU_POLICY_H_
