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

// Whether rows are all heads of a position, as the row kernels take them: of 16-bit floats that are
// rounded before the rotation alone, with weights of their dtype and tables of f32, all in runs.
inline bool TakesRows(const Call& call) {
  const Rotation& r = call.rotation;
  const Norm& norm = call.norm;
  const int lanes = 16 / BytesOf(call.dtype);
  const bool weighted = std::all_of(call.side, call.side + 2, [&](const Side& side) {
    return side.x.count == 0 || (side.weight.data != nullptr && side.weight.dtype == call.dtype);
  });
  return norm.all_heads && norm.round_scaled && !norm.round_normed && norm.offset == 0.0f &&
         weighted && call.dtype != FB_F32 && call.result_dtype == call.dtype &&
         r.table_dtype == FB_F32 && !r.interleaved && 2 * r.pairs == r.dim &&
         r.pairs % lanes == 0 && r.positions <= kMaxPackedTiles && HasTableRuns(r, lanes) &&
         InRuns(call);
}

// All of a plan but the number of blocks; false if all heads do not fit a block of the cut.
template <typename C>
bool CutRows(const Call& call, PackedPlan* plan) {
  const Rotation& r = call.rotation;
  *plan = {};
  plan->slots = SlotsOf(r, 16 / BytesOf(call.dtype));
  while ((1 << plan->width_shift) < plan->slots) ++plan->width_shift;
  for (int i = 0; i < 2; ++i) {
    const int64_t heads = call.side[i].x.count;
    PackedSide& cut = plan->side[i];
    if (RowsOf(call, call.side[i]) == 0) continue;
    const Policy policy = SelectPolicy<C>(plan->slots, heads, r.positions, true);
    if (policy.width == 0) return false;
    const Tiles tiles = TilesOf(policy.token_lanes, r.batch, r.positions);
    if (tiles.count > kMaxPackedTiles) return false;
    cut.head_lanes = policy.head_lanes;
    cut.token_lanes = policy.token_lanes;
    cut.inner = ReciprocalOf(static_cast<uint32_t>(policy.head_lanes));
    cut.turns = ReciprocalOf(1);
    cut.batch_tiles = ReciprocalOf(static_cast<uint32_t>(tiles.per_batch));
    cut.tiles = cut.blocks = static_cast<int32_t>(tiles.count);
    cut.inverse_features = 1.0f / static_cast<float>(heads * r.dim);
  }
  return true;
}

// Shares out `resident` blocks of a persistent grid.
inline void SharePacked(const Call& call, int64_t resident, PackedPlan* plan) {
  const auto work = [&](int i) {
    return RowsOf(call, call.side[i]) * FeaturesOf(call, call.side[i]);
  };
  const auto tiles = [&](int side) { return int64_t{plan->side[side].tiles}; };
  const Blocks blocks = SplitBlocks(resident, {tiles(0), tiles(1)}, {work(0), work(1)});
  for (int i = 0; i < 2; ++i) plan->side[i].blocks = static_cast<int32_t>(blocks.side[i]);
}

}  // namespace fuseboard::qk_norm_rope

#endif  // KERNELS_QK_NORM_ROPE_PACKED_LAUNCH_CUH_
