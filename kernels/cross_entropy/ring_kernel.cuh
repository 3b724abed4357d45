// Cross entropy of long rows with one read and one write of the logits (sm_90 on).
//
// A cluster of blocks shares each row and works through every clusters-th row. One warp of a block,
// the loader, brings the block's slice of a row in chunks into a ring in shared memory, as far
// ahead as the ring has room, across rows. The other warps
//   1. add each chunk to their statistics as it arrives,
//   2. merge them over the block, and over the cluster by stores into one another's shared memory,
//   3. with a gradient: take it from the chunks, which are still there, and free them one by one.
// Without a gradient, chunks are freed in step 1 and a row need not fit. Loads of the next row are
// under way in steps 2 and 3, and co-resident blocks are out of phase.
//
// In place: a row's logits are all in shared memory (or, at its edges, in registers) before the
// first store, since the stores follow the merge over the cluster.

#ifndef KERNELS_CROSS_ENTROPY_RING_KERNEL_CUH_
#define KERNELS_CROSS_ENTROPY_RING_KERNEL_CUH_

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

struct RingShared {
  uint64_t filled[kMaxSlots];  // The chunk has arrived.
  uint64_t freed[kMaxSlots];   // Every computing warp is done with it.
  uint64_t merged[2];          // All partials of a row are here; rows alternate.
  Partial partials[2][kMaxCluster];
  RowStats warps[kMaxRingThreads / kWarpThreads];
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
  __device__ void LoadRows() const {
    const uint64_t policy = EvictFirstPolicy();
    const RingRows rows;
    RingCursor cursor;
    for (int64_t row = rows.first; row < p.rows; row += rows.step) {
      if (IsSkipped(p, LoadTarget(p, row))) continue;
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

  // This warp no longer needs the chunk.
  __device__ __forceinline__ void Free(int slot) const {
    __syncwarp();
    if (threadIdx.x % kWarpThreads == 0) BarrierArrive(&shared.freed[slot]);
  }

  // Step 1 for the units of the slice. Moves `cursor` past them.
  template <bool kFree>
  __device__ __forceinline__ void AddSlice(const RowLayout<T>& layout, const Slice& slice,
                                           int threads, RingCursor& cursor, RowStats& stats) const {
    const auto thread = static_cast<int>(threadIdx.x);
    for (int begin = slice.begin; begin < slice.end; begin += chunk_units) {
      const int size = min(chunk_units, slice.end - begin);
      BarrierWait(&shared.filled[cursor.slot], cursor.round);
      const unsigned char* at = Chunk(cursor.slot) + thread * 16;
      int column = layout.ColumnOfUnit(begin + thread);
      int unit = thread;
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
#pragma unroll 2
    for (int unit = thread; unit < size; unit += threads) {
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

  // Step 3 for the units of the slice, from where step 1 began.
  __device__ __forceinline__ void StoreSlice(const RowLayout<T>& layout, const Slice& slice,
                                             const RowGradient& gradient, const GradientRow<T>& out,
                                             bool zero, int threads, RingCursor cursor) const {
    const auto thread = static_cast<int>(threadIdx.x);
    for (int begin = slice.begin; begin < slice.end; begin += chunk_units) {
      const int size = min(chunk_units, slice.end - begin);
      const int column = layout.ColumnOfUnit(begin);
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

  // Step 2: the statistics of the whole row, in every thread. `target_logit` goes in in thread 0 of
  // block 0 and comes out everywhere.
  __device__ __forceinline__ RowStats MergeCluster(RowStats stats, const T* logits,
                                                   const RowLayout<T>& layout, int threads,
                                                   uint32_t turn, float& target_logit) const {
    const auto parity = static_cast<int>(turn % 2);
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
    stats = MergeWarp<M>(stats);
    if (lane == 0) shared.warps[warp] = stats;
    SyncThreads(threads);
    if (warp == 0) {
      stats = lane < threads / kWarpThreads ? shared.warps[lane] : RowStats{};
      stats = MergeWarp<M>(stats);
      if (p.argmax != nullptr) ResolveColumn(logits, layout, stats);
      Send(stats, __shfl_sync(0xffffffffu, target_logit, 0), parity, lane);
    }
    BarrierWait(&shared.merged[parity], turn / 2 % 2);
    stats = Received(parity, 0);
    for (int block = 1; block < static_cast<int>(ClusterSize()); ++block) {
      stats = Merge<M>(stats, Received(parity, block));
    }
    target_logit = shared.partials[parity][0].target_logit;
    return stats;
  }

  // All computing threads of the block: the rows of this cluster.
  template <bool kGradient>
  __device__ __forceinline__ void ComputeRows(int threads) const {
    const RingRows rows;
    const bool first_block = ClusterRank() == 0;
    const auto thread = static_cast<int>(threadIdx.x);
    // Block 0 also has the edges, one to a thread.
    const int edge = first_block ? thread : kNoColumn;
    RingCursor cursor;
    uint32_t turn = 0;
    RowTarget next = rows.first < p.rows ? LoadTarget(p, rows.first) : RowTarget{};
    for (int64_t row = rows.first; row < p.rows; row += rows.step) {
      const RowTarget target = next;
      if (row + rows.step < p.rows) next = LoadTarget(p, row + rows.step);
      const T* logits = LogitsRow<T>(p, row);
      const RowLayout<T> layout(logits, p.vocab);
      const Slice slice(layout.units);
      if (IsSkipped(p, target)) {
        if constexpr (kGradient) {
          StoreZeros<T>(layout, GradientRow<T>(p, row, logits), slice.begin + thread, slice.end,
                        threads, edge);
        }
        if (first_block && thread == 0) StoreOutcome<M>(p, row, RowStats{}, target, 0.0f);
        continue;
      }
      // Loads that are needed only after the slice.
      float target_logit = 0.0f;
      if (first_block && thread == 0) target_logit = LoadTargetLogit<T>(p, row, target);
      Lanes<T, 1> edge_run{};
      if (edge < layout.edges) edge_run = LoadLanes<T, 1>(logits + layout.ColumnOfEdge(edge));

      RowStats stats;
      const RingCursor row_begin = cursor;
      AddSlice<!kGradient>(layout, slice, threads, cursor, stats);
      if (edge < layout.edges) AddRun<M, 1>(stats, edge_run, layout.ColumnOfEdge(edge), p);
      stats = MergeCluster(stats, logits, layout, threads, turn++, target_logit);
      if constexpr (kGradient) {
        const RowGradient gradient = GradientFromStats<M>(p, row, target, stats);
        const GradientRow<T> out(p, row, logits);
        StoreSlice(layout, slice, gradient, out, target.ignored, threads, row_begin);
        if (edge < layout.edges) {
          const int column = layout.ColumnOfEdge(edge);
          StoreLanes<T, 1>(
              out.row + column,
              target.ignored ? Lanes<T, 1>{} : GradientRun<M, 1>(gradient, edge_run, column, p));
        }
      }
      if (first_block && thread == 0) StoreOutcome<M>(p, row, stats, target, target_logit);
    }
  }
};

// Blocks of whole warps, the last of which loads. Dynamic shared memory: slots * chunk_bytes.
template <typename M, bool kGradient>
__global__ void __launch_bounds__(kMaxRingThreads + kWarpThreads, kGradient ? 3 : 4)
    RingKernel(const __grid_constant__ Problem problem, int slots, int chunk_bytes) {
  extern __shared__ __align__(128) unsigned char chunks[];
  __shared__ RingShared shared;
  const int threads = static_cast<int>(blockDim.x) - kWarpThreads;
  if (threadIdx.x == 0) {
    for (int i = 0; i < slots; ++i) {
      BarrierInit(&shared.filled[i], 1);
      BarrierInit(&shared.freed[i], static_cast<uint32_t>(threads / kWarpThreads));
    }
    BarrierInit(&shared.merged[0], 1);
    BarrierInit(&shared.merged[1], 1);
    FenceBarrierInit();
  }
  __syncthreads();
  ClusterArrive();  // No peer may write here before the barriers are set up.
  ClusterWait();
  const Ring<M> ring{problem, shared, chunks, slots, chunk_bytes / 16};
  if (static_cast<int>(threadIdx.x) < threads) {
    ring.template ComputeRows<kGradient>(threads);
  } else if (static_cast<int>(threadIdx.x) == threads) {
    ring.LoadRows();
  }
  __syncwarp();
  ClusterArrive();  // Nor leave while a peer may still write to it.
  ClusterWait();
}

}  // namespace fuseboard::cross_entropy

#endif  // KERNELS_CROSS_ENTROPY_RING_KERNEL_CUH_
