// How an elementwise kernel is cut for a device. Host-only and constexpr, so it is tested without a
// GPU.

#ifndef KERNELS_ELEMENTWISE_ELEMENTWISE_POLICY_H_
#define KERNELS_ELEMENTWISE_ELEMENTWISE_POLICY_H_

#include <stdint.h>

namespace fuseboard::elementwise {

// What a kernel is compiled for. A type, as nvcc 13.0 cannot name a kernel with a class as
// argument.
template <int kThreads_, int kUnroll_, int kBlocksPerSm_>
struct Cut {
  static constexpr int kThreads = kThreads_;  // Of a block.
  static constexpr int kUnroll = kUnroll_;  // Runs of one thread, loaded before the first is used.
  static constexpr int kBlocksPerSm = kBlocksPerSm_;  // Resident, that registers are fitted to.
};

struct Policy {
  int threads_per_row;  // A power of two.
  int rows_per_block;

  friend constexpr bool operator==(const Policy&, const Policy&) = default;
};

// Cuts by the number of inputs: about 64 bytes of a thread are under way at once. Measured with
// swiglu on an H200, 8192 x 14336 bf16, OneInputCut with relu_squared: 100.0 % of the copy rate,
// with 4 runs 98.2 %.
using OneInputCut = Cut<128, 2, 8>;
// Two (forward): 128 threads 0.1663 ms with 2 runs each, 0.1673 with 1; 64 threads with 1 run
// 0.1653, but 24 such blocks do not fit a multiprocessor of sm_86. A register limit below what the
// code wants costs most: 2 runs in 32 registers 0.256.
using TwoInputCut = Cut<128, 2, 8>;
// Three (backward): 128 threads 0.2750 ms with room for 8 blocks, 0.2763 for 10, 0.2786 for 12; 256
// threads 0.2769, 1024 0.3023.
using ThreeInputCut = Cut<128, 1, 8>;
// The same where the last two inputs alternate, whose runs are half as long. Not measured.
using AlternatingTwoInputCut = Cut<128, 4, 8>;
using AlternatingThreeInputCut = Cut<128, 2, 8>;

// `row_runs` is the row's length in vector accesses. Rows shorter than a block share one.
template <typename C>
constexpr Policy SelectPolicy(int64_t row_runs) {
  int threads = 1;
  while (threads < C::kThreads && int64_t{threads} * C::kUnroll < row_runs) threads *= 2;
  return {.threads_per_row = threads, .rows_per_block = C::kThreads / threads};
}

// Few elements in runs of 16 bytes have a kernel of their own, a run to a thread. H200, bf16, us
// between events, this one / in tiles: swiglu 64 x 2048 3.5 / 3.7 forward and 3.7 / 3.7 backward,
// 64 x 14336 4.2 / 4.8 and 4.7 / 5.1, 256 x 14336 forward 6.2 / 7.3; relu_squared 64 x 14336 3.7
// / 4.0 and 4.0 / 4.4, 256 x 14336 5.3 / 6.1 and 5.8 / 6.9; with 128 threads 3.9 to 5.9. More were
// not measured.
inline constexpr int kFewElementsThreads = 256;
inline constexpr int64_t kFewElementsRuns = int64_t{256} * 14336 / 8;

constexpr int64_t FewElementsBlocks(int64_t runs) {
  return (runs + kFewElementsThreads - 1) / kFewElementsThreads;
}

// A tile is what a block does at a time: rows_per_block rows by threads_per_row * unroll runs.
struct Tiles {
  int64_t per_row;
  int64_t count;
};

template <typename C>
constexpr Tiles TilesOf(const Policy& policy, int64_t rows, int64_t row_runs) {
  const int64_t width = int64_t{policy.threads_per_row} * C::kUnroll;
  const int64_t per_row = (row_runs + width - 1) / width;
  return {per_row, per_row * ((rows + policy.rows_per_block - 1) / policy.rows_per_block)};
}

}  // namespace fuseboard::elementwise

#endif  // KERNELS_ELEMENTWISE_ELEMENTWISE_POLICY_H_
