// The entropy of each row from its log-sum-exp: a block has a row and reads it once. In a forward
// that is a second read of the logits, after the kernel that wrote lse, which so stays what it is
// without an entropy.

#ifndef KERNELS_CROSS_ENTROPY_ENTROPY_KERNEL_CUH_
#define KERNELS_CROSS_ENTROPY_ENTROPY_KERNEL_CUH_

#include "kernels/common/row_layout.cuh"
#include "kernels/cross_entropy/row_math.cuh"

namespace fuseboard::cross_entropy {

inline constexpr int kEntropyThreads = 256;

// sum e^x (rest - x) of a run's exponents x, so that times e^-rest it is sum p (-log p).
template <typename M, int kLanes>
__device__ __forceinline__ float EntropyOfRun(const Lanes<typename M::T, kLanes>& run,
                                              const SavedLse& lse, const Problem& p) {
  float x[kLanes];
  Unpack<typename M::T, kLanes>(run, x);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    const float exponent = Exponent<M>(x[i], lse.reference, p);
    sum = fmaf(Exp<M>(exponent), lse.rest - FiniteExponent(exponent), sum);
  }
  return sum;
}

template <typename M>
__device__ __forceinline__ float EntropyOfThread(const Problem& p, int64_t row,
                                                 const SavedLse& lse) {
  using T = typename M::T;
  constexpr int kLanes = kPackLanes<T>;
  const T* logits = LogitsRow<T>(p, row);
  const RowLayout<T> layout(logits, p.vocab);
  const auto thread = static_cast<int>(threadIdx.x);
  float sum = 0.0f;
#pragma unroll 4
  for (int unit = thread; unit < layout.units; unit += kEntropyThreads) {
    const auto run = LoadLanes<T, kLanes>(logits + layout.ColumnOfUnit(unit));
    sum += EntropyOfRun<M, kLanes>(run, lse, p);
  }
  if (thread < layout.edges) {
    const auto run = LoadLanes<T, 1>(logits + layout.ColumnOfEdge(thread));
    sum += EntropyOfRun<M, 1>(run, lse, p);
  }
  return sum;
}

// REQUIRES: p.lse is written. Blocks of kEntropyThreads.
template <typename M>
__global__ void __launch_bounds__(kEntropyThreads)
    EntropyKernel(const __grid_constant__ Problem problem) {
  using Total = Statistic<M>;
  __shared__ Total shared[2][kMaxWarps];
  int turn = 0;
  for (int64_t row = blockIdx.x; row < problem.rows; row += gridDim.x) {
    const RowTarget target = LoadTarget(problem, row);
    if (target.ignored) {
      if (threadIdx.x == 0) StoreStatistic<M>(problem, problem.entropy, row, 0);
      continue;
    }
    const SavedLse lse = LoadLse<M>(problem, problem.lse, row);
    const Total sum =
        BlockReduce(Total{EntropyOfThread<M>(problem, row, lse)}, Sum{}, Total{0}, shared[turn]);
    turn ^= 1;
    if (threadIdx.x == 0) {
      // exp(-rest), whose square is nothing beside 1 in fp32.
      const Total unit = M::kLog2 ? kLn2 * exp2f(-lse.rest) : Total{1} - Total{lse.rest};
      StoreStatistic<M>(problem, problem.entropy, row,
                        target.in_range ? sum * unit : Total{NotANumber()});
    }
  }
}

}  // namespace fuseboard::cross_entropy

#endif  // KERNELS_CROSS_ENTROPY_ENTROPY_KERNEL_CUH_
