// What the host sides of forward and backward share: which kernels a call may take, and its plan.

#ifndef KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_LAUNCH_CUH_
#define KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_LAUNCH_CUH_

#include <algorithm>

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.cuh"
#include "kernels/qk_norm_rope/norm_rope_frame.cuh"

namespace fuseboard::qk_norm_rope {

using Kernel = void (*)(Call, Plan);

inline int BytesOf(int32_t dtype) { return dtype == FB_F32 ? 4 : 2; }

// Blocks are counted in 31 bits, of both sides together; more tiles than this are looped over.
inline constexpr int64_t kMaxBlocks = int64_t{1} << 29;

// Whether all heads and weights of a call are made of aligned runs of 16 bytes of x. For wider
// results the same distances are asked for, in elements.
inline bool InRuns(const Call& call) {
  const Rotation& r = call.rotation;
  const int bytes = BytesOf(call.dtype);
  const auto aligned = [&](const Heads& heads) {
    return heads.base == nullptr || IsAlignedHeads(heads, r, bytes, 16);
  };
  return HasRuns(r, 16 / bytes) && std::all_of(call.side, call.side + 2, [&](const Side& side) {
           return side.x.count == 0 ||
                  (aligned(side.x) && aligned(side.upstream) && aligned(side.out) &&
                   reinterpret_cast<uintptr_t>(side.weight.data) % 16 == 0);
         });
}

// Positions lie closer than heads, in x or, in the backward, in whatever was made like it.
inline bool HasTokensInside(const Call& call, const Side& side) {
  return !call.norm.all_heads && side.x.position_stride < side.x.head_stride;
}

// The part of a plan that the cut decides; false if the call does not fit it.
template <typename C>
bool CutSides(const Call& call, Plan* plan) {
  const Rotation& r = call.rotation;
  for (int i = 0; i < 2; ++i) {
    const Side& side = call.side[i];
    SidePlan& cut = plan->side[i];
    if (cut.rows == 0) continue;
    cut.policy = SelectPolicy<C>(plan->slots, side.x.count, r.positions, call.norm.all_heads);
    if (cut.policy.width == 0) return false;
    cut.tiles = TilesOf(cut.policy.token_lanes, r.batch, r.positions);
    cut.tokens_inside = HasTokensInside(call, side);
    cut.inner = ReciprocalOf(
        static_cast<uint32_t>(cut.tokens_inside ? cut.policy.token_lanes : cut.policy.head_lanes));
    if (cut.tiles.count <= UINT32_MAX) {
      cut.per_batch = ReciprocalOf(static_cast<uint32_t>(cut.tiles.per_batch));
    }
  }
  return true;
}

inline Plan PlanOf(const Call& call, int lanes) {
  Plan plan = {};
  plan.slots = SlotsOf(call.rotation, lanes);
  plan.table_runs = HasTableRuns(call.rotation, lanes);
  for (int i = 0; i < 2; ++i) {
    plan.side[i].rows = RowsOf(call, call.side[i]);
    plan.side[i].features = FeaturesOf(call, call.side[i]);
  }
  return plan;
}

// Both sides of a looping kernel have one shape of block.
inline LoopingPolicy LoopingPolicyOf(const Plan& plan) {
  return SelectLooping(std::max(plan.side[0].features, plan.side[1].features));
}

// Fills `blocks` of both sides: `resident` of them in proportion to the work.
inline void ShareBlocks(const int64_t (&tiles)[2], int64_t resident, Plan* plan) {
  const auto work = [&](int side) { return plan->side[side].rows * plan->side[side].features; };
  const Blocks blocks = SplitBlocks(resident, tiles, {work(0), work(1)});
  for (int i = 0; i < 2; ++i) plan->side[i].blocks = blocks.side[i];
}

// Calls fn(TypeTag<X>{}, TypeTag<Y>{}) for the dtype of x and that of the results, which is the
// same or f32.
template <typename Fn>
Kernel DispatchTypes(int32_t dtype, bool same_result, Fn&& fn) {
  return DispatchFloat(dtype, [&](auto tag) -> Kernel {
    return same_result ? fn(tag, tag) : fn(tag, TypeTag<float>{});
  });
}

}  // namespace fuseboard::qk_norm_rope

#endif  // KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_LAUNCH_CUH_
