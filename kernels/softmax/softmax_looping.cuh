// Softmax and its gradient of rows that no policy holds: too wide, or (kLanes = 1) tensors that are
// not aligned alike. Each row is read twice, the second time from L1 or L2.

#ifndef KERNELS_SOFTMAX_SOFTMAX_LOOPING_CUH_
#define KERNELS_SOFTMAX_SOFTMAX_LOOPING_CUH_

#include "kernels/softmax/softmax.cuh"

namespace fuseboard::softmax {

// Calls fn(column, tag of a number of lanes) for all of a row's units and edges that this thread
// has.
template <int kLanes>
struct LaneTag {
  static constexpr int value = kLanes;
};

template <typename T, int kLanes, typename Fn>
__device__ __forceinline__ void ForEachRun(const RowLayout<T, kLanes>& layout, const Fn& fn) {
  const int first = static_cast<int>(threadIdx.x);
  const int step = static_cast<int>(blockDim.x);
#pragma unroll 4
  for (int unit = first; unit < layout.units; unit += step) {
    fn(layout.ColumnOfUnit(unit), LaneTag<kLanes>());
  }
  if constexpr (kLanes > 1) {
    if (first < layout.edges) fn(layout.ColumnOfEdge(first), LaneTag<1>());
  }
}

// A running top: the sum is scaled when it grows.
template <typename T, int kLanes>
__device__ __forceinline__ void AddRun(RowStats& stats, const float (&x)[kLanes]) {
  float max = x[0];
#pragma unroll
  for (int i = 1; i < kLanes; ++i) max = fmaxf(max, x[i]);
  if (max > stats.top) {
    stats.sum *= Exp<T>(stats.top - max);
    stats.top = max;
  }
#pragma unroll
  for (int i = 0; i < kLanes; ++i) stats.sum += Exp<T>(x[i] - FiniteTop(stats.top));
}

template <typename T, int kLanes>
__global__ void __launch_bounds__(512)
    SoftmaxForwardLoopingKernel(const __grid_constant__ Call call) {
  WaitForPredecessor();
  __shared__ RowStorage shared[2];  // One barrier a row: they take turns.
  const int64_t row_step = int64_t{gridDim.x} * blockDim.y;
  int turn = 0;
  for (int64_t base = int64_t{blockIdx.x} * blockDim.y; base < call.rows;
       base += row_step, turn ^= 1) {
    const int64_t row = base + threadIdx.y;
    const bool active = row < call.rows;
    const T* x = static_cast<const T*>(call.in[0].base) + (active ? row : 0) * call.in[0].stride;
    const RowLayout<T, kLanes> layout(x, active ? call.cols : 0);

    RowStats stats = {-Infinity(), 0.0f};
    ForEachRun(layout, [&](int column, auto lanes) {
      float v[lanes.value];
      LoadFloats<T, lanes.value>(x + column, v);
      AddRun<T, lanes.value>(stats, v);
    });
    stats = Merge<T>(stats, kWarpThreads);
    if (blockDim.x > kWarpThreads) stats = MergeWarps<T>(stats, &shared[turn]);
    const float inverse = 1.0f / stats.sum;

    T* y = static_cast<T*>(call.out.base) + (active ? row : 0) * call.out.stride;
    ForEachRun(layout, [&](int column, auto lanes) {
      float v[lanes.value];
      LoadFloats<T, lanes.value>(x + column, v);
#pragma unroll
      for (float& value : v) value = Divide<T>(Exp<T>(value - stats.top), stats.sum, inverse);
      StoreFloats<T, lanes.value>(y + column, v);
    });
  }
}

template <typename T, int kLanes>
__global__ void __launch_bounds__(512)
    SoftmaxBackwardLoopingKernel(const __grid_constant__ Call call) {
  WaitForPredecessor();
  __shared__ float shared[2][kMaxWarps];
  const int64_t row_step = int64_t{gridDim.x} * blockDim.y;
  int turn = 0;
  for (int64_t base = int64_t{blockIdx.x} * blockDim.y; base < call.rows;
       base += row_step, turn ^= 1) {
    const int64_t row = base + threadIdx.y;
    const bool active = row < call.rows;
    const T* dy = static_cast<const T*>(call.in[0].base) + (active ? row : 0) * call.in[0].stride;
    const T* y = static_cast<const T*>(call.in[1].base) + (active ? row : 0) * call.in[1].stride;
    const RowLayout<T, kLanes> layout(y, active ? call.cols : 0);

    float sum = 0.0f;
    ForEachRun(layout, [&](int column, auto lanes) {
      float a[lanes.value];
      float b[lanes.value];
      LoadFloats<T, lanes.value>(dy + column, a);
      LoadFloats<T, lanes.value>(y + column, b);
#pragma unroll
      for (int i = 0; i < lanes.value; ++i) sum = fmaf(a[i], b[i], sum);
    });
    const float dot = ReduceRow(sum, shared[turn]);

    T* dx = static_cast<T*>(call.out.base) + (active ? row : 0) * call.out.stride;
    ForEachRun(layout, [&](int column, auto lanes) {
      float a[lanes.value];
      float b[lanes.value];
      LoadFloats<T, lanes.value>(dy + column, a);
      LoadFloats<T, lanes.value>(y + column, b);
#pragma unroll
      for (int i = 0; i < lanes.value; ++i) a[i] = b[i] * (a[i] - dot);
      StoreFloats<T, lanes.value>(dx + column, a);
    });
  }
}

}  // namespace fuseboard::softmax

#endif  // KERNELS_SOFTMAX_SOFTMAX_LOOPING_CUH_
