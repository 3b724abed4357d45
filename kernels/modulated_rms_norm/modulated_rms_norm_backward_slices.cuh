// The backward kernel for slices of many rows, which are gone through one after the other: what a
// block keeps of its place is a row, not slices ahead of where it works, which leaves registers for
// both sums. Rows are taken from the ring twice: holding 2 packs is no faster, and 4 spill. See
// modulated_rms_norm_backward.cuh.

#ifndef KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_BACKWARD_SLICES_CUH_
#define KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_BACKWARD_SLICES_CUH_

#include "kernels/modulated_rms_norm/modulated_rms_norm_backward.cuh"

namespace fuseboard::modulated_rms_norm {

// blockDim = (threads per row, rows per block); a persistent grid of whole clusters over slices.
// REQUIRES: all rows in 16-byte runs; every slice has rows; 1 <= stages <= 3; dx; a factor in
// shared memory.
template <typename X, typename DY, int kPacks, bool kCluster>
__global__ void __launch_bounds__(512, 1)
    BackwardSlicesKernel(const __grid_constant__ BackwardArgs args) {
  using Blocks = RowBlocks<kCluster>;
  using Ring = rms_norm::BackwardRing<X, DY, /*kAdd=*/false, kPacks>;
  constexpr int kLanes = Ring::kLanes;
  extern __shared__ uint4 dynamic_shared[];
  __shared__ rms_norm::RowSumStorage<kCluster> sums;
  AllowDependentLaunch();

  const Ring ring = {dynamic_shared, static_cast<int>(blockDim.x * blockDim.y),
                     static_cast<int>(threadIdx.x + threadIdx.y * blockDim.x)};
  const int stages = args.stages;
  const int row_packs = static_cast<int>(args.norm.hidden / kLanes);
  const int first = static_cast<int>(threadIdx.x + Blocks::Rank() * blockDim.x);
  const int step = static_cast<int>(blockDim.x * Blocks::Size());
  const float inverse_hidden = 1.0f / static_cast<float>(args.norm.hidden);
  const int64_t slice_count = args.groups * args.slices.per_group;
  const int64_t row_step = args.slices.per_group * blockDim.y;
  const auto fetch = [&](int stage, int p, int64_t row, int pack) {
    ring.Fetch(stage, p, static_cast<const X*>(args.x) + row * args.x_stride,
               static_cast<const DY*>(args.dy) + row * args.dy_stride, nullptr, pack);
  };
  if constexpr (kCluster) BeginExchange(&sums.exchange);

  uint32_t turn = 0;
  for (int64_t index = Blocks::Index(); index < slice_count; index += Blocks::Count()) {
    const SliceRows slice = RowsOf(args, index);
    int64_t row = slice.begin + args.slices.per_group * threadIdx.y;
    for (int stage = 0; stage < stages; ++stage) {
      const int64_t ahead = row + stage * row_step;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int pack = first + p * step;
        if (ahead < slice.end && pack < row_packs) fetch(stage, p, ahead, pack);
      }
      CopyAsyncCommit();
    }
    const auto rstd_of = [&](int64_t of) { return of < slice.end ? args.rstd[of] : 0.0f; };
    float next_rstd = rstd_of(row);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int pack = first + p * step;
      float factor[kLanes];
      if (pack >= row_packs) continue;
      LoadFactor<kLanes>(args, slice.group, int64_t{pack} * kLanes, factor);
      ring.StoreFloatRow(stages, p, factor);
    }

    float dy_normed_sum[kPacks][kLanes] = {};
    float dy_sum[kPacks][kLanes] = {};
    int stage = 0;
    for (int64_t base = slice.begin; base < slice.end; base += row_step, row += row_step, ++turn) {
      const int end = row < slice.end ? row_packs : 0;
      const float rstd = next_rstd;
      next_rstd = rstd_of(row + row_step);
      rms_norm::WaitForStage(stages);
      const int64_t next = row + stages * row_step;
      float dot = 0.0f;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int pack = first + p * step;
        if (pack >= end) continue;
        float x[kLanes], dy[kLanes], factor[kLanes];
        Unpack<X, kLanes>(ring.RowX(stage, p), x);
        Unpack<DY, kLanes>(ring.RowDy(stage, p), dy);
        ring.LoadFloatRow(stages, p, ring.thread, factor);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) dot += dy[i] * factor[i] * x[i];
      }
      const float sum = rms_norm::RowSum<kCluster>(dot * rstd, &sums, turn);
      const float slope = -rstd * (sum * inverse_hidden);  // dx = rstd * (g + x * slope).

#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int pack = first + p * step;
        if (pack >= end) continue;
        float x[kLanes], dy[kLanes], factor[kLanes];
        Unpack<X, kLanes>(ring.RowX(stage, p), x);
        Unpack<DY, kLanes>(ring.RowDy(stage, p), dy);
        ring.LoadFloatRow(stages, p, ring.thread, factor);
        if (next < slice.end) fetch(stage, p, next, pack);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) factor[i] = rstd * fmaf(x[i], slope, dy[i] * factor[i]);
        X* dx = static_cast<X*>(args.dx) + row * args.dx_stride;
        StoreFloats<X, kLanes>(dx + pack * kLanes, factor);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) x[i] *= rstd;
        if (args.norm.round_normed) RoundFloats<X>(x);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) dy_normed_sum[p][i] += dy[i] * x[i];
#pragma unroll
        for (int i = 0; i < kLanes; ++i) dy_sum[p][i] += dy[i];
      }
      CopyAsyncCommit();
      stage = stage + 1 == stages ? 0 : stage + 1;
    }

    if (blockDim.y > 1) {
      FoldRows<Ring, kPacks>(ring, stages, dy_normed_sum);
      FoldRows<Ring, kPacks>(ring, stages, dy_sum);
      if (threadIdx.y > 0) continue;
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int pack = first + p * step;
      if (pack >= row_packs) continue;
      StoreSums<kLanes>(args, slice, int64_t{pack} * kLanes, dy_normed_sum[p], dy_sum[p]);
    }
  }
}

}  // namespace fuseboard::modulated_rms_norm

#endif  // KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_BACKWARD_SLICES_CUH_
