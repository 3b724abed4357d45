// The gradient of modulated_rms_norm on the GPU. With n = x * rstd, w = offset + weight and, for
// the row's group, f = (1 + scale) * w:
//   dx = rstd * (dy * f - n * mean(dy * f * n))
//   dshift = sum of dy,   dscale = w * sum of dy * n,   dweight = (1 + scale) * sum of dy * n
// where n is rounded to the dtype of x in the sums if the model rounds it, the sums of dshift and
// dscale are over the rows of a group, and dweight is added up over the groups too.
//
// Traffic: dy and x read once, dx written once; per slice of a group a row of each sum.
// Determinism: a slice's rows are added in order in f32, the slices' sums in an order fixed by
// their number, which depends on the shape and the number of multiprocessors only.

#ifndef KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_BACKWARD_CUH_
#define KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_BACKWARD_CUH_

#include "kernels/common/dispatch.h"
#include "kernels/common/vector.cuh"
#include "kernels/modulated_rms_norm/backward_args.cuh"
#include "kernels/rms_norm/backward_ring.cuh"
#include "kernels/rms_norm/row_sum.cuh"

namespace fuseboard::modulated_rms_norm {

// The rows of a block, slice by slice: where it fetches, ahead of where it works.
struct RowCursor {
  int64_t index;  // Of the slice.
  int64_t step;   // To the block's next slice.
  int64_t count;  // Slices.
  int64_t base = 0;
  int64_t end = 0;

  __device__ RowCursor(const BackwardArgs& args, int64_t first, int64_t step_)
      : index(first), step(step_), count(args.groups * args.slices.per_group) {
    Enter(args);
  }
  __device__ void Enter(const BackwardArgs& args) {
    base = end = 0;
    if (index >= count) return;
    const SliceRows slice = RowsOf(args, index);
    base = slice.begin;
    end = slice.end;
  }
  __device__ void Advance(const BackwardArgs& args) {
    base += args.slices.per_group * blockDim.y;
    if (base < end || index >= count) return;
    index += step;
    Enter(args);
  }
};

// The rows of a block that share a slice, added from the first to the last; threadIdx.y == 0 has
// their sum.
template <typename Ring, int kPacks>
__device__ __forceinline__ void FoldRows(const Ring& ring, int stages,
                                         float (&values)[kPacks][Ring::kLanes]) {
#pragma unroll
  for (int p = 0; p < kPacks; ++p) ring.StoreFloatRow(stages, p, values[p]);
  __syncthreads();
  for (int y = 1; y < static_cast<int>(blockDim.y) && threadIdx.y == 0; ++y) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      float other[Ring::kLanes];
      ring.LoadFloatRow(stages, p, ring.thread + y * static_cast<int>(blockDim.x), other);
#pragma unroll
      for (int i = 0; i < Ring::kLanes; ++i) values[p][i] += other[i];
    }
  }
  __syncthreads();
}

// blockDim = (threads per row, rows per block); a persistent grid of whole clusters over slices. A
// pack of a later row is fetched into a slot as soon as its pack of this row has been used.
// REQUIRES: all rows in 16-byte runs; every slice has rows; 1 <= stages <= 3; a factor in shared
// memory if rows_per_block > 1.
template <typename X, typename DY, int kPacks>
__global__ void __launch_bounds__(kPacks >= 4 ? 512 : 256, kPacks >= 4 ? 1 : 2)
    BackwardKernel(const BackwardArgs args) {
  using Ring = rms_norm::BackwardRing<X, DY, /*kAdd=*/false, kPacks>;
  constexpr int kLanes = Ring::kLanes;
  extern __shared__ uint4 dynamic_shared[];
  __shared__ rms_norm::RowSumStorage<true> sums;
  AllowDependentLaunch();

  const Ring ring = {dynamic_shared, static_cast<int>(blockDim.x * blockDim.y),
                     static_cast<int>(threadIdx.x + threadIdx.y * blockDim.x)};
  const int cluster = static_cast<int>(ClusterSize());
  const int stages = args.stages;
  const int row_packs = static_cast<int>(args.norm.hidden / kLanes);
  const int first = static_cast<int>(threadIdx.x + ClusterRank() * blockDim.x);
  const int step = static_cast<int>(blockDim.x) * cluster;
  const float inverse_hidden = 1.0f / static_cast<float>(args.norm.hidden);
  const int64_t slice_step = int64_t{gridDim.x} / cluster;
  const int64_t slice_count = args.groups * args.slices.per_group;

  RowCursor ahead(args, int64_t{blockIdx.x} / cluster, slice_step);
  const int64_t own = args.slices.per_group * threadIdx.y;
  const int64_t row_step = args.slices.per_group * blockDim.y;
  const auto fetch = [&](int stage, int p, int pack) {
    const int64_t row = ahead.base + own;
    if (row >= ahead.end || pack >= row_packs) return;
    ring.Fetch(stage, p, static_cast<const X*>(args.x) + row * args.x_stride,
               static_cast<const DY*>(args.dy) + row * args.dy_stride, nullptr, pack);
  };
  for (int stage = 0; stage < stages; ++stage) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) fetch(stage, p, first + p * step);
    CopyAsyncCommit();
    ahead.Advance(args);
  }
  BeginExchange(&sums.exchange);

  int stage = 0;
  uint32_t turn = 0;
  for (int64_t index = int64_t{blockIdx.x} / cluster; index < slice_count; index += slice_step) {
    const SliceRows slice = RowsOf(args, index);
    if (args.shared_factor) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int pack = first + p * step;
        float factor[kLanes];
        if (pack >= row_packs) continue;
        LoadFactor<kLanes>(args, slice.group, int64_t{pack} * kLanes, factor);
        ring.StoreFloatRow(stages, p, factor);
      }
    }
    const auto load_factor = [&](int p, int pack, float(&factor)[kLanes]) {
      if (args.shared_factor) {
        ring.LoadFloatRow(stages, p, ring.thread, factor);
      } else {
        LoadFactor<kLanes>(args, slice.group, int64_t{pack} * kLanes, factor);
      }
    };

    float dy_normed_sum[kPacks][kLanes] = {};
    float dy_sum[kPacks][kLanes] = {};
    for (int64_t base = slice.begin; base < slice.end; base += row_step) {
      const int64_t row = base + own;
      const bool active = row < slice.end;
      const float rstd = active ? args.rstd[row] : 0.0f;
      rms_norm::WaitForStage(stages);

      float mean = 0.0f;
      if (args.dx != nullptr) {
        float dot = 0.0f;
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
          const int pack = first + p * step;
          if (!active || pack >= row_packs) continue;
          float x[kLanes], dy[kLanes], factor[kLanes];
          Unpack<X, kLanes>(ring.RowX(stage, p), x);
          Unpack<DY, kLanes>(ring.RowDy(stage, p), dy);
          load_factor(p, pack, factor);
#pragma unroll
          for (int i = 0; i < kLanes; ++i) dot += dy[i] * factor[i] * (x[i] * rstd);
        }
        mean = rms_norm::RowSum<true>(dot, &sums, turn) * inverse_hidden;
      }

#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int pack = first + p * step;
        const bool has_pack = active && pack < row_packs;
        float x[kLanes] = {}, dy[kLanes] = {};
        if (has_pack) {
          Unpack<X, kLanes>(ring.RowX(stage, p), x);
          Unpack<DY, kLanes>(ring.RowDy(stage, p), dy);
        }
        fetch(stage, p, pack);
        if (!has_pack) continue;
#pragma unroll
        for (int i = 0; i < kLanes; ++i) x[i] *= rstd;
        if (args.dx != nullptr) {
          float factor[kLanes], dx[kLanes];
          load_factor(p, pack, factor);
#pragma unroll
          for (int i = 0; i < kLanes; ++i) dx[i] = rstd * (dy[i] * factor[i] - x[i] * mean);
          X* out = static_cast<X*>(args.dx) + row * args.dx_stride;
          StoreFloats<X, kLanes>(out + int64_t{pack} * kLanes, dx);
        }
        if (args.norm.round_normed) RoundFloats<X>(x);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) dy_normed_sum[p][i] += dy[i] * x[i];
#pragma unroll
        for (int i = 0; i < kLanes; ++i) dy_sum[p][i] += dy[i];
      }
      CopyAsyncCommit();
      ahead.Advance(args);
      stage = stage + 1 == stages ? 0 : stage + 1;
      ++turn;
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

// Any alignment and width, element by element; each row is read twice, the second time from L1 or
// L2, and the sums are added up in memory. blockDim = threads per row. REQUIRES: not direct.
template <typename X, typename DY>
__global__ void __launch_bounds__(512) BackwardLoopingKernel(const BackwardArgs args) {
  __shared__ rms_norm::RowSumStorage<false> sums;
  AllowDependentLaunch();
  const int64_t hidden = args.norm.hidden;
  const int64_t slice_count = args.groups * args.slices.per_group;
  uint32_t turn = 0;
  for (int64_t index = blockIdx.x; index < slice_count; index += gridDim.x) {
    const SliceRows slice = RowsOf(args, index);
    const int64_t at = slice.sums * hidden;
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
      if (args.dy_normed_sums != nullptr) args.dy_normed_sums[at + i] = 0.0f;
      if (args.dy_sums != nullptr) args.dy_sums[at + i] = 0.0f;
    }
    for (int64_t row = slice.begin; row < slice.end; row += args.slices.per_group, ++turn) {
      const X* x = static_cast<const X*>(args.x) + row * args.x_stride;
      const DY* dy = static_cast<const DY*>(args.dy) + row * args.dy_stride;
      const float rstd = args.rstd[row];
      float mean = 0.0f;
      if (args.dx != nullptr) {
        float dot = 0.0f;
#pragma unroll 4
        for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
          float xs[1], dys[1], factor[1];
          LoadFloats<X, 1>(x + i, xs);
          LoadFloats<DY, 1>(dy + i, dys);
          LoadFactor<1>(args, slice.group, i, factor);
          dot += dys[0] * factor[0] * (xs[0] * rstd);
        }
        mean = rms_norm::RowSum<false>(dot, &sums, turn) / static_cast<float>(hidden);
      }
#pragma unroll 4
      for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
        float xs[1], dys[1];
        LoadFloats<X, 1>(x + i, xs);
        LoadFloats<DY, 1>(dy + i, dys);
        xs[0] *= rstd;
        if (args.dx != nullptr) {
          float factor[1];
          LoadFactor<1>(args, slice.group, i, factor);
          const float dx[1] = {rstd * (dys[0] * factor[0] - xs[0] * mean)};
          StoreFloats<X, 1>(static_cast<X*>(args.dx) + row * args.dx_stride + i, dx);
        }
        if (args.norm.round_normed) RoundFloats<X>(xs);
        if (args.dy_normed_sums != nullptr) args.dy_normed_sums[at + i] += dys[0] * xs[0];
        if (args.dy_sums != nullptr) args.dy_sums[at + i] += dys[0];
      }
    }
  }
}

}  // namespace fuseboard::modulated_rms_norm

#endif  // KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_BACKWARD_CUH_
