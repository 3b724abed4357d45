// What the kernels of qk_norm_rope share whose rows are all heads of a position, of 16-bit floats,
// and whose tables are f32: half rotation of whole heads (OLMo2). A block holds all heads of a
// position at once; its sums take one barrier. Places, tokens and heads are those of
// rotary_packed.cuh.

#ifndef KERNELS_QK_NORM_ROPE_ROW_FRAME_CUH_
#define KERNELS_QK_NORM_ROPE_ROW_FRAME_CUH_

#include "kernels/common/rotary_packed.cuh"
#include "kernels/qk_norm_rope/norm_rope_frame.cuh"

namespace fuseboard::qk_norm_rope {

// The factors of the pairs from `column` on. REQUIRES: tables of f32 in runs, half rotation.
template <int kLanes>
__device__ __forceinline__ RotaryFactors<kLanes> LoadWideFactors(const Rotation& r,
                                                                 const PackedToken& token,
                                                                 int column) {
  const auto row = [&](const FactorTable& table) {
    return static_cast<const float*>(table.base) + token.batch * table.batch_stride +
           token.position * table.position_stride + RotaryStream(r, column) * table.stream_stride +
           column;
  };
  const float* cos = row(r.cos);
  const float* sin = row(r.sin);
  const int second = r.per_pair ? 0 : r.pairs;
  RotaryFactors<kLanes> f;
  LoadFloats<float, kLanes>(cos, f.cos[0]);
  LoadFloats<float, kLanes>(cos + second, f.cos[1]);
  // The transposed map takes the other element's sine, with the other sign.
  LoadFloats<float, kLanes>(sin + (r.inverse ? second : 0), f.sin[0]);
  LoadFloats<float, kLanes>(sin + (r.inverse ? 0 : second), f.sin[1]);
  const uint32_t first_sign = r.inverse ? 0 : 0x80000000u;
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    f.sin[0][i] = __uint_as_float(__float_as_uint(f.sin[0][i]) ^ first_sign);
    f.sin[1][i] = __uint_as_float(__float_as_uint(f.sin[1][i]) ^ (first_sign ^ 0x80000000u));
  }
  return f;
}

// The weight at a thread's columns of its heads, as loaded.
template <typename T, int kLanes, int kHeads>
struct RowWeight {
  Lanes<T, kLanes> run[kHeads][2];

  template <typename Has>
  __device__ __forceinline__ RowWeight(const Side& side, const PackedSide& cut, int dim, int head,
                                       int column, const Has& has) {
    const T* first = static_cast<const T*>(side.weight.data) + int64_t{head} * dim + column;
    const int64_t step = int64_t{cut.head_lanes} * dim;
#pragma unroll
    for (int u = 0; u < kHeads; ++u) {
      const T* weight = has(u) ? first + u * step : first;
      run[u][0] = LoadLanes<T, kLanes>(weight);
      run[u][1] = LoadLanes<T, kLanes>(weight + dim / 2);
    }
  }
};

}  // namespace fuseboard::qk_norm_rope

#endif  // KERNELS_QK_NORM_ROPE_ROW_FRAME_CUH_
