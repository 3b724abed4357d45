// The pieces of the kernels that stream rows of logits through shared memory (sm_90 on): the ring
// of chunks, its loader, and what the other warps do with a chunk.
//
// A cluster of blocks shares each row and works through every clusters-th row. One warp of a block,
// the loader, brings the block's slice of a row in chunks into a ring in shared memory, as far
// ahead as the ring has room, across rows. The other warps
//   1. add each chunk to their statistics as it arrives,
//   2. merge them over the block, and over the cluster by stores into one another's shared memory,
//   3. with a gradient: take it from the chunks, which are still there, and free them one by one.
// Which warps do what is the kernels' own: ring_kernel.cuh, ring_gradient_kernel.cuh.

#ifndef KERNELS_CROSS_ENTROPY_RING_CUH_
#define KERNELS_CROSS_ENTROPY_RING_CUH_

#include "kernels/common/ptx_bulk.cuh"
#include "kernels/cross_entropy/cross_entropy_policy.h"
#include "kernels/cross_entropy/gradient_row.cuh"

namespace fuseboard::cross_entropy {

// A block's statistics as its peers get them: two stores of 16 bytes, the second if kGeneral.
struct alignas(16) Partial {
  float max;
  float sum;
  int column;
  float target_logit;  // Of the row's target; from block 0 only.
  float reference;
  float weighted;
  float weight;
  float unused;
};

// Rows of which a block may hold statistics at a time.
inline constexpr int kTurns = 4;

struct RingShared {
  uint64_t filled[kMaxSlots];  // The chunk has arrived.
  uint64_t freed[kMaxSlots];   // Every thread that reads it is done.
  uint64_t merged[kTurns];     // All partials of a row are here.
  // With a gradient only:
  uint64_t summed[kTurns];  // Every summing warp has left its statistics of a row.
  uint64_t noted[kTurns];   // They have been read.
  uint64_t taken[kTurns];   // Every warp has read the partials.
  Partial partials[kTurns][kMaxCluster];
  RowStats warps[kTurns][kMaxRingThreads / kWarpThreads];
};
static_assert(sizeof(RingShared) <= kRingReservedBytes - 1024);

// Position in the ring, and how often it went round (modulo 2).
struct RingCursor {
  int slot = 0;
  uint32_t round = 0;

  __device__ __forceinline__ void Advance(int slots) {
    if (++slot == slots) {
      slot = 0;
      round ^= 1u;
    }
  }
};

// The units of a row that one block of the cluster has.
struct Slice {
  int begin;
  int end;

  __device__ __forceinline__ Slice(int units) {
    const auto blocks = static_cast<int>(ClusterSize());
    const int share = (units + blocks - 1) / blocks;
    begin = min(static_cast<int>(ClusterRank()) * share, units);
    end = min(begin + share, units);
  }
};

// Ignored rows are not read, unless for their argmax.
__device__ __forceinline__ bool IsSkipped(const Problem& p, const RowTarget& target) {
  return target.ignored && p.argmax == nullptr;
}

struct RingRows {
  int64_t first;
  int64_t step;

  __device__ __forceinline__ RingRows() {
    first = blockIdx.x / ClusterSize();
    step = gridDim.x / ClusterSize();
  }
};

// The targets of these rows one after the other, each loaded while the row before it is worked on.
struct RingTargets {
  const Problem& p;
  int64_t step;
  RowTarget next;

  __device__ __forceinline__ RingTargets(const Problem& problem, const RingRows& rows)
      : p(problem), step(rows.step) {
    if (rows.first < p.rows) next = LoadTarget(p, rows.first);
  }

  // The target of `row`, which follows the row of the last call.
  __device__ __forceinline__ RowTarget Next(int64_t row) {
    const RowTarget target = next;
    if (row + step < p.rows) next = LoadTarget(p, row + step);
    return target;
  }
};

template <typename M>
struct Ring {
  using T = typename M::T;
  static constexpr int kLanes = kPackLanes<T>;

  const Problem& p;
  RingShared& shared;
  unsigned char* chunks;
  int slots;
  int chunk_units;

  __device__ __forceinline__ unsigned char* Chunk(int slot) const {
    return chunks + static_cast<size_t>(slot) * chunk_units * 16;
  }

  // One thread: brings in the slices of all rows of this cluster.
  template <bool kGradient>
  __device__ void LoadRows() const {
    // Lines that are soon written again, in place or not: with evict_first, H200, 8192 x 128256
    // bf16, 1.12 ms instead of 1.07.
    const uint64_t policy = kGradient ? EvictNormalPolicy() : EvictFirstPolicy();
    const RingRows rows;
    RingCursor cursor;
    RingTargets targets(p, rows);
    for (int64_t row = rows.first; row < p.rows; row += rows.step) {
      if (IsSkipped(p, targets.Next(row))) continue;
      const T* logits = LogitsRow<T>(p, row);
      const RowLayout<T> layout(logits, p.vocab);
      const Slice slice(layout.units);
      for (int unit = slice.begin; unit < slice.end; unit += chunk_units) {
        const auto bytes = static_cast<uint32_t>(min(chunk_units, slice.end - unit)) * 16u;
        BarrierWait(&shared.freed[cursor.slot], cursor.round ^ 1u);
        BarrierArriveExpecting(&shared.filled[cursor.slot], bytes);
        BulkLoad(Chunk(cursor.slot), logits + layout.ColumnOfUnit(unit), bytes,
                 &shared.filled[cursor.slot], policy);
        cursor.Advance(slots);
      }
    }
  }

  __device__ __forceinline__ static Lanes<T, kLanes> LoadUnit(const unsigned char* at) {
    return LoadLanes<T, kLanes>(reinterpret_cast<const T*>(at));
  }

  // This thread no longer needs the chunk. An arrival of each thread, and not of each warp after a
  // barrier of its own, is what racecheck follows, and faster: H200, loss of 8192 x 128256 bf16
  // 0.471 ms instead of 0.474, and the gradient 1.083 instead of 1.088.
  __device__ __forceinline__ void Free(int slot) const {
    FenceBeforeBulkCopies();
    BarrierArrive(&shared.freed[slot]);
  }

  // Step 1 for the units of the slice. Moves `cursor` past them.
  template <bool kFree>
  __device__ __forceinline__ void AddSlice(const RowLayout<T>& layout, const Slice& slice,
                                           int thread, int threads, RingCursor& cursor,
                                           RowStats& stats) const {
    for (int begin = slice.begin; begin < slice.end; begin += chunk_units) {
      const int size = min(chunk_units, slice.end - begin);
      BarrierWait(&shared.filled[cursor.slot], cursor.round);
      const unsigned char* at = Chunk(cursor.slot) + thread * 16;
      int column = layout.ColumnOfUnit(begin + thread);
      int unit = thread;
      if constexpr (!kFree) {  // Four on their way: this warp has no other to cover its latency.
        for (; unit + 3 * threads < size; unit += 4 * threads) {
          const Lanes<T, kLanes> low[2] = {LoadUnit(at), LoadUnit(at + threads * 16)};
          const Lanes<T, kLanes> high[2] = {LoadUnit(at + threads * 32),
                                            LoadUnit(at + threads * 48)};
          AddTwoRuns<M, kLanes>(stats, low, column, threads * kLanes, p);
          AddTwoRuns<M, kLanes>(stats, high, column + threads * 2 * kLanes, threads * kLanes, p);
          at += threads * 64;
          column += threads * 4 * kLanes;
        }
      }
      for (; unit + threads < size; unit += 2 * threads) {
        const Lanes<T, kLanes> runs[2] = {LoadUnit(at), LoadUnit(at + threads * 16)};
        AddTwoRuns<M, kLanes>(stats, runs, column, threads * kLanes, p);
        at += threads * 32;
        column += threads * 2 * kLanes;
      }
      if (unit < size) AddRun<M, kLanes>(stats, LoadUnit(at), column, p);
      if constexpr (kFree) Free(cursor.slot);
      cursor.Advance(slots);
    }
  }

  // Step 3 for the units of one chunk; kAligned says that out.aligned. A plain gradient leaves the
  // target out, and its thread then does the one run with it again: 6 instructions per logit
  // instead of 14 with a look at the target and at the alignment in each run.
  template <bool kAligned>
  __device__ __forceinline__ void StoreChunk(const unsigned char* chunk, int column, int size,
                                             const RowGradient& gradient, const GradientRow<T>& out,
                                             int threads) const {
    const auto thread = static_cast<int>(threadIdx.x);
    const unsigned char* at = chunk + thread * 16;
    T* to = out.row + column + thread * kLanes;
    constexpr bool kMayHit = M::kGeneral;
    int unit = thread;
    if constexpr (!M::kGeneral) {  // Four on their way, as in AddSlice.
      for (; unit + 3 * threads < size; unit += 4 * threads) {
        Lanes<T, kLanes> runs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) runs[i] = LoadUnit(at + i * threads * 16);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          StoreUnit<kAligned>(to + i * threads * kLanes,
                              GradientRun<M, kLanes, kMayHit>(gradient, runs[i], 0, p));
        }
        at += threads * 64;
        to += threads * 4 * kLanes;
      }
    }
#pragma unroll 2
    for (; unit < size; unit += threads) {
      StoreUnit<kAligned>(
          to, GradientRun<M, kLanes, kMayHit>(gradient, LoadUnit(at), column + unit * kLanes, p));
      at += threads * 16;
      to += threads * kLanes;
    }
    if constexpr (!kMayHit) {
      const int unit = (gradient.target - column) / kLanes;
      const bool here = gradient.target >= column && unit < size && unit % threads == thread;
      if (!here) return;
      const int first = column + unit * kLanes;
      StoreUnit<kAligned>(out.row + first,
                          GradientRun<M, kLanes>(gradient, LoadUnit(chunk + unit * 16), first, p));
    }
  }

  // Step 3 for the units of the slice, from where step 1 began. Moves `cursor` past them.
  __device__ __forceinline__ void StoreSlice(const RowLayout<T>& layout, const Slice& slice,
                                             const RowGradient& gradient, const GradientRow<T>& out,
                                             bool zero, int threads, RingCursor& cursor) const {
    const auto thread = static_cast<int>(threadIdx.x);
    for (int begin = slice.begin; begin < slice.end; begin += chunk_units) {
      const int size = min(chunk_units, slice.end - begin);
      const int column = layout.ColumnOfUnit(begin);
      BarrierWait(&shared.filled[cursor.slot], cursor.round);
      if (zero) {
        StoreZeros<T>(layout, out, begin + thread, begin + size, threads, kNoColumn);
      } else if (out.aligned) {
        StoreChunk<true>(Chunk(cursor.slot), column, size, gradient, out, threads);
      } else {
        StoreChunk<false>(Chunk(cursor.slot), column, size, gradient, out, threads);
      }
      Free(cursor.slot);
      cursor.Advance(slots);
    }
  }

  // The column of the first maximum itself: the run is read again, from memory, because its chunk
  // may be gone. Before any store to the row.
  __device__ __forceinline__ void ResolveColumn(const T* logits, const RowLayout<T>& layout,
                                                RowStats& stats) const {
    const int in_units = stats.column - layout.head;
    if (stats.column == kNoColumn || in_units < 0 || in_units >= layout.units * kLanes) return;
    const auto run = LoadLanes<T, kLanes>(logits + stats.column);
    stats.column = FirstMaxColumn<M, kLanes>(run, stats.column, stats.max, p);
  }

  // Sends the block's statistics to every block of the cluster. One warp, all lanes.
  __device__ __forceinline__ void Send(const RowStats& stats, float target_logit, int parity,
                                       int lane) const {
    constexpr uint32_t kBytes = M::kGeneral ? 32 : 16;
    const uint32_t blocks = ClusterSize();
    if (blocks == 1) {  // st.async is illegal outside a cluster of two or more.
      if (lane == 0) {
        shared.partials[parity][0] = {stats.max,       stats.sum,      stats.column, target_logit,
                                      stats.reference, stats.weighted, stats.weight, 0.0f};
        BarrierArrive(&shared.merged[parity]);
      }
      return;
    }
    if (lane == 0) BarrierArriveExpecting(&shared.merged[parity], blocks * kBytes);
    __syncwarp();
    if (static_cast<uint32_t>(lane) >= blocks) return;
    Partial* to = &shared.partials[parity][ClusterRank()];
    ClusterStoreAsync(
        to, &shared.merged[parity], static_cast<uint32_t>(lane),
        make_uint4(__float_as_uint(stats.max), __float_as_uint(stats.sum),
                   static_cast<uint32_t>(stats.column), __float_as_uint(target_logit)));
    if constexpr (M::kGeneral) {
      ClusterStoreAsync(
          &to->reference, &shared.merged[parity], static_cast<uint32_t>(lane),
          make_uint4(__float_as_uint(stats.reference), __float_as_uint(stats.weighted),
                     __float_as_uint(stats.weight), 0u));
    }
  }

  __device__ __forceinline__ RowStats Received(int parity, int block) const {
    const Partial& partial = shared.partials[parity][block];
    RowStats stats;
    stats.max = partial.max;
    stats.sum = partial.sum;
    stats.column = partial.column;
    if constexpr (M::kGeneral) {
      stats.reference = partial.reference;
      stats.weighted = partial.weighted;
      stats.weight = partial.weight;
    } else if (stats.max != -Infinity()) {
      stats.reference = ReferenceAt<M>(stats.max, p);
    }
    return stats;
  }
};

}  // namespace fuseboard::cross_entropy

#endif  // KERNELS_CROSS_ENTROPY_RING_CUH_
