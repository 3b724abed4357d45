// What the kernels of qk_norm_rope share that rotate two 16-bit floats at a time, of heads with a
// norm of their own: the weight, and the sums over a head.

#ifndef KERNELS_QK_NORM_ROPE_PACKED_FRAME_CUH_
#define KERNELS_QK_NORM_ROPE_PACKED_FRAME_CUH_

#include "kernels/common/reduce.cuh"
#include "kernels/common/rotary_packed.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_call.h"
#include "kernels/qk_norm_rope/qk_norm_rope_policy.h"

namespace fuseboard::qk_norm_rope {

// offset + weight at a thread's columns; ones without a weight.
template <int kLanes>
__device__ __forceinline__ void LoadPackedScale(const Side& side, float offset, int column,
                                                int second, float (&out)[2][kLanes]) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) out[j][i] = 1.0f;
    if (side.weight.data == nullptr) continue;
    LoadFloatsOf<kLanes>(side.weight.dtype, side.weight.data, column + j * second, out[j]);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) out[j][i] += offset;
  }
}

// Sums over the threads that share a head, kCount of them at a time.
template <int kCount>
__device__ __forceinline__ void SumHeads(int width_shift, float (&sums)[kCount]) {
#pragma unroll 1
  for (int offset = (1 << width_shift) / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (float& sum : sums) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  }
}

}  // namespace fuseboard::qk_norm_rope

#endif  // KERNELS_QK_NORM_ROPE_PACKED_FRAME_CUH_
