// Rotary position embedding on the GPU: q and k, or their gradients, in one pass.
//
// Traffic: q and k read once and written once; the tables once per block that takes the position,
// from L2. Determinism: no sums, so trivially.

#ifndef KERNELS_ROPE_ROPE_CUH_
#define KERNELS_ROPE_ROPE_CUH_

#include "kernels/common/reciprocal.h"
#include "kernels/common/rotary.cuh"
#include "kernels/rope/rope_call.h"
#include "kernels/rope/rope_policy.h"

namespace fuseboard::rope {

// What the host found out about a call.
struct Plan {
  Tiles tiles;
  Reciprocal batch_tiles;  // tiles.per_batch, if the tiles are counted in 32 bits.
  int slots;
  bool table_runs;
  bool tokens_inside;  // Positions lie closer than heads: neighbouring threads take them.
};

// The heads of q, then those of k, at one position: where head `h` begins.
template <typename T>
struct HeadsAt {
  T* base[2];
  int64_t stride[2];
  int q_heads;

  __device__ __forceinline__ HeadsAt(const Heads& q, const Heads& k, int64_t batch,
                                     int64_t position)
      : base{At(q, batch, position), At(k, batch, position)},
        stride{q.head_stride, k.head_stride},
        q_heads(static_cast<int>(q.count)) {}

  // Selects and one product, as a branch would part the loads.
  __device__ __forceinline__ T* Head(int h) const {
    const bool is_k = h >= q_heads;
    return (is_k ? base[1] : base[0]) + (h - (is_k ? q_heads : 0)) * (is_k ? stride[1] : stride[0]);
  }

 private:
  __device__ __forceinline__ static T* At(const Heads& heads, int64_t batch, int64_t position) {
    return static_cast<T*>(heads.base) + batch * heads.batch_stride +
           position * heads.position_stride;
  }
};

// A slot's runs of kHeads heads, held as loaded.
template <typename T, int kLanes, int kHeads>
struct Runs {
  Lanes<T, kLanes> run[kHeads][2];
};

// The heads of a thread's turn: first, first + step, ... below `count`.
struct Turn {
  int first;
  int step;
  int count;
};

// Past the last head the last one is read again: no branch parts the loads.
template <typename T, int kLanes, int kHeads>
__device__ __forceinline__ void LoadRuns(const HeadsAt<const T>& in, const RotarySlot& slot,
                                         const Turn& turn, Runs<T, kLanes, kHeads>& out) {
#pragma unroll
  for (int u = 0; u < kHeads; ++u) {
    const T* x = in.Head(min(turn.first + u * turn.step, turn.count - 1));
    out.run[u][0] = LoadLanes<T, kLanes>(x + slot.first);
    out.run[u][1] = LoadLanes<T, kLanes>(x + slot.second);
  }
}

template <typename T, int kLanes>
__device__ __forceinline__ void StoreSlot(T* head, const RotarySlot& slot,
                                          const Lanes<T, kLanes>& first,
                                          const Lanes<T, kLanes>& second) {
  StoreLanes<T, kLanes>(head + slot.first, first);
  if (slot.has_second) StoreLanes<T, kLanes>(head + slot.second, second);
}

template <typename T, int kLanes, bool kWithin, bool kRound, int kHeads>
__device__ __forceinline__ void StoreRotated(const Runs<T, kLanes, kHeads>& in,
                                             const RotarySlot& slot,
                                             const RotaryFactors<kLanes>& factors, const Turn& turn,
                                             const HeadsAt<T>& out) {
#pragma unroll
  for (int u = 0; u < kHeads; ++u) {
    const int head = turn.first + u * turn.step;
    if (head >= turn.count) break;
    float x[2][kLanes];
    float y[2][kLanes];
#pragma unroll
    for (int j = 0; j < 2; ++j) Unpack<T, kLanes>(in.run[u][j], x[j]);
    RotateSlot<T, kWithin, kRound>(factors, x, y);
    Lanes<T, kLanes> second = PackFloats<T, kLanes>(y[1]);
    if (kWithin && !slot.rotates_second) second = in.run[u][1];
    StoreSlot<T, kLanes>(out.Head(head), slot, PackFloats<T, kLanes>(y[0]), second);
  }
}

// What is not rotated keeps its bits.
template <typename T, int kLanes, int kHeads>
__device__ __forceinline__ void StoreCopied(const Runs<T, kLanes, kHeads>& in,
                                            const RotarySlot& slot, const Turn& turn,
                                            const HeadsAt<T>& out) {
#pragma unroll
  for (int u = 0; u < kHeads; ++u) {
    const int head = turn.first + u * turn.step;
    if (head >= turn.count) break;
    StoreSlot<T, kLanes>(out.Head(head), slot, in.run[u][0], in.run[u][1]);
  }
}

// blockDim = (slots, head or token lanes, the other ones); see Policy.
// REQUIRES: heads in aligned runs of kLanes (HasRuns, IsAlignedHeads); kWithin if and only if they
// are interleaved and kLanes > 1.
template <typename T, int kLanes, bool kWithin, typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm)
    RopeKernel(const __grid_constant__ Call call, const __grid_constant__ Plan plan) {
  const Rotation& r = call.rotation;
  const int heads = static_cast<int>(call.in[0].count + call.in[1].count);
  const int token_lane = static_cast<int>(plan.tokens_inside ? threadIdx.y : threadIdx.z);
  const int token_lanes = static_cast<int>(plan.tokens_inside ? blockDim.y : blockDim.z);
  const int head_lane = static_cast<int>(plan.tokens_inside ? threadIdx.z : threadIdx.y);
  const int step = static_cast<int>(plan.tokens_inside ? blockDim.z : blockDim.y);
  const Tiles tiles = plan.tiles;
  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    const int64_t batch = tiles.count <= UINT32_MAX
                              ? plan.batch_tiles.Quotient(static_cast<uint32_t>(tile))
                              : tile / tiles.per_batch;
    const int64_t position = (tile - batch * tiles.per_batch) * token_lanes + token_lane;
    if (position >= r.positions) continue;
    const HeadsAt<const T> in(call.in[0], call.in[1], batch, position);
    const HeadsAt<T> out(call.out[0], call.out[1], batch, position);
    for (int s = static_cast<int>(threadIdx.x); s < plan.slots; s += static_cast<int>(blockDim.x)) {
      const RotarySlot slot = RotarySlotOf<kLanes, kWithin>(r, s);
      // The first heads are under way while the factors come from L2.
      Turn turn = {head_lane, step, heads};
      Runs<T, kLanes, C::kUnroll> runs;
      LoadRuns(in, slot, turn, runs);
      const auto factors =
          LoadRotaryFactors<T, kLanes, kWithin>(r, plan.table_runs, batch, position, slot);
      while (true) {
        if (!slot.rotates_first) {
          StoreCopied(runs, slot, turn, out);
        } else if (r.round_products) {
          StoreRotated<T, kLanes, kWithin, true>(runs, slot, factors, turn, out);
        } else {
          StoreRotated<T, kLanes, kWithin, false>(runs, slot, factors, turn, out);
        }
        turn.first += C::kUnroll * step;
        if (turn.first >= heads) break;
        LoadRuns(in, slot, turn, runs);
      }
    }
  }
}

}  // namespace fuseboard::rope

#endif  // KERNELS_ROPE_ROPE_CUH_
