// Softmax and its gradient on the GPU, sums in f32.
//
// Traffic: forward x read once, y written once; backward dy and y read once, dx written once; the
// looping kernels read everything twice, the second time from L1 or L2. Determinism: the order of
// each row's sums is fixed by the policy. No atomics.

#ifndef KERNELS_SOFTMAX_SOFTMAX_CUH_
#define KERNELS_SOFTMAX_SOFTMAX_CUH_

#include "kernels/common/cluster_exchange.cuh"
#include "kernels/common/row_layout.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/softmax/softmax_call.h"

namespace fuseboard::softmax {

__device__ __forceinline__ float Infinity() { return __uint_as_float(0x7f800000u); }

// e^x for x <= 0. NOTE: not 2^(x * log2 e - top * log2 e), though that would be one multiply-add:
// rows of a dtype's smallest number only, which masks make, would overflow and become NaN.
template <typename T>
__device__ __forceinline__ float Exp(float x) {
  constexpr float kLog2E = 1.44269504088896341f;
  if constexpr (std::is_same_v<T, float>) {
    return expf(x);
  } else {
    return Exp2Approx(x * kLog2E);
  }
}

// -inf as a reference would make differences NaN where the answer is that nothing was added.
__device__ __forceinline__ float FiniteTop(float top) { return top == -Infinity() ? 0.0f : top; }

// e / sum: for f32 with the residual, so that it is rounded once; `inverse` is 1 / sum.
template <typename T>
__device__ __forceinline__ float Divide(float e, float sum, float inverse) {
  const float quotient = e * inverse;
  if constexpr (!std::is_same_v<T, float>) return quotient;
  return fmaf(fmaf(-quotient, sum, e), inverse, quotient);
}

// ---- Reductions over the threads of a row: threadIdx.x of each block of the cluster ----

// The sum over a row; `shared` has room for kMaxWarps values.
__device__ __forceinline__ float ReduceRow(float value, float* shared) {
  const int threads = static_cast<int>(blockDim.x);
  if (threads <= kWarpThreads) return WarpReduce(value, Sum(), threads);
  return GroupReduce(value, Sum(), 0.0f, shared, threads / kWarpThreads);
}

// Of part of a row. A part without values, or of -inf only, has top -inf and sum 0.
struct RowStats {
  float top;
  float sum;  // Of exponentials relative to FiniteTop(top).
};

struct RowStorage {
  RowStats block[kMaxWarps];
  ClusterExchange exchange;
};

// Over each group of `width` neighbouring lanes, a power of two.
template <typename T>
__device__ __forceinline__ RowStats Merge(const RowStats& part, int width) {
  const float top = WarpReduce(part.top, Max(), width);
  return {top, WarpReduce(part.sum * Exp<T>(part.top - FiniteTop(top)), Sum(), width)};
}

// Of all blocks of the cluster.
template <typename T>
__device__ __forceinline__ RowStats MergeCluster(const RowStats& own, RowStorage* shared) {
  const float4 part = Exchange(&shared->exchange, 0, make_float4(own.top, own.sum, 0.0f, 0.0f),
                               make_float4(-Infinity(), 0.0f, 0.0f, 0.0f));
  return Merge<T>({part.x, part.y}, kMaxClusterBlocks);
}

// Of all warps that share the row in a block, from those of each warp.
template <typename T>
__device__ __forceinline__ RowStats MergeWarps(const RowStats& own, RowStorage* shared) {
  const int thread = static_cast<int>(threadIdx.x + threadIdx.y * blockDim.x);
  const int lane = thread % kWarpThreads;
  const int warp = thread / kWarpThreads;
  const int group_warps = static_cast<int>(blockDim.x) / kWarpThreads;
  if (lane == 0) shared->block[warp] = own;
  __syncthreads();
  const int width = WidthOf(group_warps);
  const int of = lane % width;
  const int first = warp / group_warps * group_warps;
  RowStats part = {-Infinity(), 0.0f};
  if (of < group_warps) part = shared->block[first + of];
  return Merge<T>(part, width);
}

// ---- Rows held in registers ----

// -inf in every lane: what is past a row's end adds nothing.
template <typename T>
__device__ __forceinline__ Lanes<T, kPackLanes<T>> NothingPack() {
  constexpr uint32_t kWord = std::is_same_v<T, float>  ? 0xff800000u
                             : std::is_same_v<T, Half> ? 0xfc00fc00u
                                                       : 0xff80ff80u;
  return {{kWord, kWord, kWord, kWord}};
}

// 16-bit floats are compared two at a time, packed as they are.
template <typename T, int kPacks>
__device__ __forceinline__ float MaxOf(const Lanes<T, kPackLanes<T>> (&held)[kPacks]) {
  if constexpr (std::is_same_v<T, float>) {
    float max = -Infinity();
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (const uint32_t word : held[p].word) max = fmaxf(max, __uint_as_float(word));
    }
    return max;
  } else {
    uint32_t max = held[0].word[0];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (const uint32_t word : held[p].word) max = MaxWord<T>(max, word);
    }
    const float2 pair = WordToFloats<T>(max);
    return fmaxf(pair.x, pair.y);
  }
}

template <typename T, int kPacks>
__device__ __forceinline__ float SumOf(const Lanes<T, kPackLanes<T>> (&held)[kPacks], float top) {
  constexpr int kLanes = kPackLanes<T>;
  float sum[2] = {0.0f, 0.0f};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    float v[kLanes];
    Unpack<T, kLanes>(held[p], v);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) sum[i % 2] += Exp<T>(v[i] - top);
  }
  return sum[0] + sum[1];
}

// Which row and which part of it a thread has, of a row that blocks of a cluster share if kCluster.
// There is no loop over rows, whose bookkeeping would cost registers: as many blocks as there are
// groups of rows.
template <bool kCluster>
struct Place {
  using Blocks = RowBlocks<kCluster>;
  int64_t row;
  int first;  // Pack or edge.
  int step;   // To the thread's next pack.

  __device__ __forceinline__ Place() {
    row = int64_t{Blocks::Index()} * blockDim.y + threadIdx.y;
    first = static_cast<int>(threadIdx.x + Blocks::Rank() * blockDim.x);
    step = static_cast<int>(blockDim.x * Blocks::Size());
  }
};

// blockDim = (threads per row, rows per block). May be launched dependent.
// REQUIRES: the rows of x and y are aligned alike to 16 bytes.
template <typename T, int kPacks, bool kCluster>
__global__ void __launch_bounds__(kPacks == 8 ? 1024 : 512, kPacks == 8 ? 1 : 2)
    SoftmaxForwardKernel(const __grid_constant__ Call call) {
  constexpr int kLanes = kPackLanes<T>;
  WaitForPredecessor();
  __shared__ RowStorage shared;
  if constexpr (kCluster) ArriveForExchange(&shared.exchange);
  const Place<kCluster> place;
  const bool active = place.row < call.rows;
  const int64_t row = active ? place.row : 0;
  const T* x = static_cast<const T*>(call.in[0].base) + row * call.in[0].stride;
  const RowLayout<T> layout(x, active ? call.cols : 0);
  const bool has_edge = place.first < layout.edges;

  Lanes<T, kLanes> held[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int pack = place.first + p * place.step;
    held[p] = NothingPack<T>();
    if (pack < layout.units) held[p] = LoadLanes<T, kLanes>(x + layout.ColumnOfUnit(pack));
  }
  float edge[1] = {-Infinity()};
  if (has_edge) LoadFloats<T, 1>(x + layout.ColumnOfEdge(place.first), edge);

  const float max = fmaxf(MaxOf<T, kPacks>(held), edge[0]);
  // Each warp sums relative to its own maximum, so that the row takes one barrier, not two.
  const int threads = static_cast<int>(blockDim.x);
  const int width = threads < kWarpThreads ? threads : kWarpThreads;
  RowStats stats;
  stats.top = WarpReduce(max, Max(), width);
  const float own_top = FiniteTop(stats.top);
  const float sum = SumOf<T, kPacks>(held, own_top) + Exp<T>(edge[0] - own_top);
  stats.sum = WarpReduce(sum, Sum(), width);
  if (threads > kWarpThreads) stats = MergeWarps<T>(stats, &shared);
  if constexpr (kCluster) {
    if (ClusterSize() > 1) {
      ClusterWait();  // Now all blocks are there to be written to.
      stats = MergeCluster<T>(stats, &shared);
    }
  }
  const float inverse = 1.0f / stats.sum;
  const uint32_t zero = static_cast<uint32_t>(call.cols) >> 31;

  T* y = static_cast<T*>(call.out.base) + row * call.out.stride;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int pack = place.first + p * place.step;
    if (pack >= layout.units) break;
    float v[kLanes];
    Unpack<T, kLanes>(Renewed(held[p], zero), v);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      v[i] = Divide<T>(Exp<T>(v[i] - stats.top), stats.sum, inverse);
    }
    StoreFloats<T, kLanes>(y + layout.ColumnOfUnit(pack), v);
  }
  if (has_edge) {
    edge[0] = Divide<T>(Exp<T>(edge[0] - stats.top), stats.sum, inverse);
    StoreFloats<T, 1>(y + layout.ColumnOfEdge(place.first), edge);
  }
}

// dy of a row: in registers, or in shared memory, where each thread fetches and reads its own packs
// only, so that no barrier is needed.
template <typename T, int kPacks, bool kShared>
struct HeldGradient {
  static constexpr int kLanes = kPackLanes<T>;
  using Pack = Lanes<T, kLanes>;

  Pack pack[kShared ? 1 : kPacks];

  __device__ __forceinline__ static T* SlotOf(int p) {
    extern __shared__ uint4 dynamic_shared[];
    return reinterpret_cast<T*>(dynamic_shared + p * blockDim.x + threadIdx.x);
  }
  __device__ __forceinline__ void Fetch(int p, const T* address) {
    if constexpr (kShared) {
      CopyAsync16(SlotOf(p), address);
    } else {
      pack[p] = LoadLanes<T, kLanes>(address);
    }
  }
  __device__ __forceinline__ void Wait() const {
    if constexpr (kShared) {
      CopyAsyncCommit();
      CopyAsyncWait<0>();
    }
  }
  __device__ __forceinline__ Pack Get(int p) const {
    if constexpr (kShared) {
      return LoadLanes<T, kLanes>(SlotOf(p));
    } else {
      return pack[p];
    }
  }
};

// blockDim = (threads per row, rows per block). May be launched dependent.
// REQUIRES: the rows of dy, y and dx are aligned alike to 16 bytes.
template <typename T, int kPacks, bool kShared, bool kCluster>
__global__ void __launch_bounds__(1024, 1)
    SoftmaxBackwardKernel(const __grid_constant__ Call call) {
  constexpr int kLanes = kPackLanes<T>;
  WaitForPredecessor();
  __shared__ float shared_sums[kMaxWarps];
  __shared__ ClusterExchange exchange;
  if constexpr (kCluster) ArriveForExchange(&exchange);
  const Place<kCluster> place;
  const bool active = place.row < call.rows;
  const int64_t row = active ? place.row : 0;
  const T* dy = static_cast<const T*>(call.in[0].base) + row * call.in[0].stride;
  const T* y = static_cast<const T*>(call.in[1].base) + row * call.in[1].stride;
  const RowLayout<T> layout(y, active ? call.cols : 0);
  const bool has_edge = place.first < layout.edges;

  HeldGradient<T, kPacks, kShared> held_dy;
  Lanes<T, kLanes> held[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int pack = place.first + p * place.step;
    if (pack >= layout.units) break;
    held_dy.Fetch(p, dy + layout.ColumnOfUnit(pack));
    held[p] = LoadLanes<T, kLanes>(y + layout.ColumnOfUnit(pack));
  }
  float edge_dy[1] = {0.0f};
  float edge[1] = {0.0f};
  if (has_edge) {
    LoadFloats<T, 1>(dy + layout.ColumnOfEdge(place.first), edge_dy);
    LoadFloats<T, 1>(y + layout.ColumnOfEdge(place.first), edge);
  }
  held_dy.Wait();

  float sums[2] = {edge_dy[0] * edge[0], 0.0f};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (place.first + p * place.step >= layout.units) break;
    float a[kLanes];
    float b[kLanes];
    Unpack<T, kLanes>(held_dy.Get(p), a);
    Unpack<T, kLanes>(held[p], b);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) sums[i % 2] = fmaf(a[i], b[i], sums[i % 2]);
  }
  float dot = ReduceRow(sums[0] + sums[1], shared_sums);
  if constexpr (kCluster) {
    if (ClusterSize() > 1) {
      ClusterWait();  // Now all blocks are there to be written to.
      dot = ClusterSum(dot, &exchange, 0);
    }
  }

  T* dx = static_cast<T*>(call.out.base) + row * call.out.stride;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int pack = place.first + p * place.step;
    if (pack >= layout.units) break;
    float a[kLanes];
    float b[kLanes];
    Unpack<T, kLanes>(held_dy.Get(p), a);
    Unpack<T, kLanes>(held[p], b);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) a[i] = b[i] * (a[i] - dot);
    StoreFloats<T, kLanes>(dx + layout.ColumnOfUnit(pack), a);
  }
  if (has_edge) {
    edge[0] *= edge_dy[0] - dot;
    StoreFloats<T, 1>(dx + layout.ColumnOfEdge(place.first), edge);
  }
}

}  // namespace fuseboard::softmax

#endif  // KERNELS_SOFTMAX_SOFTMAX_CUH_
