// What the kernels for wide rows share. Rows go through a ring in shared memory. What a thread has
// of the sums of the next row is there before this row is written, and is sent after that: the sums
// over a warp, and the exchange between blocks, happen while there is other work.

#ifndef KERNELS_RMS_NORM_WIDE_RING_CUH_
#define KERNELS_RMS_NORM_WIDE_RING_CUH_

#include "kernels/common/ptx_bulk.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/rms_norm/rms_norm_policy.h"

namespace fuseboard::rms_norm {

// Who shares a row: a warp; warps of a block, threadIdx.x of it; the blocks of a cluster.
enum class RowShare { kWarp, kBlock, kCluster };

// Sums of one or two floats over those who share a row. The last warp of a block to bring its part
// adds up the parts in the order of the warps and sends the sum to each block of the cluster. A
// warp brings a turn when it has the sums of the one before: turns that are kTurns apart never
// meet.
template <int kValues, RowShare kShare>
struct WideExchange {
  static constexpr int kTurns = 4;
  static constexpr int kRows = kShare == RowShare::kBlock ? kWideRows : 1;
  static constexpr int kBlocks = kShare == RowShare::kCluster ? kWideCluster : 1;
  uint64_t filled[kTurns][kRows];
  float2 of_warp[kTurns][kWideWarps];
  float2 of_block[kTurns][kRows][kBlocks];
  uint32_t arrived[kTurns][kRows];

  // By all threads of the cluster, before the first turn. What blocks that there are not sent is 0.
  __device__ __forceinline__ void Begin() {
    const uint32_t thread = threadIdx.x + threadIdx.y * blockDim.x;
    float2* const sent = &of_block[0][0][0];
    for (uint32_t i = thread; i < kTurns * kRows * kBlocks; i += blockDim.x) sent[i] = {};
    if (thread < kTurns * kRows) (&arrived[0][0])[thread] = 0;
    if (thread == 0) {
#pragma unroll
      for (int i = 0; i < kTurns * kRows; ++i) BarrierInit(&filled[0][0] + i, 1);
      FenceBarrierInit();
    }
    __syncthreads();
    if constexpr (kShare == RowShare::kCluster) {
      ClusterArrive();
      ClusterWait();
    }
  }

  // Each warp brings its part of the sums, from OverWarp. What it gets is for Receive.
  __device__ __forceinline__ float2 Send(uint32_t turn, float2 part) {
    if constexpr (kShare == RowShare::kWarp) return part;
    const uint32_t lane = threadIdx.x % kWarpThreads;
    const uint32_t warps = blockDim.x / kWarpThreads;
    const uint32_t at = turn % kTurns;
    const uint32_t row = kRows == 1 ? 0 : threadIdx.y;
    float2* const of_row = of_warp[at] + row * warps;
    uint32_t others = 0;
    if (lane == 0) {
      of_row[threadIdx.x / kWarpThreads] = part;
      others = CountArrival(&arrived[at][row]);
    }
    others = __shfl_sync(0xffffffffu, others, 0);
    if (others + 1 < warps) return {};
    part = OverWarp(lane < warps ? of_row[lane] : float2{});
    if (lane == 0) arrived[at][row] = 0;
    if constexpr (kShare == RowShare::kCluster) {
      const uint32_t blocks = ClusterSize();
      if (lane == 0) BarrierArriveExpecting(&filled[at][row], blocks * sizeof(float2));
      __syncwarp();
      if (lane < blocks) {
        StoreAsync8(ClusterAddress(&of_block[at][row][ClusterRank()], lane),
                    ClusterAddress(&filled[at][row], lane), __float_as_uint(part.x),
                    __float_as_uint(part.y));
      }
    } else if (lane == 0) {
      of_block[at][row][0] = part;
      BarrierArrive(&filled[at][row]);
    }
    return {};
  }

  // The sums of a turn, alike in all threads of the row. `sent` is what Send gave for it.
  __device__ __forceinline__ float2 Receive(uint32_t turn, float2 sent) {
    if constexpr (kShare == RowShare::kWarp) return sent;
    const uint32_t at = turn % kTurns;
    const uint32_t row = kRows == 1 ? 0 : threadIdx.y;
    BarrierWait(&filled[at][row], turn / kTurns % 2);
    if constexpr (kShare == RowShare::kBlock) return of_block[at][row][0];
    const uint32_t lane = threadIdx.x % kWarpThreads;
    if constexpr (kValues == 1) {
      const float of_lane = of_block[at][row][lane % kBlocks].x;
      return {WarpReduce(of_lane, Sum(), kBlocks), 0.0f};
    }
    // One of the two values to every other lane.
    float own = reinterpret_cast<const float*>(of_block[at][row])[lane % (2 * kBlocks)];
#pragma unroll
    for (int offset = kBlocks; offset > 1; offset /= 2) {
      own += __shfl_xor_sync(0xffffffffu, own, offset);
    }
    const float other = __shfl_xor_sync(0xffffffffu, own, 1);
    return lane % 2 == 0 ? make_float2(own, other) : make_float2(other, own);
  }

  // The sums over a warp. Two values cost little more than one: after the first exchange half of
  // the lanes go on with one of them, half with the other.
  __device__ __forceinline__ static float2 OverWarp(float2 value) {
    if constexpr (kValues == 1) return {WarpReduce(value.x, Sum()), 0.0f};
    const bool upper = threadIdx.x % kWarpThreads >= 16;
    float own = upper ? value.y : value.x;
    own += __shfl_xor_sync(0xffffffffu, upper ? value.x : value.y, 16);
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) own += __shfl_xor_sync(0xffffffffu, own, offset);
    const float other = __shfl_xor_sync(0xffffffffu, own, 16);
    return upper ? make_float2(other, own) : make_float2(own, other);
  }
};

// Where a thread's packs are: in the row, kWidePacks of them, 32 packs apart; and in shared memory,
// where a stage has kSlots packs of a thread, side by side with its neighbours' (no bank
// conflicts). A thread touches no other's, so that the ring needs no barrier.
template <typename X, int kSlots>
struct WideRing {
  static constexpr int kLanes = kPackLanes<X>;
  static constexpr int kStride = kWarpThreads * kLanes;  // Elements between two packs of a thread.

  uint4* base;  // Of this thread.
  int stage_packs;
  int first;  // Of this thread, in the row.
  int left;   // Packs of the row from there on.

  __device__ __forceinline__ WideRing(uint4* shared, int64_t hidden, uint32_t rank) {
    const uint32_t warp = threadIdx.x / kWarpThreads;
    const uint32_t lane = threadIdx.x % kWarpThreads;
    const uint32_t warps = blockDim.x / kWarpThreads;
    base = shared + (threadIdx.y * warps + warp) * (kSlots * kWarpThreads) + lane;
    stage_packs = static_cast<int>(blockDim.x * blockDim.y) * kSlots;
    first = static_cast<int>((rank * warps + warp) * (kWidePacks * kWarpThreads) + lane);
    left = static_cast<int>(hidden / kLanes) - first;
  }
  __device__ __forceinline__ bool Has(int p) const { return p * kWarpThreads < left; }
  __device__ __forceinline__ int Column() const { return first * kLanes; }

  // After the stages: packs that stay, for all rows of the block, kWidePacks in each part.
  __device__ __forceinline__ uint4* Kept(uint4* shared, int stages, int part) const {
    const uint32_t warp = threadIdx.x / kWarpThreads;
    return shared + stages * stage_packs + part * static_cast<int>(blockDim.x) * kWidePacks +
           warp * (kWidePacks * kWarpThreads) + threadIdx.x % kWarpThreads;
  }
  __device__ __forceinline__ static Lanes<X, kLanes> Load(const uint4* at, int slot) {
    return LoadLanes<X, kLanes>(reinterpret_cast<const X*>(at + slot * kWarpThreads));
  }
  __device__ __forceinline__ static void Store(uint4* at, int slot, const Lanes<X, kLanes>& pack) {
    StoreLanes<X, kLanes>(reinterpret_cast<X*>(at + slot * kWarpThreads), pack);
  }
  // Pack `p` of this thread to its place behind `to`, where its first one goes, if the row has it.
  __device__ __forceinline__ void StoreRow(X* to, int p, const Lanes<X, kLanes>& pack) const {
    StoreGlobal16If(Has(p), to + p * kStride, pack.word[0], pack.word[1], pack.word[2],
                    pack.word[3]);
  }
  // Starts copying the packs of a row, from this thread's first on, into slots from `slot` on.
  __device__ __forceinline__ void Fetch(uint4* at, int slot, const X* from) const {
#pragma unroll
    for (int p = 0; p < kWidePacks; ++p) {
      if (Has(p)) CopyAsync16(at + (slot + p) * kWarpThreads, from + p * kStride);
    }
  }
  // A vector of the row's length, from this thread's first pack on, or `word` if there is none.
  // Others see it after a barrier.
  __device__ __forceinline__ void Keep(uint4* at, const X* from, bool has, uint32_t word) const {
    if (threadIdx.y > 0) return;
#pragma unroll
    for (int p = 0; p < kWidePacks; ++p) {
      at[p * kWarpThreads] = make_uint4(word, word, word, word);
      if (has && Has(p)) at[p * kWarpThreads] = *reinterpret_cast<const uint4*>(from + p * kStride);
    }
  }
  // Zeros in what no row fills, so that sums need not ask: packs beyond the row, and slots from
  // `filled` on.
  __device__ __forceinline__ void ClearStages(int stages, int filled) const {
    if (Has(kWidePacks - 1) && filled == kSlots) return;
    for (int stage = 0; stage < stages; ++stage) {
      for (int slot = 0; slot < kSlots; ++slot) {
        if (slot < filled && Has(slot % kWidePacks)) continue;
        base[stage * stage_packs + slot * kWarpThreads] = {};
      }
    }
  }
};

// Waits until at most `pending` of this thread's committed rows are on their way.
__device__ __forceinline__ void WaitForRows(int pending) {
  if (pending <= 0) {
    CopyAsyncWait<0>();
  } else if (pending == 1) {
    CopyAsyncWait<1>();
  } else {
    CopyAsyncWait<2>();
  }
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_WIDE_RING_CUH_
