// What forward and backward of qk_norm_rope share on the GPU: where a thread stands, the runs of
// its heads, its weight, and the sums over a row.

#ifndef KERNELS_QK_NORM_ROPE_NORM_ROPE_FRAME_CUH_
#define KERNELS_QK_NORM_ROPE_NORM_ROPE_FRAME_CUH_

#include "kernels/common/reciprocal.h"
#include "kernels/common/reduce.cuh"
#include "kernels/common/rotary.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope_call.h"
#include "kernels/qk_norm_rope/qk_norm_rope_policy.h"

namespace fuseboard::qk_norm_rope {

// What the host found out about q or k.
struct SidePlan {
  Policy policy;
  Tiles tiles;
  Reciprocal inner;      // Groups of a block that follow one another: head or token lanes.
  Reciprocal per_batch;  // tiles.per_batch, if the tiles are counted in 32 bits.
  int64_t blocks;
  int64_t rows;
  int64_t features;    // Elements of a row.
  float* partials;     // Backward: [blocks, features] sums for dweight, or NULL.
  bool tokens_inside;  // Positions lie closer than heads: neighbouring threads take them.
};

struct Plan {
  SidePlan side[2];
  int slots;  // Of a head.
  bool table_runs;
  uint32_t zero;  // See Runs::Repack.
};

// The side of this block, and which of its blocks it is.
struct BlockAt {
  int side;
  int64_t index;

  __device__ __forceinline__ explicit BlockAt(const Plan& plan)
      : side(blockIdx.x >= plan.side[0].blocks ? 1 : 0),
        index(blockIdx.x - (side == 1 ? plan.side[0].blocks : 0)) {}
};

// A thread's part of a head and its place in the block.
struct Place {
  int head_lane;
  int token_lane;
  bool idle;        // Takes part in sums over rows, of nobody else.
  RotarySlot slot;  // That of another thread if there is none left.
  bool has[2];      // Which runs of the slot are this thread's.
};

template <int kLanes, bool kWithin>
__device__ __forceinline__ Place PlaceOf(const Rotation& r, const SidePlan& plan, int slots) {
  const Policy& p = plan.policy;
  const int shift = __ffs(p.width) - 1;  // No division: the width is a power of two.
  const int x = static_cast<int>(threadIdx.x) & (p.width - 1);
  const auto group = static_cast<uint32_t>(threadIdx.x) >> shift;
  const auto beyond = static_cast<int>(plan.inner.Quotient(group));
  const int within = static_cast<int>(group) - beyond * static_cast<int>(plan.inner.value);
  Place place = {};
  place.head_lane = plan.tokens_inside ? beyond : within;
  place.token_lane = plan.tokens_inside ? within : beyond;
  place.idle = place.head_lane >= p.head_lanes || place.token_lane >= p.token_lanes;
  place.slot = RotarySlotOf<kLanes, kWithin>(r, min(x, slots - 1));
  place.has[0] = x < slots;
  place.has[1] = x < slots && place.slot.has_second;
  return place;
}

// A thread's position in a tile; past the last one the last one, and not active.
struct Token {
  int64_t batch;
  int64_t position;
  bool active;

  __device__ __forceinline__ Token(const Rotation& r, const SidePlan& plan, const Place& place,
                                   int64_t tile) {
    const Tiles& tiles = plan.tiles;
    batch = tiles.count <= UINT32_MAX ? plan.per_batch.Quotient(static_cast<uint32_t>(tile))
                                      : tile / tiles.per_batch;
    const int64_t at = (tile - batch * tiles.per_batch) * plan.policy.token_lanes;
    position = min(at + place.token_lane, r.positions - 1);
    active = !place.idle && at + place.token_lane < r.positions;
  }
};

template <typename T>
__device__ __forceinline__ T* PositionOf(const Heads& heads, const Token& token) {
  return static_cast<T*>(heads.base) + token.batch * heads.batch_stride +
         token.position * heads.position_stride;
}

// The heads of a thread's turn: first, first + step, ... below `count`.
struct Turn {
  int first;
  int step;
  int count;

  __device__ __forceinline__ int Head(int u) const { return first + u * step; }
  __device__ __forceinline__ bool Has(int u) const { return Head(u) < count; }
};

// A slot's runs of kHeads heads, held as loaded.
template <typename T, int kLanes, int kHeads>
struct Runs {
  Lanes<T, kLanes> run[kHeads][2];

  // Past the last head the last one is read again: no branch parts the loads.
  __device__ __forceinline__ void Load(const T* position, int64_t head_stride,
                                       const RotarySlot& slot, const Turn& turn) {
#pragma unroll
    for (int u = 0; u < kHeads; ++u) {
      const T* x = position + min(turn.Head(u), turn.count - 1) * head_stride;
      run[u][0] = LoadLanes<T, kLanes>(x + slot.first);
      run[u][1] = LoadLanes<T, kLanes>(x + slot.second);
    }
  }

  __device__ __forceinline__ void Get(int u, float (&out)[2][kLanes]) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) Unpack<T, kLanes>(run[u][j], out[j]);
  }

  __device__ __forceinline__ void Set(int u, const float (&values)[2][kLanes]) {
#pragma unroll
    for (int j = 0; j < 2; ++j) run[u][j] = PackFloats<T, kLanes>(values[j]);
  }

  // From here on Get computes the floats again: kept, they take twice the registers of the runs.
  // `zero` is 0, which the compiler must not know.
  __device__ __forceinline__ void Repack(uint32_t zero) {
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int u = 0; u < kHeads; ++u) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
          for (int i = 0; i < Lanes<T, kLanes>::kWords; ++i) run[u][j].word[i] ^= zero;
        }
      }
    }
  }
};

template <typename T, int kLanes>
__device__ __forceinline__ void StoreRuns(T* head, const Place& place,
                                          const float (&values)[2][kLanes]) {
  if (place.has[0]) StoreFloats<T, kLanes>(head + place.slot.first, values[0]);
  if (place.has[1]) StoreFloats<T, kLanes>(head + place.slot.second, values[1]);
}

// offset + weight at a slot of the features from `begin` on; ones without a weight.
template <int kLanes>
__device__ __forceinline__ void LoadScale(const FbTensor& weight, float offset, int64_t begin,
                                          const RotarySlot& slot, float (&out)[2][kLanes]) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) out[j][i] = 1.0f;
    if (weight.data == nullptr) continue;
    const int column = j == 0 ? slot.first : slot.second;
    LoadFloatsOf<kLanes>(weight.dtype, weight.data, begin + column, out[j]);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) out[j][i] += offset;
  }
}

// What is not rotated keeps its value. T: what products are rounded to.
template <typename T, bool kWithin, int kLanes>
__device__ __forceinline__ void Rotate(const Rotation& r, const RotarySlot& slot,
                                       const RotaryFactors<kLanes>& factors,
                                       float (&values)[2][kLanes]) {
  if (!slot.rotates_first) return;
  float turned[2][kLanes];
  if (r.round_products) {
    RotateSlot<T, kWithin, true>(factors, values, turned);
  } else {
    RotateSlot<T, kWithin, false>(factors, values, turned);
  }
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    values[0][i] = turned[0][i];
    if (!kWithin || slot.rotates_second) values[1][i] = turned[1][i];
  }
}

template <typename T, int kLanes>
__device__ __forceinline__ void RoundRuns(float (&values)[2][kLanes]) {
#pragma unroll
  for (int j = 0; j < 2; ++j) RoundFloats<T, kLanes>(values[j]);
}

// ---- Sums over rows, in an order that the policy fixes. All threads of the block call them. ----

// kValues sums at a time. All heads: shared memory follows GroupReduce's rule of two.
template <int kValues>
struct RowSums {
  float value[kValues];
};

template <int kValues>
__device__ __forceinline__ RowSums<kValues> WarpSums(RowSums<kValues> sums, int width) {
#pragma unroll
  for (int i = 0; i < kValues; ++i) sums.value[i] = WarpReduce(sums.value[i], Sum(), width);
  return sums;
}

// Over the `threads` neighbouring threads of a row: part of a warp, or whole warps.
template <int kValues>
__device__ __forceinline__ RowSums<kValues> GroupSums(RowSums<kValues> sums, int threads,
                                                      RowSums<kValues>* shared) {
  if (threads <= kWarpThreads) return WarpSums(sums, threads);
  sums = WarpSums(sums, kWarpThreads);
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int warps = threads / kWarpThreads;
  if (lane == 0) shared[warp] = sums;
  __syncthreads();
  // Warps that are left over at the end of the block have no row and read their own sum.
  const int first = warp / warps * warps;
  const bool reads = lane < warps && first + lane < static_cast<int>(blockDim.x) / kWarpThreads;
  const RowSums<kValues> other = shared[reads ? first + lane : warp];
#pragma unroll
  for (int i = 0; i < kValues; ++i) sums.value[i] = reads ? other.value[i] : 0.0f;
  return WarpSums(sums, kWarpThreads);
}

// The sums of the rows of a turn's heads: one each, or one of all.
template <bool kAllHeads, int kHeads, int kValues>
__device__ __forceinline__ void SumRows(const Policy& policy, RowSums<kValues> (&sums)[kHeads],
                                        RowSums<kValues>* shared) {
  if constexpr (kAllHeads) {
    RowSums<kValues> total = sums[0];
#pragma unroll
    for (int u = 1; u < kHeads; ++u) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) total.value[i] += sums[u].value[i];
    }
    total = GroupSums(total, policy.width * policy.head_lanes, shared);
#pragma unroll
    for (int u = 0; u < kHeads; ++u) sums[u] = total;
  } else {
#pragma unroll
    for (int u = 0; u < kHeads; ++u) sums[u] = WarpSums(sums[u], policy.width);
  }
}

}  // namespace fuseboard::qk_norm_rope

#endif  // KERNELS_QK_NORM_ROPE_NORM_ROPE_FRAME_CUH_
