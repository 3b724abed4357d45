// What the kernels of qk_norm_rope share that rotate two 16-bit floats at a time: heads of their
// own norm and half rotation, whose products are rounded (IsPackable). Where a thread stands, its
// heads, and the sums over a head.
//
// A tile is what a block does at a time: `token_lanes` positions of one batch entry and, of each,
// C::kUnroll * head_lanes heads. A part of a warp shares a head.

#ifndef KERNELS_QK_NORM_ROPE_PACKED_FRAME_CUH_
#define KERNELS_QK_NORM_ROPE_PACKED_FRAME_CUH_

#include "kernels/common/reciprocal.h"
#include "kernels/common/reduce.cuh"
#include "kernels/common/rotary.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_call.h"

namespace fuseboard::qk_norm_rope {

// What the host found out about q or k.
struct PackedSide {
  int32_t head_lanes;
  int32_t token_lanes;
  Reciprocal inner;          // Groups of a block that follow one another: head or token lanes.
  Reciprocal turns;          // Tiles of a position's heads.
  Reciprocal batch_tiles;    // Of a batch entry.
  int32_t tiles;
  int32_t blocks;
  bool tokens_inside;  // Positions lie closer than heads: neighbouring threads take them.
  float* partials;     // Backward: [blocks, dim] sums for dweight, or NULL.
};

struct PackedPlan {
  PackedSide side[2];
  int32_t slots;  // Of a head.
  int32_t width_shift;  // Threads that share a head: a power of two.
  float inverse_dim;
  uint32_t zero;  // See Renewed.
};

// A thread's part of a head, and its place in the block.
struct PackedPlace {
  int head_lane;
  int token_lane;
  int column;
  bool has;  // Else it takes part in sums only, of nobody else.

  __device__ __forceinline__ PackedPlace(const PackedPlan& plan, const PackedSide& side,
                                         int lanes) {
    const auto thread = static_cast<uint32_t>(threadIdx.x);
    const uint32_t group = thread >> plan.width_shift;
    const auto x = static_cast<int>(thread - (group << plan.width_shift));
    const uint32_t beyond = side.inner.Quotient(group);
    const auto within = static_cast<int>(group - beyond * side.inner.value);
    head_lane = side.tokens_inside ? static_cast<int>(beyond) : within;
    token_lane = side.tokens_inside ? within : static_cast<int>(beyond);
    column = min(x, plan.slots - 1) * lanes;
    has = x < plan.slots && head_lane < side.head_lanes && token_lane < side.token_lanes;
  }
};

// A thread's position in a tile, past the last one the last one, and its first head there.
struct PackedToken {
  int batch;
  int position;
  int head;
  bool active;

  __device__ __forceinline__ PackedToken(const Rotation& r, const PackedSide& side,
                                         const PackedPlace& place, int unroll, int tile) {
    const uint32_t all = side.turns.Quotient(static_cast<uint32_t>(tile));
    const uint32_t turn = static_cast<uint32_t>(tile) - all * side.turns.value;
    const uint32_t entry = side.batch_tiles.Quotient(all);
    const uint32_t at = all - entry * side.batch_tiles.value;
    const auto last = static_cast<int>(r.positions) - 1;
    const int wanted = static_cast<int>(at) * side.token_lanes + place.token_lane;
    batch = static_cast<int>(entry);
    position = min(wanted, last);
    head = static_cast<int>(turn) * unroll * side.head_lanes + place.head_lane;
    active = place.has && wanted <= last;
  }
};

// A thread's heads of a tile: one every head_lanes.
template <typename T>
struct PackedHeads {
  T* first;  // Of the position: read where a thread has no head, so that no branch parts the loads.
  T* own;
  int64_t step;

  __device__ __forceinline__ PackedHeads(const Heads& heads, const PackedSide& side,
                                         const PackedToken& token, int column)
      : first(static_cast<T*>(heads.base) + token.batch * heads.batch_stride +
              token.position * heads.position_stride + column),
        own(first + token.head * heads.head_stride),
        step(side.head_lanes * heads.head_stride) {}

  __device__ __forceinline__ T* Head(int u, bool has) const {
    return has ? own + u * step : first;
  }
};

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
