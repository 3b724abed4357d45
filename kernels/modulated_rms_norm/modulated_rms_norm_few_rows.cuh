// The backward of modulated_rms_norm for few rows, in one kernel; see few_rows_backward.cuh. Some
// blocks make dx, a row each, others dscale, dshift and dweight, some columns of all rows each. The
// formulas are those of modulated_rms_norm_backward.cuh.
//
// Traffic: x and dy read twice, once from L2; dx written once. Determinism: the rows of a group are
// added up in an order that depends on the shape and the number of threads only, as are the groups.
// REQUIRES: dx lies apart from x and dy.

#ifndef KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_FEW_ROWS_CUH_
#define KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_FEW_ROWS_CUH_

#include "kernels/common/launch.cuh"
#include "kernels/modulated_rms_norm/modulated_rms_norm_policy.h"
#include "kernels/rms_norm/few_rows_backward.cuh"

namespace fuseboard::modulated_rms_norm {

struct FewRowsArgs : rms_norm::FewRowsArgs {
  const void* scale;
  void* dscale;  // Or NULL.
  void* dshift;  // Or NULL.
  int64_t scale_stride;
  int32_t groups;
  int32_t group_rows;
  float inverse_group_rows;
  // 1 << part_bits lanes share a group: one, or so few that each group has lanes of its own.
  int32_t part_bits;
};

// Sums over rows in the columns of a thread's pack.
template <typename X, int kBatch>
struct GroupSums {
  static constexpr int kLanes = kPackLanes<X>;
  float dy_normed[kLanes] = {};
  float dy[kLanes] = {};

  // Of rows `row`, `row` + parts and so on.
  __device__ __forceinline__ void AddRows(const FewRowsArgs& args, int column, int row, int end) {
    const auto add = [&](const float(&normed)[kLanes], const float(&of_dy)[kLanes]) {
#pragma unroll
      for (int i = 0; i < kLanes; ++i) dy_normed[i] += of_dy[i] * normed[i];
#pragma unroll
      for (int i = 0; i < kLanes; ++i) dy[i] += of_dy[i];
    };
    rms_norm::ForEachRow<X, /*kCenter=*/false, kBatch>(args, column, row, end, 1 << args.part_bits,
                                                       add);
  }
  // Over the lanes of a warp that share the group; all of them get the sums.
  __device__ __forceinline__ void AddLanes(int part_bits) {
#pragma unroll
    for (int bit = 0; bit < kWarpBits; ++bit) {
      if (bit >= part_bits) break;
      const int offset = rms_norm::kFewRowsTile << bit;
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        dy_normed[i] += __shfl_xor_sync(0xffffffffu, dy_normed[i], offset);
        dy[i] += __shfl_xor_sync(0xffffffffu, dy[i], offset);
      }
    }
  }
};

// What a group's sums are multiplied with, in kLanes columns. As loaded: what waits for it is to
// come after the sums.
template <typename X, int kLanes>
struct GroupFactors {
  Lanes<X, kLanes> scale;
  Lanes<X, kLanes> weight = {};

  __device__ __forceinline__ GroupFactors(const FewRowsArgs& args, int group, int column)
      : scale(LoadLanes<X, kLanes>(static_cast<const X*>(args.scale) + group * args.scale_stride +
                                   column)) {
    if (args.weight == nullptr) return;
    weight = LoadLanes<X, kLanes>(static_cast<const X*>(args.weight) + column);
  }

  // dscale and dshift of the group; leaves the group's part of dweight in `dy_normed`.
  __device__ __forceinline__ void Store(const FewRowsArgs& args, int group, int column,
                                        const float (&dy)[kLanes],
                                        float (&dy_normed)[kLanes]) const {
    const int64_t at = int64_t{group} * (args.row_packs * kPackLanes<X>)+column;
    if (args.dshift != nullptr) StoreFloats<X, kLanes>(static_cast<X*>(args.dshift) + at, dy);
    float factor[kLanes];
    if (args.dscale != nullptr) {
      Unpack<X, kLanes>(weight, factor);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        factor[i] = (args.weight == nullptr ? 1.0f : args.offset + factor[i]) * dy_normed[i];
      }
      StoreFloats<X, kLanes>(static_cast<X*>(args.dscale) + at, factor);
    }
    Unpack<X, kLanes>(scale, factor);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) dy_normed[i] *= 1.0f + factor[i];
  }
};

// Shared memory of a block for columns.
template <typename X, int kThreads>
struct ColumnStorage {
  static constexpr int kColumns = rms_norm::kFewRowsTile * kPackLanes<X>;
  static constexpr int kWarps = kThreads / kWarpThreads;
  alignas(16) float dy_normed[kWarps * kColumns];
  alignas(16) float dy[kWarps * kColumns];
};

// The end of a group of several warps, each of which has left its sums in shared memory. A thread
// has one column of one group, and blocks have as many threads as there are of these.
template <typename X, int kThreads>
__device__ __forceinline__ void FinishWarps(const FewRowsArgs& args, int first_column,
                                            ColumnStorage<X, kThreads>* shared) {
  constexpr int kColumns = ColumnStorage<X, kThreads>::kColumns;
  const auto thread = static_cast<int>(threadIdx.x);
  const int group = thread / kColumns;
  const int column = first_column + thread % kColumns;
  const bool active = group < args.groups && column < args.row_packs * kPackLanes<X>;
  const GroupFactors<X, 1> factors(args, active ? group : 0, active ? column : 0);
  __syncthreads();
  float dy_normed[1] = {};
  float dy[1] = {};
  if (active) {
    const int warps = 1 << (args.part_bits - kWarpBits);
    int at = group * warps * kColumns + thread % kColumns;
    for (int warp = 0; warp < warps; ++warp, at += kColumns) {
      dy_normed[0] += shared->dy_normed[at];
      dy[0] += shared->dy[at];
    }
    factors.Store(args, group, column, dy, dy_normed);
  }
  if (args.dweight == nullptr) return;
  __syncthreads();
  shared->dy[thread] = dy_normed[0];
  __syncthreads();
  if (group > 0 || !active) return;
  float dweight = 0.0f;
  for (int of = 0; of < args.groups; ++of) dweight += shared->dy[of * kColumns + thread];
  StoreFloatOf(args.dweight_dtype, args.dweight, column, dweight);
}

// dscale, dshift and dweight of one tile of columns.
template <typename X, int kThreads, int kBatch>
__device__ __forceinline__ void FewRowsColumns(const FewRowsArgs& args, int tile) {
  constexpr int kLanes = kPackLanes<X>;
  __shared__ ColumnStorage<X, kThreads> shared;
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread / rms_norm::kFewRowsTile;
  const int first = tile * rms_norm::kFewRowsTile;
  const int pack = first + thread % rms_norm::kFewRowsTile;
  const int column = pack * kLanes;
  const int part = lane & ((1 << args.part_bits) - 1);
  const int slots = (kThreads / rms_norm::kFewRowsTile) >> args.part_bits;
  int group = lane >> args.part_bits;
  float dweight[kLanes] = {};
  for (int base = 0; base < args.groups; base += slots, group += slots) {
    const bool active = group < args.groups && pack < args.row_packs;
    const int of = active ? group : 0;
    const int begin = of * args.group_rows;
    const GroupFactors<X, kLanes> factors(args, of, active ? column : 0);
    GroupSums<X, kBatch> sums;
    sums.AddRows(args, column, begin + part, active ? begin + args.group_rows : 0);
    sums.AddLanes(args.part_bits);
    if (args.part_bits > kWarpBits) {  // And groups <= slots.
      if (thread % kWarpThreads < rms_norm::kFewRowsTile) {
        const int at = thread / kWarpThreads * ColumnStorage<X, kThreads>::kColumns +
                       thread % kWarpThreads * kLanes;
        StoreFloats<float, kLanes>(shared.dy_normed + at, sums.dy_normed);
        StoreFloats<float, kLanes>(shared.dy + at, sums.dy);
      }
      FinishWarps<X, kThreads>(args, first * kLanes, &shared);
      return;
    }
    if (!active || part > 0) continue;
    factors.Store(args, group, column, sums.dy, sums.dy_normed);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) dweight[i] += sums.dy_normed[i];
  }
  if (args.dweight == nullptr) return;
  rms_norm::StoreColumns(dweight, shared.dy_normed, first * kLanes, args.row_packs * kLanes,
                         args.dweight_dtype, args.dweight);
}

// row / group_rows, exact for fewer than 2^20 rows: row + 0.5 leaves the quotient 0.5 / group_rows
// or more from a whole number, which is more than two roundings are.
__device__ __forceinline__ int GroupOf(const FewRowsArgs& args, int row) {
  return static_cast<int>((static_cast<float>(row) + 0.5f) * args.inverse_group_rows);
}

// A block for each tile of columns, then one for each row. May be launched dependent. REQUIRES:
// all rows in 16-byte runs; dy, weight, scale, dscale and dshift of the dtype of x.
template <typename X, int kPacks, int kThreads = kFewRowsThreads, int kBatch = kFewRowsBatch,
          int kBlocks = kFewRowsBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    FewRowsBackwardKernel(const __grid_constant__ FewRowsArgs args) {
  WaitForPredecessor();
  const auto block = static_cast<int>(blockIdx.x);
  if (block >= args.column_blocks) {
    const int row = block - args.column_blocks;
    const X* const scale =
        static_cast<const X*>(args.scale) + GroupOf(args, row) * args.scale_stride;
    rms_norm::FewRowsGradient<X, /*kCenter=*/false, /*kAdd=*/false, /*kModulate=*/true, kPacks>(
        args, row, scale);
  } else {
    FewRowsColumns<X, kThreads, kBatch>(args, block);
  }
}

// Fills in the sizes of `args`, of which the rest is set, and says in how many blocks it runs.
inline LaunchShape CutFewRows(int64_t groups, int64_t group_rows, int64_t hidden, int bytes,
                              int threads, int batch, FewRowsArgs* args) {
  const int64_t row_packs = hidden * bytes / 16;
  const bool has_sums =
      args->dweight != nullptr || args->dscale != nullptr || args->dshift != nullptr;
  args->groups = static_cast<int32_t>(groups);
  args->group_rows = static_cast<int32_t>(group_rows);
  args->inverse_group_rows = 1.0f / static_cast<float>(group_rows);
  args->part_bits = PartBits(groups, group_rows, threads / rms_norm::kFewRowsTile, batch);
  args->rows = static_cast<int32_t>(groups * group_rows);
  args->row_packs = static_cast<int32_t>(row_packs);
  args->inverse_hidden = 1.0f / static_cast<float>(hidden);
  args->column_blocks =
      has_sums ? static_cast<int32_t>(rms_norm::CeilDiv(row_packs, rms_norm::kFewRowsTile)) : 0;
  return {.blocks = args->column_blocks + (args->dx == nullptr ? 0 : args->rows),
          .threads = dim3(static_cast<unsigned>(threads))};
}

}  // namespace fuseboard::modulated_rms_norm

#endif  // KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_FEW_ROWS_CUH_
