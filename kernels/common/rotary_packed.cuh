// Rotation of heads of 16-bit floats, two at a time. Where each product is rounded to the dtype of
// the heads, which is that of the tables, they need not become floats: the same bits in a quarter
// of the instructions. For half rotation of whole heads.
//
// A block works for q or for k. A tile is what it does at a time: `token_lanes` positions of one
// batch entry and, of each, kUnroll * head_lanes heads, which the threads of a part of a warp
// share. Kernels of one tile per block have no loop, which would cost registers.

#ifndef KERNELS_COMMON_ROTARY_PACKED_CUH_
#define KERNELS_COMMON_ROTARY_PACKED_CUH_

#include <algorithm>
#include <type_traits>

#include "kernels/common/dispatch.h"
#include "kernels/common/reciprocal.h"
#include "kernels/common/rotary.cuh"
#include "kernels/common/rotary_cut.h"

namespace fuseboard {

// What the host found out about q or k.
struct PackedSide {
  int32_t head_lanes;
  int32_t token_lanes;
  Reciprocal inner;        // Groups of a block that follow one another: head or token lanes.
  Reciprocal turns;        // Tiles of a position's heads.
  Reciprocal batch_tiles;  // Of a batch entry.
  int32_t tiles;
  int32_t blocks;
  bool tokens_inside;  // Positions lie closer than heads: neighbouring threads take them.
  // Of qk_norm_rope.
  float inverse_features;  // Of a row.
  float* partials;         // Backward: [blocks, features] sums for dweight, or NULL.
};

struct PackedPlan {
  PackedSide side[2];
  int32_t slots;        // Of a head.
  int32_t width_shift;  // Threads that share a head: a power of two.
  uint32_t zero;        // See Renewed.

  int64_t blocks() const { return int64_t{side[0].blocks} + side[1].blocks; }
};

// ---- On the host ----

// Calls fn(TypeTag<T>{}) for the T of 16 bits that `dtype` names.
template <typename Fn>
auto DispatchPacked(int32_t dtype, Fn&& fn) {
  return dtype == FB_F16 ? fn(TypeTag<Half>{}) : fn(TypeTag<BFloat16>{});
}

// Tiles and positions are counted in 31 bits, also those past the end that a ring asks for.
inline constexpr int64_t kMaxPackedTiles = int64_t{1} << 29;

// Whether a call's heads may be rotated that way if they are made of runs of `lanes` elements.
inline bool IsPackable(const Rotation& r, int32_t dtype, int lanes) {
  return dtype != FB_F32 && r.table_dtype == dtype && r.round_products && !r.interleaved &&
         2 * r.pairs == r.dim && r.positions <= kMaxPackedTiles && r.pairs % lanes == 0 &&
         HasTableRuns(r, lanes);
}

// All of a plan; false if the call does not fit the cut. `heads`: of q and of k.
template <typename C>
bool CutPacked(const Rotation& r, const Heads (&heads)[2], int lanes, PackedPlan* plan) {
  *plan = {};
  plan->slots = SlotsOf(r, lanes);
  while ((1 << plan->width_shift) < plan->slots) ++plan->width_shift;
  for (int i = 0; i < 2; ++i) {
    PackedSide& cut = plan->side[i];
    // Of a side without heads too, which has no blocks.
    const HeadCut lanes_of =
        CutHeads<C>(plan->slots, std::max<int64_t>(heads[i].count, 1), r.positions);
    if (lanes_of.width == 0) return false;
    const int64_t per_batch = std::max<int64_t>(CeilDiv(r.positions, lanes_of.token_lanes), 1);
    if (r.batch * per_batch * lanes_of.turns > kMaxPackedTiles) return false;
    cut.head_lanes = lanes_of.head_lanes;
    cut.token_lanes = lanes_of.token_lanes;
    cut.tokens_inside = heads[i].position_stride < heads[i].head_stride;
    cut.inner =
        ReciprocalOf(static_cast<uint32_t>(cut.tokens_inside ? cut.token_lanes : cut.head_lanes));
    cut.turns = ReciprocalOf(static_cast<uint32_t>(lanes_of.turns));
    cut.batch_tiles = ReciprocalOf(static_cast<uint32_t>(per_batch));
    const bool empty = heads[i].count == 0 || r.positions == 0;
    cut.tiles = empty ? 0 : static_cast<int32_t>(r.batch * per_batch * lanes_of.turns);
    cut.blocks = cut.tiles;
    cut.inverse_features = 1.0f / static_cast<float>(r.dim);
  }
  return true;
}

// ---- On the device ----

// Runs work(integral_constant<side>, the block's number there): code for either side, so that what
// the host found out about it comes straight from the constants.
template <typename Work>
__device__ __forceinline__ void ForPackedSide(const PackedPlan& plan, const Work& work) {
  const auto block = static_cast<int>(blockIdx.x);
  if (block < plan.side[0].blocks) {
    work(std::integral_constant<int, 0>(), block);
  } else {
    work(std::integral_constant<int, 1>(), block - plan.side[0].blocks);
  }
}

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

// A thread's position in a tile and its first head there: those of another thread if there is none
// left, so that they may be read, and then not active.
struct PackedToken {
  int batch;
  int position;
  int head;
  bool active;

  PackedToken() = default;
  __device__ __forceinline__ PackedToken(const Rotation& r, const PackedSide& side, int64_t count,
                                         const PackedPlace& place, int unroll, int tile) {
    const uint32_t all = side.turns.Quotient(static_cast<uint32_t>(tile));
    const uint32_t turn = static_cast<uint32_t>(tile) - all * side.turns.value;
    const uint32_t entry = side.batch_tiles.Quotient(all);
    const uint32_t at = all - entry * side.batch_tiles.value;
    const auto last = static_cast<int>(r.positions) - 1;
    const auto last_head = static_cast<int>(count) - 1;
    const int wanted = static_cast<int>(at) * side.token_lanes + place.token_lane;
    const int wanted_head = static_cast<int>(turn) * unroll * side.head_lanes + place.head_lane;
    batch = static_cast<int>(entry);
    position = min(wanted, last);
    head = min(wanted_head, last_head);
    active = place.has && wanted <= last && wanted_head <= last_head;
  }
};

// A thread's heads of a tile: one every head_lanes. `count`: how many there are, at least 1.
template <typename T>
struct PackedHeads {
  T* first;
  int64_t step;

  __device__ __forceinline__ PackedHeads(const Heads& heads, const PackedSide& side,
                                         const PackedToken& token, int column)
      : first(static_cast<T*>(heads.base) + token.batch * heads.batch_stride +
              token.position * heads.position_stride + token.head * heads.head_stride + column),
        step(side.head_lanes * heads.head_stride) {}

  __device__ __forceinline__ T* Head(int u) const { return first + u * step; }
  // Without that head the first one, so that no branch parts the loads.
  __device__ __forceinline__ T* HeadOr(int u, bool has) const { return has ? Head(u) : first; }
};

template <typename T, int kLanes>
struct PackedFactors {
  Lanes<T, kLanes> cos[2];
  Lanes<T, kLanes> sin[2];  // With the sign of the rotation.
};

// For the pairs from `column` on. REQUIRES: IsPackable.
template <typename T, int kLanes>
__device__ __forceinline__ PackedFactors<T, kLanes> LoadPackedFactors(const Rotation& r,
                                                                      int64_t batch,
                                                                      int64_t position,
                                                                      int column) {
  const auto row = [&](const FactorTable& table) {
    return static_cast<const T*>(table.base) + batch * table.batch_stride +
           position * table.position_stride + RotaryStream(r, column) * table.stream_stride +
           column;
  };
  const T* cos = row(r.cos);
  const T* sin = row(r.sin);
  const int second = r.per_pair ? 0 : r.pairs;
  PackedFactors<T, kLanes> f;
  f.cos[0] = LoadLanes<T, kLanes>(cos);
  f.cos[1] = LoadLanes<T, kLanes>(cos + second);
  // The transposed map takes the other element's sine, with the other sign.
  f.sin[0] = LoadLanes<T, kLanes>(sin + (r.inverse ? second : 0));
  f.sin[1] = LoadLanes<T, kLanes>(sin + (r.inverse ? 0 : second));
  constexpr uint32_t kSigns = 0x80008000u;
#pragma unroll
  for (int i = 0; i < Lanes<T, kLanes>::kWords; ++i) {
    f.sin[0].word[i] ^= r.inverse ? 0 : kSigns;
    f.sin[1].word[i] ^= r.inverse ? kSigns : 0;
  }
  return f;
}

// Both runs of a slot, in place.
template <typename T, int kLanes>
__device__ __forceinline__ void RotatePacked(const PackedFactors<T, kLanes>& f,
                                             Lanes<T, kLanes> (&x)[2]) {
#pragma unroll
  for (int i = 0; i < Lanes<T, kLanes>::kWords; ++i) {
    const uint32_t a = x[0].word[i];
    const uint32_t b = x[1].word[i];
    x[0].word[i] =
        AddWords<T>(MultiplyWords<T>(a, f.cos[0].word[i]), MultiplyWords<T>(b, f.sin[0].word[i]));
    x[1].word[i] =
        AddWords<T>(MultiplyWords<T>(b, f.cos[1].word[i]), MultiplyWords<T>(a, f.sin[1].word[i]));
  }
}

}  // namespace fuseboard

#endif  // KERNELS_COMMON_ROTARY_PACKED_CUH_
