// Cross entropy of long rows and its plain gradient with one read and one write of the logits
// (sm_90 on): ring.cuh as a pipeline.
//
// The warps of a block have different tasks, each of which goes on to the next row by itself:
//   1. the loader brings the block's slice of each row in chunks into the ring,
//   2. the summing warps add each chunk to their statistics as it arrives,
//   3. the merger adds these up over the block and sends them to the other blocks of the cluster,
//   4. the other warps take the gradient from the chunks, which are still there, and free them.
// So one row arrives whole, at all of the multiprocessor's share of the memory's rate, while the
// row before it is merged and stored, and nothing waits for a merge but the stores of its own row.
//
// In place: a row's logits are all in shared memory (or, at its edges, in registers) before the
// first store, since the stores follow the merge over the cluster.

#ifndef KERNELS_CROSS_ENTROPY_RING_GRADIENT_KERNEL_CUH_
#define KERNELS_CROSS_ENTROPY_RING_GRADIENT_KERNEL_CUH_

#include "kernels/cross_entropy/ring.cuh"

namespace fuseboard::cross_entropy {

// A turn is a row that is read. Which of the kTurns places it has, and how often that was had
// before (modulo 2).
struct RingTurn {
  uint32_t number = 0;

  __device__ __forceinline__ int Place() const { return static_cast<int>(number % kTurns); }
  __device__ __forceinline__ uint32_t Round() const { return number / kTurns % 2; }
};

template <typename M>
struct RingPipeline : Ring<M> {
  static_assert(!M::kGeneral);
  using typename Ring<M>::T;
  using Ring<M>::p;
  using Ring<M>::shared;

  // Step 2. `thread` of the `threads` that sum.
  __device__ __forceinline__ void SumRows(int thread, int threads) const {
    const RingRows rows;
    RingCursor cursor;
    RingTurn turn;
    RingTargets targets(p, rows);
    for (int64_t row = rows.first; row < p.rows; row += rows.step) {
      if (IsSkipped(p, targets.Next(row))) continue;
      const RowLayout<T> layout(LogitsRow<T>(p, row), p.vocab);
      RowStats stats;
      this->template AddSlice<false>(layout, Slice(layout.units), thread, threads, cursor, stats);
      stats = MergeWarp<M>(stats);
      if (thread % kWarpThreads == 0) {
        BarrierWait(&shared.noted[turn.Place()], turn.Round() ^ 1u);
        shared.warps[turn.Place()][thread / kWarpThreads] = stats;
        BarrierArrive(&shared.summed[turn.Place()]);
      }
      __syncwarp();
      ++turn.number;
    }
  }

  // Before the statistics of `turn` are sent. The place at every block has been read: a peer's
  // statistics of the turn before are here only when that peer's warps are past turn - kTurns.
  __device__ __forceinline__ void WaitForPlaces(const RingTurn& turn) const {
    if (turn.number >= 1) {
      const RingTurn before{turn.number - 1};
      BarrierWait(&shared.merged[before.Place()], before.Round());
    }
    if (turn.number >= kTurns - 1) {
      const RingTurn oldest{turn.number - (kTurns - 1)};
      BarrierWait(&shared.taken[oldest.Place()], oldest.Round());
    }
  }

  // Step 3. One warp.
  __device__ __forceinline__ void MergeRows(int sum_warps) const {
    const RingRows rows;
    const bool first_block = ClusterRank() == 0;
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    RingTurn turn;
    RingTargets targets(p, rows);
    // The target's logit in lane 0 of block 0, likewise loaded one row ahead.
    const bool has_target = first_block && lane == 0;
    float next_logit = 0.0f;
    if (has_target && rows.first < p.rows) {
      next_logit = LoadTargetLogit<T>(p, rows.first, targets.next);
    }
    for (int64_t row = rows.first; row < p.rows; row += rows.step) {
      const RowTarget target = targets.Next(row);
      const float target_logit = next_logit;
      if (has_target && row + rows.step < p.rows) {
        next_logit = LoadTargetLogit<T>(p, row + rows.step, targets.next);
      }
      if (IsSkipped(p, target)) continue;
      const T* logits = LogitsRow<T>(p, row);
      const RowLayout<T> layout(logits, p.vocab);
      // Block 0 also has the edges, one to a lane.
      const bool has_edge = first_block && lane < layout.edges;
      Lanes<T, 1> edge{};
      if (has_edge) edge = LoadLanes<T, 1>(logits + layout.ColumnOfEdge(lane));

      BarrierWait(&shared.summed[turn.Place()], turn.Round());
      RowStats stats;
      if (lane < sum_warps) stats = shared.warps[turn.Place()][lane];
      __syncwarp();
      if (lane == 0) BarrierArrive(&shared.noted[turn.Place()]);
      if (has_edge) AddRun<M, 1>(stats, edge, layout.ColumnOfEdge(lane), p);
      stats = MergeWarp<M>(stats);
      if (p.argmax != nullptr) this->ResolveColumn(logits, layout, stats);
      WaitForPlaces(turn);
      this->Send(stats, __shfl_sync(0xffffffffu, target_logit, 0), turn.Place(), lane);
      __syncwarp();
      ++turn.number;
    }
  }

  // Of all blocks of the cluster.
  __device__ __forceinline__ RowStats MergeBlocks(int place) const {
    const auto blocks = static_cast<int>(ClusterSize());
    RowStats merged = this->Received(place, 0);
    // The maximum first, as in MergeWarp.
    for (int block = 1; block < blocks; ++block) {
      const Partial& partial = shared.partials[place][block];
      if (partial.max > merged.max ||
          (partial.max == merged.max && partial.column < merged.column)) {
        merged.max = partial.max;
        merged.column = partial.column;
      }
    }
    merged.reference = merged.max == -Infinity() ? -Infinity() : ReferenceAt<M>(merged.max, p);
    merged.sum = 0.0f;
    for (int block = 0; block < blocks; ++block) {
      RowStats stats = this->Received(place, block);
      Rebase<M>(stats, merged.reference);
      merged.sum += stats.sum;
    }
    return merged;
  }

  // The statistics of the whole row, in every thread of a warp.
  __device__ __forceinline__ RowStats TakeStats(const RingTurn& turn, float& target_logit) const {
    BarrierWait(&shared.merged[turn.Place()], turn.Round());
    const RowStats stats = MergeBlocks(turn.Place());
    target_logit = shared.partials[turn.Place()][0].target_logit;
    __syncwarp();
    if (threadIdx.x % kWarpThreads == 0) BarrierArrive(&shared.taken[turn.Place()]);
    return stats;
  }

  // Step 4. The block's first `threads` threads.
  __device__ __forceinline__ void StoreRows(int threads) const {
    const RingRows rows;
    const bool first_block = ClusterRank() == 0;
    const auto thread = static_cast<int>(threadIdx.x);
    const int edge = first_block ? thread : kNoColumn;
    RingCursor cursor;
    RingTurn turn;
    RingTargets targets(p, rows);
    for (int64_t row = rows.first; row < p.rows; row += rows.step) {
      const RowTarget target = targets.Next(row);
      const T* logits = LogitsRow<T>(p, row);
      const RowLayout<T> layout(logits, p.vocab);
      const Slice slice(layout.units);
      const GradientRow<T> out(p, row, logits);
      if (IsSkipped(p, target)) {
        StoreZeros<T>(layout, out, slice.begin + thread, slice.end, threads, edge);
        if (first_block && thread == 0) StoreOutcome<M>(p, row, RowStats{}, target, 0.0f);
        continue;
      }
      Lanes<T, 1> edge_run{};
      if (edge < layout.edges) edge_run = LoadLanes<T, 1>(logits + layout.ColumnOfEdge(edge));
      float target_logit;
      const RowStats stats = TakeStats(turn, target_logit);
      const RowGradient gradient = GradientFromStats<M>(p, row, target, stats);
      this->StoreSlice(layout, slice, gradient, out, target.ignored, threads, cursor);
      if (edge < layout.edges) {
        const int column = layout.ColumnOfEdge(edge);
        StoreLanes<T, 1>(out.row + column, target.ignored
                                               ? Lanes<T, 1>{}
                                               : GradientRun<M, 1>(gradient, edge_run, column, p));
      }
      if (first_block && thread == 0) StoreOutcome<M>(p, row, stats, target, target_logit);
      ++turn.number;
    }
  }
};

// Warps in the order of their tasks: those that store, sum_threads that sum, the merger, the
// loader. Dynamic shared memory: slots * chunk_bytes.
template <typename M>
__global__ void __launch_bounds__(kMaxPipelineThreads, 1)
    RingGradientKernel(const __grid_constant__ Problem problem, int slots, int chunk_bytes,
                       int sum_threads) {
  extern __shared__ __align__(128) unsigned char chunks[];
  __shared__ RingShared shared;
  const auto thread = static_cast<int>(threadIdx.x);
  const int merger = static_cast<int>(blockDim.x) - 2 * kWarpThreads;
  const int store_threads = merger - sum_threads;
  if (thread == 0) {
    const auto store_warps = static_cast<uint32_t>(store_threads / kWarpThreads);
    for (int i = 0; i < slots; ++i) {
      BarrierInit(&shared.filled[i], 1);
      BarrierInit(&shared.freed[i], static_cast<uint32_t>(store_threads));
    }
    for (int i = 0; i < kTurns; ++i) {
      BarrierInit(&shared.merged[i], 1);
      BarrierInit(&shared.summed[i], static_cast<uint32_t>(sum_threads / kWarpThreads));
      BarrierInit(&shared.noted[i], 1);
      BarrierInit(&shared.taken[i], store_warps);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  ClusterArrive();  // No peer may write here before the barriers are set up.
  ClusterWait();
  const RingPipeline<M> ring{{problem, shared, chunks, slots, chunk_bytes / 16}};
  if (thread < store_threads) {
    ring.StoreRows(store_threads);
  } else if (thread < merger) {
    ring.SumRows(thread - store_threads, sum_threads);
  } else if (thread < merger + kWarpThreads) {
    ring.MergeRows(sum_threads / kWarpThreads);
  } else if (thread == merger + kWarpThreads) {
    ring.template LoadRows<true>();
  }
  __syncwarp();
  ClusterArrive();  // Nor leave while a peer may still write to it.
  ClusterWait();
}

}  // namespace fuseboard::cross_entropy

#endif  // KERNELS_CROSS_ENTROPY_RING_GRADIENT_KERNEL_CUH_
