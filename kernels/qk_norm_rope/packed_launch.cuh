// The host side of the kernels that rotate two 16-bit floats at a time: which calls take them, and
// their plan.

#ifndef KERNELS_QK_NORM_ROPE_PACKED_LAUNCH_CUH_
#define KERNELS_QK_NORM_ROPE_PACKED_LAUNCH_CUH_

#include <algorithm>

#include "kernels/qk_norm_rope/packed_frame.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_launch.cuh"

namespace fuseboard::qk_norm_rope {

using PackedKernel = void (*)(Call, PackedPlan);

// Whether the values before the rotation and its products are rounded, and all is in whole runs.
inline bool TakesPacked(const Call& call) {
  return !call.norm.all_heads && call.norm.round_scaled && call.result_dtype == call.dtype &&
         IsPackable(call.rotation, call.dtype, 16 / BytesOf(call.dtype)) && InRuns(call);
}

// Whether the forward's weights can be multiplied by as they are.
inline bool HasPlainWeights(const Call& call) {
  return std::all_of(call.side, call.side + 2, [&](const Side& side) {
    return side.x.count == 0 || side.weight.data == nullptr ||
           (side.weight.dtype == call.dtype && call.norm.offset == 0.0f);
  });
}

template <typename C>
bool CutPacked(const Call& call, PackedPlan* plan) {
  return CutPacked<C>(call.rotation, {call.side[0].x, call.side[1].x}, 16 / BytesOf(call.dtype),
                      plan);
}

// Shares out `resident` blocks of a persistent grid.
inline void SharePacked(const Call& call, int64_t resident, PackedPlan* plan) {
  const auto tiles = [&](int side) { return int64_t{plan->side[side].tiles}; };
  const Blocks blocks =
      SplitBlocks(resident, {tiles(0), tiles(1)}, {RowsOf(call, call.side[0]),
                                                   RowsOf(call, call.side[1])});
  for (int i = 0; i < 2; ++i) plan->side[i].blocks = static_cast<int32_t>(blocks.side[i]);
}

}  // namespace fuseboard::qk_norm_rope

#endif  // KERNELS_QK_NORM_ROPE_PACKED_LAUNCH_CUH_
