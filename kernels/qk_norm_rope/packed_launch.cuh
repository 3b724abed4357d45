// The host side of the kernels that rotate two 16-bit floats at a time: which calls take them, and
// their plan.

#ifndef KERNELS_QK_NORM_ROPE_PACKED_LAUNCH_CUH_
#define KERNELS_QK_NORM_ROPE_PACKED_LAUNCH_CUH_

#include <algorithm>

#include "kernels/qk_norm_rope/packed_frame.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_launch.cuh"

namespace fuseboard::qk_norm_rope {

using PackedKernel = void (*)(Call, PackedPlan);

// Tiles and positions are counted in 31 bits, also those past the end that a ring asks for.
inline constexpr int64_t kMaxPackedTiles = int64_t{1} << 29;

// Whether the values before the rotation and its products are rounded, and all is in whole runs.
inline bool TakesPacked(const Call& call) {
  return !call.norm.all_heads && call.norm.round_scaled && call.result_dtype == call.dtype &&
         call.rotation.positions <= kMaxPackedTiles &&
         IsPackable(call.rotation, call.dtype, 16 / BytesOf(call.dtype)) && InRuns(call);
}

// Whether the forward's weights can be multiplied by as they are.
inline bool HasPlainWeights(const Call& call) {
  return std::all_of(call.side, call.side + 2, [&](const Side& side) {
    return side.x.count == 0 || side.weight.data == nullptr ||
           (side.weight.dtype == call.dtype && call.norm.offset == 0.0f);
  });
}

// All of a plan but the number of blocks; false if the call does not fit the cut.
template <typename C>
bool CutPacked(const Call& call, PackedPlan* plan) {
  const Rotation& r = call.rotation;
  *plan = {};
  plan->slots = SlotsOf(r, 16 / BytesOf(call.dtype));
  plan->inverse_dim = 1.0f / static_cast<float>(r.dim);
  while ((1 << plan->width_shift) < plan->slots) ++plan->width_shift;
  for (int i = 0; i < 2; ++i) {
    const Side& side = call.side[i];
    PackedSide& cut = plan->side[i];
    // Of a side without rows too, whose blocks are none.
    const int64_t heads = std::max<int64_t>(side.x.count, 1);
    const Policy policy = SelectPolicy<C>(plan->slots, heads, r.positions, false);
    if (policy.width == 0) return false;
    const int64_t turns = CeilDiv(heads, int64_t{policy.head_lanes} * C::kUnroll);
    const Tiles tiles = TilesOf(policy.token_lanes, r.batch, r.positions);
    if (tiles.count * turns > kMaxPackedTiles) return false;
    cut.head_lanes = policy.head_lanes;
    cut.token_lanes = policy.token_lanes;
    cut.tokens_inside = HasTokensInside(call, side);
    cut.inner = ReciprocalOf(
        static_cast<uint32_t>(cut.tokens_inside ? policy.token_lanes : policy.head_lanes));
    cut.turns = ReciprocalOf(static_cast<uint32_t>(turns));
    cut.batch_tiles = ReciprocalOf(static_cast<uint32_t>(std::max<int64_t>(tiles.per_batch, 1)));
    cut.tiles = side.x.count == 0 ? 0 : static_cast<int32_t>(tiles.count * turns);
    cut.blocks = cut.tiles;
  }
  return true;
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
