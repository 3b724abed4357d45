// Cross entropy of long rows with one read and one write of the logits (sm_90 on), without a
// gradient or with one that is not plain: ring.cuh, in which all warps but the loader do all steps.
//
// Without a gradient, chunks are freed in step 1 and a row need not fit. Loads of the next row are
// under way in steps 2 and 3, and co-resident blocks are out of phase.
//
// In place: a row's logits are all in shared memory (or, at its edges, in registers) before the
// first store, since the stores follow the merge over the cluster.

#ifndef KERNELS_CROSS_ENTROPY_RING_KERNEL_CUH_
#define KERNELS_CROSS_ENTROPY_RING_KERNEL_CUH_

#include "kernels/cross_entropy/ring.cuh"

namespace fuseboard::cross_entropy {

template <typename M>
struct RingRounds : Ring<M> {
  using typename Ring<M>::T;
  using Ring<M>::p;
  using Ring<M>::shared;

  // Step 2: the statistics of the whole row, in every thread. `target_logit` goes in in thread 0 of
  // block 0 and comes out everywhere.
  __device__ __forceinline__ RowStats MergeCluster(RowStats stats, const T* logits,
                                                   const RowLayout<T>& layout, int threads,
                                                   uint32_t turn, float& target_logit) const {
    const auto parity = static_cast<int>(turn % 2);
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
    stats = MergeWarp<M>(stats);
    if (lane == 0) shared.warps[0][warp] = stats;
    SyncThreads(threads);
    if (warp == 0) {
      stats = lane < threads / kWarpThreads ? shared.warps[0][lane] : RowStats{};
      stats = MergeWarp<M>(stats);
      if (p.argmax != nullptr) this->ResolveColumn(logits, layout, stats);
      this->Send(stats, __shfl_sync(0xffffffffu, target_logit, 0), parity, lane);
    }
    BarrierWait(&shared.merged[parity], turn / 2 % 2);
    stats = this->Received(parity, 0);
    for (int block = 1; block < static_cast<int>(ClusterSize()); ++block) {
      stats = Merge<M>(stats, this->Received(parity, block));
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
    RingTargets targets(p, rows);
    for (int64_t row = rows.first; row < p.rows; row += rows.step) {
      const RowTarget target = targets.Next(row);
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
      RingCursor row_begin = cursor;
      this->template AddSlice<!kGradient>(layout, slice, thread, threads, cursor, stats);
      if (edge < layout.edges) AddRun<M, 1>(stats, edge_run, layout.ColumnOfEdge(edge), p);
      stats = MergeCluster(stats, logits, layout, threads, turn++, target_logit);
      if constexpr (kGradient) {
        const RowGradient gradient = GradientFromStats<M>(p, row, target, stats);
        const GradientRow<T> out(p, row, logits);
        this->StoreSlice(layout, slice, gradient, out, target.ignored, threads, row_begin);
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
      BarrierInit(&shared.freed[i], static_cast<uint32_t>(threads));
    }
    BarrierInit(&shared.merged[0], 1);
    BarrierInit(&shared.merged[1], 1);
    FenceBarrierInit();
  }
  __syncthreads();
  ClusterArrive();  // No peer may write here before the barriers are set up.
  ClusterWait();
  const RingRounds<M> ring{{problem, shared, chunks, slots, chunk_bytes / 16}};
  if (static_cast<int>(threadIdx.x) < threads) {
    ring.template ComputeRows<kGradient>(threads);
  } else if (static_cast<int>(threadIdx.x) == threads) {
    ring.template LoadRows<kGradient>();
  }
  __syncwarp();
  ClusterArrive();  // Nor leave while a peer may still write to it.
  ClusterWait();
}

}  // namespace fuseboard::cross_entropy

#endif  // KERNELS_CROSS_ENTROPY_RING_KERNEL_CUH_
