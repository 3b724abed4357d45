// How wide rows are cut over the blocks of clusters, for rms_norm, fused_add_rms_norm and
// layer_norm (wide_ring.cuh). Host-only and constexpr, so it is tested without a GPU.
//
// Of a Policy with `wide`, packs is the number of pieces of a block's slice of a row, stages that
// of the slots of its ring, each for a piece.

#ifndef KERNELS_RMS_NORM_WIDE_POLICY_H_
#define KERNELS_RMS_NORM_WIDE_POLICY_H_

#include "kernels/rms_norm/rms_norm_policy.h"

namespace fuseboard::rms_norm {

inline constexpr int kWidePiecePacks = 1024;  // Packs of a piece of a slice, at most.
// Pieces of a slice that is too long for one. The backward's in two halves would leave room for two
// rows and a half; in four, layer_norm's sums do not leave a thread enough registers.
inline constexpr int kWideForwardPieces = 2;
template <bool kCenter>
inline constexpr int kWideBackwardPieces = kCenter ? 2 : 4;
inline constexpr int kWideReach = 1120;  // How far into a piece its threads read, in packs.
inline constexpr int kWideCluster = 16;  // Blocks of a cluster, at most.
inline constexpr int kWideSlots = 8;     // Of a ring, at most.
inline constexpr int kWideUnit = 4;      // Slices are whole units of 4 packs, 64 bytes.
inline constexpr int64_t kWideStatic =
    5 * 1024;  // Bytes of shared memory beside the ring, at most.

// What a kernel for wide rows takes.
struct WideForm {
  int tensors;      // That are read, row by row.
  int kept;         // Vectors of the row's length that stay in shared memory.
  int pieces;       // Of a slice that is too long for one.
  int least_slots;  // That are worth more than what is beyond 96 KiB.
  bool few_blocks;  // To a row, rather than short slices.
  int reach = kWideReach;
};

// kCenter: layer_norm; kAdd: fused_add_rms_norm.
template <bool kCenter, bool kAdd>
inline constexpr WideForm kWideForward = {kAdd ? 2 : 1, kCenter ? 2 : 1, kWideForwardPieces, 4,
                                          false};
template <bool kCenter, bool kAdd>
inline constexpr WideForm kWideBackward = {kAdd ? 3 : 2, 1, kWideBackwardPieces<kCenter>, 3,
                                           kCenter};

// How a row is cut over the blocks of a cluster.
struct WideCut {
  int32_t groups;    // Clusters.
  int32_t quotient;  // Units of a slice; the first `rest` slices have one more.
  int32_t rest;
  int32_t slots;       // Of the ring, each for a piece of a slice.
  int32_t slot_packs;  // Of a piece, for each tensor.
  int32_t kept_packs;  // Of a vector of the row's length that stays in shared memory.
};

constexpr WideCut CutWideRow(const Policy& policy, int64_t row_packs, int reach = kWideReach) {
  const auto units = static_cast<int32_t>(CeilDiv(row_packs, kWideUnit));
  const int64_t most = CeilDiv(units, policy.cluster);
  const auto slot_packs = static_cast<int32_t>(CeilDiv(most, policy.packs) * kWideUnit);
  return {.groups = 0,
          .quotient = units / policy.cluster,
          .rest = units % policy.cluster,
          .slots = policy.stages,
          .slot_packs = slot_packs,
          .kept_packs = (policy.packs - 1) * slot_packs + reach};
}

// Dynamic shared memory of a block: the ring, and the vectors.
constexpr int64_t WideSharedBytes(const Policy& policy, int64_t row_packs, const WideForm& form) {
  const WideCut cut = CutWideRow(policy, row_packs, form.reach);
  return int64_t{16} *
         (int64_t{cut.slots} * form.tensors * cut.slot_packs + int64_t{form.kept} * cut.kept_packs);
}

// A row over up to 8 blocks of 512 packs or more, or over 16 with up to 1,024, or twice that in
// pieces; and a ring of 96 KiB or of the least slots. {} where not even a row and two more pieces
// fit. H200, bf16, rms_norm forward / backward: H 32768 over 8 blocks 87 / 89 %, over 4 86 / 88 %,
// over 16 56 / 71 %; H 65536 with 4 slots 85 / 87 %, with 3 77 / 87.5 %, with 12 and 6 84 / 86 %; H
// 262144 with 8 slots 86 / 83 %, with 4 and 6 76 / 70 %. layer_norm backward, H 32768: over 8
// blocks 83 %, over 4 with 3 slots 85 %, with 4 84 %.
constexpr Policy CutWide(int sm, int64_t row_packs, const WideForm& form) {
  constexpr int64_t kRing = 96 * 1024;
  if (sm < 90 || SharedBytesPerBlock(sm) < 227 * 1024) return {};
  const int64_t enough = form.few_blocks ? kWidePiecePacks : kWidePiecePacks - 1;
  int cluster = 1;
  while (cluster < kMaxCluster && row_packs > cluster * enough) cluster *= 2;
  if (row_packs > int64_t{cluster} * kWidePiecePacks) cluster = kWideCluster;
  const int64_t pieces = CeilDiv(row_packs, int64_t{cluster} * kWidePiecePacks);
  if (pieces > 2) return {};
  Policy policy = {.packs = pieces == 1 ? 1 : form.pieces,
                   .threads_per_row = 512,  // Or what the kernel's roles are.
                   .rows_per_block = 1,
                   .cluster = cluster,
                   .blocks_per_sm = 1,
                   .stages = 0,
                   .shared_weight = true,
                   .wide = true};
  const int64_t slot = int64_t{16} * form.tensors * CutWideRow(policy, row_packs).slot_packs;
  const int64_t kept_bytes = WideSharedBytes(policy, row_packs, form);  // Without a ring.
  const int64_t fit = (SharedBytesPerBlock(sm) - kWideStatic - kept_bytes) / slot;
  const int64_t least = policy.packs > 1          ? policy.packs + 4
                        : cluster == kWideCluster ? 4
                                                  : form.least_slots;
  int64_t slots = kRing / slot > least ? kRing / slot : least;
  if (slots > kWideSlots) slots = kWideSlots;
  if (slots > fit) slots = fit;
  policy.stages = static_cast<int>(slots);
  return policy.stages >= policy.packs + 2 ? policy : Policy{};
}

// Of rms_norm (`tensors` 1) and fused_add_rms_norm (2). Up to 2,048 packs a block holds the row: H
// 16384 93 %, these 87 %.
constexpr Policy SelectWideForward(int sm, int64_t row_packs, int tensors) {
  if (row_packs <= 2048) return {};
  return CutWide(sm, row_packs,
                 tensors == 1 ? kWideForward<false, false> : kWideForward<false, true>);
}

// Of rms_norm (`tensors` 2) and fused_add_rms_norm (3). H200, bf16, share of the copy rate, these /
// a row to a block: rms_norm H 8192 89.2 / 88.8 %, H 12288 89.0 / 87.8 %, H 16384 87.5 / 85.8 %.
constexpr Policy SelectWideBackward(int sm, int64_t row_packs, int tensors) {
  if (row_packs <= 1024) return {};
  return CutWide(sm, row_packs,
                 tensors == 2 ? kWideBackward<false, false> : kWideBackward<false, true>);
}

// Whether the device may be unable to run the policy's clusters: more than 8 blocks, or a part of a
// GPU without a group of multiprocessors of that size.
constexpr bool MayNotRun(const Policy& policy, int sm_count) {
  return policy.wide && (policy.cluster > kMaxCluster || sm_count < 64);
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_WIDE_POLICY_H_
