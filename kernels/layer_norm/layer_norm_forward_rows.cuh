// The forward kernel for what is usual: a row to a block, weight and bias, where there are any, of
// the dtype of x. See layer_norm_forward.cuh.
//
// bf16: 15 instructions per element where the general kernel has 26: no distances from a reference,
// no sums over threads whose number is only known at run time. H200, 16384 x 4096: 72.6 us instead
// of 77.2.

#ifndef KERNELS_LAYER_NORM_LAYER_NORM_FORWARD_ROWS_CUH_
#define KERNELS_LAYER_NORM_LAYER_NORM_FORWARD_ROWS_CUH_

#include <type_traits>

#include "kernels/layer_norm/layer_norm_forward.cuh"
#include "kernels/rms_norm/row_edges.cuh"

namespace fuseboard::layer_norm {

// The sums of a pair of values over a block of at most kWarps warps. Two values cost what one does:
// after the first exchange half of the lanes go on with one of them, half with the other.
template <int kWarps>
struct BlockPairSum {
  float sums[kWarps == 1 ? 1 : 2 * kWarps];

  __device__ __forceinline__ float2 operator()(float2 value) {
    const uint32_t lane = threadIdx.x % kWarpThreads;
    const bool upper = lane >= 16;
    float own = upper ? value.y : value.x;
    own += __shfl_xor_sync(0xffffffffu, upper ? value.x : value.y, 16);
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) own += __shfl_xor_sync(0xffffffffu, own, offset);
    if constexpr (kWarps == 1) {
      const float other = __shfl_xor_sync(0xffffffffu, own, 16);
      return upper ? make_float2(other, own) : make_float2(own, other);
    }
    if (lane % 16 == 0) sums[threadIdx.x / kWarpThreads * 2 + lane / 16] = own;
    if (threadIdx.x < 2 * kWarps && threadIdx.x >= blockDim.x / 16) sums[threadIdx.x] = 0.0f;
    __syncthreads();
    own = sums[lane % (2 * kWarps)];
#pragma unroll
    for (int offset = kWarps; offset > 1; offset /= 2) {
      own += __shfl_xor_sync(0xffffffffu, own, offset);
    }
    const float other = __shfl_xor_sync(0xffffffffu, own, 1);
    return lane % 2 == 0 ? make_float2(own, other) : make_float2(other, own);
  }
};

// A thread's packs of a vector of the row's length, or of `word` if there is none. With kUnaligned
// they may begin anywhere, `columns` before the vector's end.
template <bool kUnaligned, typename X, int kPacks>
__device__ __forceinline__ void LoadPacks(const X* from, bool has, int left, int columns,
                                          uint32_t word, Lanes<X, kPackLanes<X>> (&out)[kPacks]) {
  constexpr int kLanes = kPackLanes<X>;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
#pragma unroll
    for (uint32_t& w : out[p].word) w = word;
    if (has && p * kWarpThreads < left) {
      constexpr int kStep = kWarpThreads * kLanes;
      if constexpr (kUnaligned) {
        out[p] = LoadUnalignedPack(from + p * kStep, columns - p * kStep);
      } else {
        out[p] = LoadLanes<X, kLanes>(from + p * kStep);
      }
    }
  }
}

// blockDim = as many threads as the row has runs of kPacks packs, whole warps, at most kWarps of
// them; a warp has kPacks * 32 neighbouring packs. As many blocks as rows. The sums are of x and
// x^2: where the mean is more than two deviations from 0, which costs digits, they are taken again,
// from the mean. kUnaligned: all of them may begin anywhere, the rows alike (row_edges.cuh).
// REQUIRES: without it all rows, weight and bias in 16-byte runs.
template <typename X, int kWarps, int kPacks, int kResidentWarps = kPacks == 4 ? 32 : 40,
          bool kUnaligned = false>
__global__ void __launch_bounds__(kWarps* kWarpThreads, kResidentWarps / kWarps)
    LayerNormForwardRowKernel(const __grid_constant__ ForwardArgs args) {
  constexpr int kLanes = kPackLanes<X>;
  __shared__ BlockPairSum<kWarps> shared[2];
  const int first = static_cast<int>(threadIdx.x / kWarpThreads * (kWarpThreads * kPacks) +
                                     threadIdx.x % kWarpThreads);
  const int64_t row = blockIdx.x;
  const X* const x = static_cast<const X*>(args.x) + row * args.x_stride;
  __shared__ std::conditional_t<kUnaligned, rms_norm::RowEdges<rms_norm::ForwardEdge, 1>, char>
      edges;
  int row_packs = static_cast<int>(args.hidden / kLanes);
  int head = 0;  // Columns before the first pack.
  [[maybe_unused]] bool has_edge = false;
  if constexpr (kUnaligned) {
    const RowLayout<X> layout(x, static_cast<int>(args.hidden));
    row_packs = layout.units;
    head = layout.head;
    has_edge = rms_norm::EdgeOfThread() < layout.edges;
    if (has_edge) edges.Own().column = layout.ColumnOfEdge(rms_norm::EdgeOfThread());
  }
  const int left = row_packs - first;
  const int column = head + first * kLanes;
  const int columns = static_cast<int>(args.hidden) - column;

  Lanes<X, kLanes> held[kPacks];
  Lanes<X, kLanes> weight[kPacks];
  Lanes<X, kLanes> bias[kPacks];
  LoadPacks<false>(x + column, true, left, columns, 0, held);
  [[maybe_unused]] Lanes<X, 1> edge_x;
  if constexpr (kUnaligned) {
    if (has_edge) edge_x = LoadLanes<X, 1>(x + edges.Own().column);
  }
  LoadPacks<kUnaligned>(static_cast<const X*>(args.weight) + column, args.weight != nullptr, left,
                        columns, kOneWord<X>, weight);

  float2 sums[2] = {};  // Two chains of additions, each half as long.
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    float v[kLanes];
    Unpack<X, kLanes>(held[p], v);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      sums[i % 2].x += v[i];
      sums[i % 2].y += v[i] * v[i];
    }
  }
  if constexpr (kUnaligned) {
    if (has_edge) {
      const float v = rms_norm::FloatOf<X>(edge_x);
      edges.Own().x = v;
      sums[0].x += v;
      sums[0].y += v * v;
    }
  }
  LoadPacks<kUnaligned>(static_cast<const X*>(args.bias) + column, args.bias != nullptr, left,
                        columns, 0, bias);
  const float2 sum = shared[0](make_float2(sums[0].x + sums[1].x, sums[0].y + sums[1].y));
  const auto moments_of = [&](float base, float2 s) -> Moments {
    const float shift = s.x * args.inverse_hidden;
    return {base, shift, fmaxf(s.y * args.inverse_hidden - shift * shift, 0.0f)};
  };
  Moments m = moments_of(0.0f, sum);
  const bool far = m.shift * m.shift > kFarReference * m.variance;
  if (far) {
    const float base = m.shift;
    float2 apart = {};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (p * kWarpThreads >= left) break;
      float v[kLanes];
      Unpack<X, kLanes>(Renewed(held[p], args.zero), v);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        const float distance = v[i] - base;
        apart.x += distance;
        apart.y += distance * distance;
      }
    }
    if constexpr (kUnaligned) {
      if (has_edge) {
        const float distance = edges.Own().x - base;
        apart.x += distance;
        apart.y += distance * distance;
      }
    }
    m = moments_of(base, shared[1](apart));
  }
  const float rstd = RstdOf(m.variance, args.eps);
  const float offset = -m.shift * rstd;
  if (threadIdx.x == 0) {
    if (args.mean != nullptr) args.mean[row] = m.base + m.shift;
    if (args.rstd != nullptr) args.rstd[row] = rstd;
  }
  if constexpr (kUnaligned) {
    if (has_edge) {
      const int at = edges.Own().column;
      float v[1] = {fmaf(far ? edges.Own().x - m.base : edges.Own().x, rstd, offset)};
      ScaleAndShift<X, /*kSame=*/true, 1>(args, at, v);
      StoreFloats<X, 1>(static_cast<X*>(args.y) + row * args.y_stride + at, v);
    }
  }
  X* y = static_cast<X*>(args.y) + row * args.y_stride + column;
  const auto store = [&](auto is_far) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (p * kWarpThreads >= left) break;
      float v[kLanes], w[kLanes], b[kLanes];
      Unpack<X, kLanes>(Renewed(held[p], args.zero), v);
      Unpack<X, kLanes>(weight[p], w);
      Unpack<X, kLanes>(bias[p], b);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        if constexpr (decltype(is_far)::value) v[i] -= m.base;
        v[i] = fmaf(fmaf(v[i], rstd, offset), w[i], b[i]);
      }
      StoreFloats<X, kLanes>(y + p * kWarpThreads * kLanes, v);
    }
  };
  if (far) {
    store(std::true_type());
  } else {
    store(std::false_type());
  }
}

}  // namespace fuseboard::layer_norm

#endif  // KERNELS_LAYER_NORM_LAYER_NORM_FORWARD_ROWS_CUH_
