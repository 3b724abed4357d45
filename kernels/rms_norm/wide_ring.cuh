// What the kernels for wide rows share. A block owns the same columns of all rows that its cluster
// takes, its slice of them. Slices go through a ring in shared memory, in pieces of one slot each,
// and the blocks of the cluster tell one another what they have of a row's sums. A producer thread
// starts bulk copies into free slots; summing warps add up a piece; gathering warps bring together
// the sums of a row; writing warps write a piece and free its slot. They meet at barriers of the
// slots and of the rows alone: while the sums of a row are on their way, others are loaded, added
// up and written.

#ifndef KERNELS_RMS_NORM_WIDE_RING_CUH_
#define KERNELS_RMS_NORM_WIDE_RING_CUH_

#include "kernels/common/ptx_bulk.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/rms_norm/wide_policy.h"

namespace fuseboard::rms_norm {

// Warps of a block, and what threads have of a piece, in packs.
template <int kWritersOf, int kSummersOf, int kGatherersOf>
struct WideRoles {
  static constexpr int kWriters = kWritersOf;
  static constexpr int kSummers = kSummersOf;
  static constexpr int kGatherers = kGatherersOf;
  static constexpr int kThreads = kWarpThreads * (kWriters + kSummers + kGatherers + 1);
};

inline constexpr int kWideTurns = 16;  // Rows of which a block holds the sums.
static_assert(kWideTurns >= 2 * kWideSlots);

// The columns of block `rank`, in packs, and their pieces.
struct WideSlice {
  int first;
  int packs;
  int piece_packs;

  __device__ __forceinline__ WideSlice(const WideCut& cut, int row_packs, int rank) {
    first = (rank * cut.quotient + min(rank, cut.rest)) * kWideUnit;
    packs = min((cut.quotient + (rank < cut.rest ? 1 : 0)) * kWideUnit, row_packs - first);
    piece_packs = cut.slot_packs;
  }
  __device__ __forceinline__ int PacksOf(int piece) const {
    return min(piece_packs, packs - piece * piece_packs);
  }
};

// Where a role is: at a row of its cluster, the turn-th, and a slot of the ring.
struct WideTurn {
  int64_t row;
  uint32_t turn = 0;
  int slot = 0;
  uint32_t lap = 0;

  __device__ __forceinline__ uint32_t Of() const { return turn % kWideTurns; }
  __device__ __forceinline__ uint32_t Parity() const { return turn / kWideTurns & 1; }
  __device__ __forceinline__ uint32_t SlotParity() const { return lap & 1; }
  __device__ __forceinline__ void NextRow(const WideCut& cut, int turns = 1) {
    row += int64_t{cut.groups} * turns;
    turn += turns;
  }
  __device__ __forceinline__ void NextSlot(const WideCut& cut) {
    if (++slot < cut.slots) return;
    slot = 0;
    ++lap;
  }
};

// Of slots: filled and freed. Of rows, kWideTurns of them: the rest. A block that sends its sums of
// turn t has written turn t - slots, or later ones; so all had sent theirs of that, and had those
// of turn t - 2 * slots: their places, kWideTurns before, are free.
template <typename Roles>
struct WideShared {
  uint64_t filled[kWideSlots];
  uint64_t freed[kWideSlots];
  uint64_t summed[kWideTurns];
  uint64_t gathered[kWideTurns];
  uint64_t known[kWideTurns];
  float2 of_warp[kWideTurns][Roles::kSummers];
  float2 of_block[kWideTurns][kWideCluster];
  float4 of_row[kWideTurns];  // What the writers must know.
  uint4 lead[kWideTurns];     // A row's first pack.

  __device__ __forceinline__ void Init() {
    static_assert(sizeof(WideShared) <= kWideStatic);
    for (int slot = 0; slot < kWideSlots; ++slot) {
      BarrierInit(&filled[slot], 1);
      BarrierInit(&freed[slot], Roles::kWriters * kWarpThreads);
    }
    for (int turn = 0; turn < kWideTurns; ++turn) {
      BarrierInit(&summed[turn], Roles::kSummers);
      BarrierInit(&gathered[turn], 1);
      BarrierInit(&known[turn], kWarpThreads);
    }
    FenceBarrierInit();
  }
  // By a warp, with a value alike in all lanes: sends it to all blocks of the cluster.
  __device__ __forceinline__ void Publish(const WideTurn& at, float2 value) {
    const uint32_t lane = threadIdx.x % kWarpThreads;
    const uint32_t blocks = ClusterSize();
    if (lane == 0) BarrierArriveExpecting(&gathered[at.Of()], blocks * sizeof(float2));
    __syncwarp();
    if (lane < blocks) {
      StoreAsync8(ClusterAddress(&of_block[at.Of()][ClusterRank()], lane),
                  ClusterAddress(&gathered[at.Of()], lane), __float_as_uint(value.x),
                  __float_as_uint(value.y));
    }
  }
  // What block `lane` has sent, 0 beyond the last.
  __device__ __forceinline__ float2 Gather(const WideTurn& at) {
    const uint32_t lane = threadIdx.x % kWarpThreads;
    BarrierWait(&gathered[at.Of()], at.Parity());
    return lane < ClusterSize() ? of_block[at.Of()][lane] : float2{};
  }
};

// A pack to global memory, if `wanted`.
template <typename X>
__device__ __forceinline__ void StorePackIf(bool wanted, X* to,
                                            const Lanes<X, kPackLanes<X>>& pack) {
  StoreGlobal16If(wanted, to, pack.word[0], pack.word[1], pack.word[2], pack.word[3]);
}

// kValues sums over a warp.
template <int kValues>
__device__ __forceinline__ float2 SumOverWarp(float2 value) {
  value.x = WarpReduce(value.x, Sum());
  if constexpr (kValues > 1) value.y = WarpReduce(value.y, Sum());
  return value;
}

// Runs the block's roles over the rows of its cluster; by all threads, Roles::kThreads of them.
//   load(at, piece): starts the copies of a piece into at.slot and says how many bytes they are;
//   start(): by all, before the roles begin;
//   sum(at, piece): what a thread of the summing warps has of a piece;
//   gather(at, part): by a warp: what the writers must know, from the block's sums, part();
//   write(at, piece, known): by a thread of the writing warps;
//   end_sum(), end_write(): by the threads of these warps after the last row. What they keep from
//   row to row would otherwise take registers of all roles.
template <int kPieces, int kValues, typename Roles, typename Load, typename Start, typename Sums,
          typename Gather, typename Write, typename EndSum, typename EndWrite>
__device__ __forceinline__ void RunWide(WideShared<Roles>* shared, const WideCut& cut, int64_t rows,
                                        int64_t first_row, Load&& load, Start&& start, Sums&& sum,
                                        Gather&& gather, Write&& write, EndSum&& end_sum,
                                        EndWrite&& end_write) {
  constexpr int kGatherer = Roles::kWriters + Roles::kSummers;
  constexpr int kProducer = kGatherer + Roles::kGatherers;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  WideTurn at = {first_row};

  int piece = 0;  // The producer's.
  const auto fetch = [&] {
    load(at, piece);
    at.NextSlot(cut);
    if (++piece < kPieces) return;
    piece = 0;
    at.NextRow(cut);
  };
  if (threadIdx.x == kProducer * kWarpThreads) {
    shared->Init();
    while (at.lap == 0 && at.row < rows) fetch();
  }
  start();
  __syncthreads();
  ClusterArrive();
  ClusterWait();

  if (warp < Roles::kWriters) {
    for (; at.row < rows; at.NextRow(cut)) {
      BarrierWait(&shared->known[at.Of()], at.Parity());
      const float4 known = shared->of_row[at.Of()];
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        BarrierWait(&shared->filled[at.slot], at.SlotParity());
        write(at, i, known);
        // An arrival of each thread that reads the slot is what racecheck follows.
        FenceBeforeBulkCopies();
        BarrierArrive(&shared->freed[at.slot]);
        at.NextSlot(cut);
      }
    }
    end_write();
  } else if (warp < kGatherer) {
    for (; at.row < rows; at.NextRow(cut)) {
      float2 part = {};
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        BarrierWait(&shared->filled[at.slot], at.SlotParity());
        const float2 of_piece = sum(at, i);
        part.x += of_piece.x;
        part.y += of_piece.y;
        at.NextSlot(cut);
      }
      part = SumOverWarp<kValues>(part);
      if (lane == 0) {
        shared->of_warp[at.Of()][warp - Roles::kWriters] = part;
        BarrierArrive(&shared->summed[at.Of()]);
      }
    }
    end_sum();
  } else if (warp < kProducer) {
    at.NextRow(cut, warp - kGatherer);
    for (; at.row < rows; at.NextRow(cut, Roles::kGatherers)) {
      const float4 known = gather(at, [&] {
        BarrierWait(&shared->summed[at.Of()], at.Parity());
        float2 part = shared->of_warp[at.Of()][0];
#pragma unroll
        for (int i = 1; i < Roles::kSummers; ++i) {
          const float2 other = shared->of_warp[at.Of()][i];
          part.x += other.x;
          part.y += other.y;
        }
        return part;
      });
      if (lane == 0) shared->of_row[at.Of()] = known;
      BarrierArrive(&shared->known[at.Of()]);
    }
  } else if (lane == 0) {
    while (at.row < rows) {
      BarrierWait(&shared->freed[at.slot], (at.lap - 1) & 1);
      fetch();
    }
  }
}

// Fills `packs` packs of shared memory with the block's slice of a vector of the row's length, or
// with `word` where there is none. By all threads.
__device__ __forceinline__ void KeepSlice(uint4* to, const void* from, const WideSlice& slice,
                                          int packs, uint32_t word) {
  for (int i = static_cast<int>(threadIdx.x); i < packs; i += static_cast<int>(blockDim.x)) {
    to[i] = from != nullptr && i < slice.packs ? static_cast<const uint4*>(from)[slice.first + i]
                                               : make_uint4(word, word, word, word);
  }
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_WIDE_RING_CUH_
