// Cross entropy on any device and for any row length: a group of threads, a warp or a block, has a
// row and reads it twice, first for its statistics and then for its gradient. The second read comes
// from L1 or L2 as long as the rows in flight fit there. And the backward pass, which reads once.
//
// In place: the first read of a row ends, for the whole group, before its first store.

#ifndef KERNELS_CROSS_ENTROPY_ROW_KERNEL_CUH_
#define KERNELS_CROSS_ENTROPY_ROW_KERNEL_CUH_

#include "kernels/cross_entropy/gradient_row.cuh"

namespace fuseboard::cross_entropy {

inline constexpr int kMaxRowThreads = 1024;

// The threads that share a row: a warp, or the block.
template <bool kWarp>
struct RowGroup {
  __device__ __forceinline__ static int Size() {
    return kWarp ? kWarpThreads : static_cast<int>(blockDim.x);
  }
  __device__ __forceinline__ static int Rank() { return static_cast<int>(threadIdx.x) % Size(); }
  __device__ __forceinline__ static int PerBlock() { return static_cast<int>(blockDim.x) / Size(); }
  __device__ __forceinline__ static int64_t Index() {
    return int64_t{blockIdx.x} * PerBlock() + static_cast<int>(threadIdx.x) / Size();
  }
  __device__ __forceinline__ static int64_t Count() { return int64_t{gridDim.x} * PerBlock(); }

  // The statistics of all threads of the group, in each of them. A barrier of the group.
  template <typename M>
  __device__ __forceinline__ static RowStats MergeAll(RowStats stats, RowStats* shared) {
    stats = MergeWarp<M>(stats);
    if constexpr (kWarp) {
      __syncwarp();
    } else {
      const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
      __syncthreads();  // The last row's have been read.
      if (lane == 0) shared[threadIdx.x / kWarpThreads] = stats;
      __syncthreads();
      stats = lane < Size() / kWarpThreads ? shared[lane] : RowStats{};
      stats = MergeWarp<M>(stats);
    }
    return stats;
  }
};

// The element that this thread has of those in no unit.
template <typename M>
__device__ __forceinline__ void StoreEdge(const RowLayout<typename M::T>& layout,
                                          const RowGradient& gradient, const typename M::T* logits,
                                          const GradientRow<typename M::T>& out, int edge,
                                          const Problem& p) {
  if (edge >= layout.edges) return;
  const int column = layout.ColumnOfEdge(edge);
  const auto x = LoadLanes<typename M::T, 1>(logits + column);
  StoreLanes<typename M::T, 1>(out.row + column, GradientRun<M, 1>(gradient, x, column, p));
}

// Units [first, end) in steps of `step`; kAligned says that out.aligned.
template <typename M, bool kAligned>
__device__ __forceinline__ void StoreUnitsAs(const RowLayout<typename M::T>& layout,
                                             const RowGradient& gradient,
                                             const typename M::T* logits,
                                             const GradientRow<typename M::T>& out, int first,
                                             int end, int step, const Problem& p) {
  using T = typename M::T;
  constexpr int kLanes = kPackLanes<T>;
  constexpr int kBatch = 4;  // Loads in flight per thread.
  for (int unit = first; unit < end; unit += kBatch * step) {
    Lanes<T, kLanes> run[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (unit + i * step < end) {
        run[i] = LoadLanes<T, kLanes>(logits + layout.ColumnOfUnit(unit + i * step));
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (unit + i * step >= end) break;
      const int column = layout.ColumnOfUnit(unit + i * step);
      StoreUnit<kAligned>(out.row + column, GradientRun<M, kLanes>(gradient, run[i], column, p));
    }
  }
}

template <typename M>
__device__ __forceinline__ void StoreUnits(const RowLayout<typename M::T>& layout,
                                           const RowGradient& gradient, const typename M::T* logits,
                                           const GradientRow<typename M::T>& out, int first,
                                           int end, int step, const Problem& p) {
  if (out.aligned) {
    StoreUnitsAs<M, true>(layout, gradient, logits, out, first, end, step, p);
  } else {
    StoreUnitsAs<M, false>(layout, gradient, logits, out, first, end, step, p);
  }
}

template <typename M, bool kWarp>
__device__ __forceinline__ void SolveRow(const Problem& p, int64_t row, RowStats* shared) {
  using T = typename M::T;
  using Group = RowGroup<kWarp>;
  constexpr int kLanes = kPackLanes<T>;
  const RowTarget target = LoadTarget(p, row);
  const T* logits = LogitsRow<T>(p, row);
  const RowLayout<T> layout(logits, p.vocab);
  const int rank = Group::Rank();
  RowStats stats;
  float target_logit = 0.0f;
  if (!target.ignored || p.argmax != nullptr) {
    if (rank == 0) target_logit = LoadTargetLogit<T>(p, row, target);
#pragma unroll 4
    for (int unit = rank; unit < layout.units; unit += Group::Size()) {
      const int column = layout.ColumnOfUnit(unit);
      AddRun<M, kLanes>(stats, LoadLanes<T, kLanes>(logits + column), column, p);
    }
    if (rank < layout.edges) {
      const int column = layout.ColumnOfEdge(rank);
      AddRun<M, 1>(stats, LoadLanes<T, 1>(logits + column), column, p);
    }
    stats = Group::template MergeAll<M>(stats, shared);
  }
  if (rank == 0) {
    const int in_units = stats.column - layout.head;
    if (p.argmax != nullptr && stats.column != kNoColumn && in_units >= 0 &&
        in_units < layout.units * kLanes) {
      const auto run = LoadLanes<T, kLanes>(logits + stats.column);
      stats.column = FirstMaxColumn<M, kLanes>(run, stats.column, stats.max, p);
    }
    StoreOutcome<M>(p, row, stats, target, target_logit);
  }
  if (p.dlogits == nullptr) return;
  // The thread above has read what the others now overwrite.
  if constexpr (kWarp) {
    __syncwarp();
  } else {
    if (p.argmax != nullptr) __syncthreads();
  }
  const GradientRow<T> out(p, row, logits);
  if (target.ignored) {
    StoreZeros<T>(layout, out, rank, layout.units, Group::Size(), rank);
    return;
  }
  const RowGradient gradient = GradientFromStats<M>(p, row, target, stats);
  StoreUnits<M>(layout, gradient, logits, out, rank, layout.units, Group::Size(), p);
  StoreEdge<M>(layout, gradient, logits, out, rank, p);
}

template <typename M, bool kWarp>
__global__ void __launch_bounds__(kMaxRowThreads)
    RowKernel(const __grid_constant__ Problem problem) {
  __shared__ RowStats shared[kMaxRowThreads / kWarpThreads];
  for (int64_t row = RowGroup<kWarp>::Index(); row < problem.rows;
       row += RowGroup<kWarp>::Count()) {
    SolveRow<M, kWarp>(problem, row, shared);
  }
}

// Backward: each group has a tile of a row, `tile_units` of its `tiles`.
template <typename M, bool kWarp>
__global__ void __launch_bounds__(kMaxRowThreads)
    BackwardKernel(const __grid_constant__ Problem problem, const float* class_weight_sum,
                   int tiles, int tile_units) {
  using T = typename M::T;
  using Group = RowGroup<kWarp>;
  const float weight_sum =
      class_weight_sum == nullptr ? static_cast<float>(problem.vocab) : *class_weight_sum;
  for (int64_t item = Group::Index(); item < problem.rows * tiles; item += Group::Count()) {
    const int64_t row = item / tiles;
    const auto tile = static_cast<int>(item % tiles);
    const T* logits = LogitsRow<T>(problem, row);
    const RowLayout<T> layout(logits, problem.vocab);
    const GradientRow<T> out(problem, row, logits);
    const int first = tile * tile_units + Group::Rank();
    const int end = min((tile + 1) * tile_units, layout.units);
    const int edge = tile == 0 ? Group::Rank() : kNoColumn;
    const RowTarget target = LoadTarget(problem, row);
    if (target.ignored) {
      StoreZeros<T>(layout, out, first, end, Group::Size(), edge);
      continue;
    }
    const RowGradient gradient = GradientFromLse<M>(problem, row, target, weight_sum);
    StoreUnits<M>(layout, gradient, logits, out, first, end, Group::Size(), problem);
    StoreEdge<M>(layout, gradient, logits, out, edge, problem);
  }
}

// *sum = the sum of the values, in a fixed order. One block of kMaxRowThreads.
static __global__ void __launch_bounds__(kMaxRowThreads)
    SumKernel(const float* __restrict__ values, int size, float* sum) {
  __shared__ float shared[kMaxWarps];
  float partial = 0.0f;
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kMaxRowThreads) partial += values[i];
  partial = BlockReduce(partial, Sum{}, 0.0f, shared);
  if (threadIdx.x == 0) *sum = partial;
}

}  // namespace fuseboard::cross_entropy

#endif  // KERNELS_CROSS_ENTROPY_ROW_KERNEL_CUH_
