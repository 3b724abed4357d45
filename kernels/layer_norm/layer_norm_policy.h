// How layer_norm is cut for a device. Host-only and constexpr, so it is tested without a GPU.

#ifndef KERNELS_LAYER_NORM_LAYER_NORM_POLICY_H_
#define KERNELS_LAYER_NORM_LAYER_NORM_POLICY_H_

#include "kernels/rms_norm/wide_policy.h"

namespace fuseboard::layer_norm {

// The forms of the kernel for a row to a block: packs, and warps at most.
struct RowForm {
  int packs;
  int warps;
};
// Those of the backward.
inline constexpr rms_norm::Form kBackwardForms[] = {{0, false}, {1, false}, {2, false}, {3, false},
                                                    {4, false}, {4, true},  {8, true}};
inline constexpr rms_norm::Form kUnalignedBackwardForms[] = {{3, false}, {4, false}, {4, true}};
inline constexpr RowForm kRowForms[] = {{2, 4}, {4, 4}, {4, 8}, {4, 16}};

// As rms_norm's forward, one row to a block from 65 packs on. H200, bf16, H 1024 90.8 % with 2
// packs and two warps, 88.4 % with 4 and one; with 4 packs H 2048 90.8 %, H 4096 89.8 %, H
// 5120 90.1 %, H 8192 90.0 %, H 16384 89.1 % (the general kernel: 88.8, 86.3, 84.6, 85.3, 81.8 %, H
// 16384 80 %).
constexpr rms_norm::Policy SelectForward(int sm, int64_t row_packs) {
  if (row_packs > 64 && row_packs <= 128) {
    return rms_norm::CutRow(row_packs, 2, 64, 1, rms_norm::kWarp);
  }
  return rms_norm::SelectForward(sm, row_packs);
}

// Whether the kernel for a row to a block covers it: whole warps, and not too many.
constexpr bool IsRowPerBlock(const rms_norm::Policy& policy) {
  return policy.cluster == 1 && policy.rows_per_block == 1 &&
         policy.threads_per_row % rms_norm::kWarp == 0 &&
         ((policy.packs == 2 && policy.threads_per_row <= 4 * rms_norm::kWarp) ||
          (policy.packs == 4 && policy.threads_per_row <= 16 * rms_norm::kWarp));
}

// Of rows that begin anywhere (rms_norm/row_edges.cuh): a row to a block.
constexpr rms_norm::Policy SelectUnalignedForward(int64_t row_packs, int x_bytes) {
  rms_norm::Policy policy =
      rms_norm::WithEdges(rms_norm::CutRow(row_packs, 4, 512, 1, rms_norm::kWarp), x_bytes);
  policy.rows_per_block = 1;
  return policy;
}

// The sums of dweight and dbias take 16 registers for each pack of 16-bit floats, so few threads
// are resident, and 4 packs for each of them beat 2: fewer warps meet at the barrier. H200, bf16,
// share of the copy rate with 4 packs / rms_norm's cut of 2: H 1024 84 / 65 %, H 2048 80 / 65 %, H
// 4096 78 / 66 %; H 128 with 4 packs 79 %, with 1 46 %. `x_bytes` is the element size of x and dy.
constexpr rms_norm::Policy SelectBackward(int sm, int64_t row_packs, int x_bytes,
                                          bool unaligned = false) {
  using rms_norm::CutRow;
  const int max_cluster = sm >= 90 ? rms_norm::kMaxCluster : 1;
  rms_norm::Policy policy = {};
  int blocks = 1;
  int stages = 2;
  if (row_packs <= 128) {
    policy = CutRow(row_packs, 4, rms_norm::kWarp, 1, 128);
    blocks = 3;
  } else if (row_packs > 256 && row_packs <= 384) {
    // H 2560 77.8 %, H 2880 79.6 %, H 3072 83.5 %; two rows to a block of 4 packs 74.0, 76.6 and at
    // best 81.6 %.
    policy = CutRow(row_packs, 3, 128, 1, rms_norm::kWarp);
    blocks = 4;
  } else if (row_packs > 384 && row_packs < 512) {
    // H 3584 85.8 %, H 3840 86.3 %, two rows to a block 82.0, 86.1 %; H 4096 85.4 / 88.4 %.
    policy = CutRow(row_packs, 4, 128, 1, rms_norm::kWarp);
    blocks = 4;
  } else if (row_packs <= 512) {
    policy = CutRow(row_packs, 4, 128, 1, 256);
    blocks = 2;
  } else if (row_packs <= 2048) {
    policy = CutRow(row_packs, 4, 512, 1, 512);
  } else if (row_packs <= 4 * 256 * int64_t{max_cluster}) {
    // H 65536 67 %, with three blocks 38 %, with one stage 56 %, with 4 blocks of 512 threads 65 %.
    policy = CutRow(row_packs, 4, 256, max_cluster, 256);
    blocks = 2;
  } else if (row_packs <= 4 * 512 * int64_t{max_cluster}) {
    policy = CutRow(row_packs, 4, 512, max_cluster, 512);
  } else {
    policy = CutRow(row_packs, 8, 512, max_cluster, 512);
  }
  if (policy.packs == 0 || (unaligned && policy.packs == 8)) return {};
  if (unaligned) policy = rms_norm::WithEdges(policy, x_bytes);
  policy.blocks_per_sm = blocks;
  policy.stages = stages;
  policy.shared_weight = true;
  const auto fits = [&] { return rms_norm::FitsShared(policy, sm, x_bytes, x_bytes); };
  while (policy.blocks_per_sm > 1 && !fits()) --policy.blocks_per_sm;
  if (!fits()) policy.stages = 1;
  if (!fits() && policy.rows_per_block == 1 && !unaligned) policy.shared_weight = false;
  return fits() ? policy : rms_norm::Policy{};
}

// The kernels for wide rows. H200, bf16, share of the copy rate, these / a row to a block: forward
// H 16384 83 / 91 %; backward H 8192 85.1 / 84.7 %, H 12288 86.7 / 74.8 %, H 16384 84.1 / 78.1 %.
constexpr rms_norm::Policy SelectWideForward(int sm, int64_t row_packs) {
  if (row_packs <= 2048) return {};
  return rms_norm::CutWide(sm, row_packs, rms_norm::kWideForward<true, false>);
}

constexpr rms_norm::Policy SelectWideBackward(int sm, int64_t row_packs) {
  if (row_packs <= 1024) return {};
  return rms_norm::CutWide(sm, row_packs, rms_norm::kWideBackward<true, false>);
}

}  // namespace fuseboard::layer_norm

#endif  // KERNELS_LAYER_NORM_LAYER_NORM_POLICY_H_
