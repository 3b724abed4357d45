// How modulated_rms_norm is cut for a device: rows into packs, and the rows of a group, in the
// backward, into slices. Host-only and constexpr, so it is tested without a GPU.

#ifndef KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_POLICY_H_
#define KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_POLICY_H_

#include <initializer_list>

#include "kernels/modulated_rms_norm/modulated_rms_norm_call.h"
#include "kernels/rms_norm/few_rows_policy.h"
#include "kernels/rms_norm/rms_norm_policy.h"
#include "kernels/rms_norm/wide_policy.h"

namespace fuseboard::modulated_rms_norm {

// ---- Few rows ----
//
// H200, bf16, us between events, many / few rows. Both passes, 16 x 4 x 1024 13.4 / 6.1, 2048 14.6
// / 6.2, 4096 15.7 / 6.6, 8192 23.8 / 8.2.

// Forward: up to this many rows. 16 x 4 x 4096 4.5 / 4.1, 16 x 8 4.5 / 4.4, 16 x 16 5.4 / 5.0, 16 x
// 32 6.3 / 6.2; 16 x 32 x 256 and 512 4.2 / 4.0 and 4.4 / 4.2.
inline constexpr int64_t kMostFewForwardRows = 512;

// Two packs to a thread, as far as a block goes, but one while there are no more than four warps.
// One after another, launched dependent, us each with 1 / 2 packs: 16 x 4 x 1024 1.50 / 1.60,
// 2048 1.66 / 1.64, 4096 2.03 / 1.84. {} beyond.
constexpr rms_norm::Policy SelectFewForward(int64_t rows, int64_t row_packs) {
  if (rows > kMostFewForwardRows || row_packs < rms_norm::kWarp) return {};
  rms_norm::Policy policy =
      rms_norm::CutRow(row_packs, row_packs <= 128 ? 1 : 2, rms_norm::kFewRowsMaxThreads, 1, 1);
  if (policy.packs == 0) return {};
  policy.packs = 2;  // Threads without a second one have none of it.
  policy.few_rows = true;
  return policy;
}

// Blocks of the backward's kernel: threads, rows that a thread asks for at a time, and blocks that
// its registers leave room for on a multiprocessor. 16 x 4 x 4096 4.9 us, with 512 threads and 1
// row 5.3, with 256 and 1 5.0, with 128 and 4 5.1; 16 x 64 x 4096 12.6, 14.0, 16.5, 15.8; but 64 x
// 1 x 4096, of which no thread has two rows at a time, 5.5, 5.1, 5.3, 6.3.
inline constexpr int kFewRowsThreads = 256;
inline constexpr int kFewRowsBatch = 4;
inline constexpr int kFewRowsBlocks = 2;
inline constexpr int kWarpBits = 2;  // 1 << kWarpBits lanes of the same columns are in a warp.
static_assert(rms_norm::kFewRowsTile << kWarpBits == rms_norm::kWarp);

// 1 << PartBits of the `lanes` threads that have the same columns share the rows of a group: as
// many as have `batch` of them, while there are lanes for all groups. So groups that take more than
// a warp all have lanes at once.
constexpr int PartBits(int64_t groups, int64_t group_rows, int lanes, int batch) {
  int bits = 0;
  while ((groups << (bits + 1)) <= lanes && (int64_t{batch} << bits) < group_rows) ++bits;
  return bits;
}

// Backward: above this the kernels for many rows are as good, or not known to be worse. 16 x 32 x
// 256 10.2 / 7.2; 16 x 64 x 1024 13.4 / 10.7, 2048 18.4 / 11.5; 16 x 128 x 4096 33.3 / 24.3, 8192
// 67.7 / 41.9; 64 x 1 x 4096 12.2 / 5.5, 512 x 1 x 512 24.8 / 14.1, 1024 x 1 x 4096 60.6 / 32.8; 1
// x 64 x 4096 12.7 / 5.3, 1 x 1024 25.9 / 12.5.
constexpr int64_t MostFewBackwardRows(int64_t row_packs) {
  if (row_packs > 4 * kFewRowsThreads) return 0;
  return row_packs >= 512 ? 2048 : row_packs >= 128 ? 1024 : row_packs >= 32 ? 512 : 256;
}

// packs == 0: too many rows, or too wide.
constexpr rms_norm::Policy SelectFewBackward(int64_t rows, int64_t row_packs) {
  if (rows > MostFewBackwardRows(row_packs)) return {};
  return {.packs = row_packs <= 2 * kFewRowsThreads ? 2 : 4,
          .threads_per_row = kFewRowsThreads,
          .rows_per_block = 1,
          .cluster = 1,
          .blocks_per_sm = 0,
          .stages = 0,
          .shared_weight = false,
          .wide = false,
          .few_rows = true};
}

// ---- Many rows ----

// Two sums per column stay in registers, of which 8 packs would not leave enough and 4 spill some,
// and rows are read from the ring twice: two stages, as rms_norm's cut had until it held its rows.
constexpr rms_norm::Policy SelectBackward(int sm, int64_t row_packs, int x_bytes, int dy_bytes) {
  using rms_norm::CutRow;
  const int max_cluster = sm >= 90 ? rms_norm::kMaxCluster : 1;
  rms_norm::Policy policy = row_packs <= 32    ? CutRow(row_packs, 1, rms_norm::kWarp, 1, 256)
                            : row_packs <= 512 ? CutRow(row_packs, 2, 256, 1, 256)
                                               : CutRow(row_packs, 4, 512, max_cluster, 256);
  if (policy.packs == 0) return policy;
  const int threads = policy.threads_per_row * policy.rows_per_block;
  policy.blocks_per_sm = policy.packs == 4 && threads > 256 ? 1 : 2;
  policy.stages = 2;
  policy.shared_weight = true;
  const auto fits = [&] { return rms_norm::FitsShared(policy, sm, x_bytes, dy_bytes); };
  while (policy.blocks_per_sm > 1 && !fits()) --policy.blocks_per_sm;
  if (!fits()) policy.stages = 1;
  if (!fits() && policy.rows_per_block == 1) policy.shared_weight = false;
  return fits() ? policy : rms_norm::Policy{};
}

// The forms of the forward kernel for some rows of a group to a block: packs of a thread, warps at
// most, rows. Rows that share a block share what they are multiplied with and have one barrier.
// H200, bf16, 16 x 1024 x 4096: 2 packs and 2 rows 93.5 %, 4 rows (80 registers) 91.9 %, 4 packs
// and 1 row 82.1 %, 4 packs and 2 rows 93.6 % with 128 registers; 81.9 % with 2 packs and 2 rows if
// scale, shift and weight are asked for after the sums. H 8192: 4 packs 89.9 %, 2 packs and 16
// warps 87.9 %; H 16384: 77.4 %, 1 row 64.5 %, the general kernel 68 %.
struct RowsForm {
  int packs;
  int warps;
  int rows;

  friend constexpr bool operator==(const RowsForm&, const RowsForm&) = default;
};
inline constexpr RowsForm kOneRow = {4, 8, 1};
inline constexpr RowsForm kTwoRows = {2, 8, 2};
inline constexpr RowsForm kTwoWideRows = {4, 8, 2};
inline constexpr RowsForm kTwoWidestRows = {4, 16, 2};

constexpr bool Covers(const RowsForm& form, int64_t row_packs) {
  return row_packs <= form.warps * rms_norm::kWarp * form.packs;
}

// {} where there is none: rows of few packs or very many.
constexpr RowsForm SelectRowsForm(int64_t row_packs, int64_t group_rows) {
  if (row_packs <= 64) return {};
  if (group_rows == 1) return Covers(kOneRow, row_packs) ? kOneRow : RowsForm{};
  for (const RowsForm& form : {kTwoRows, kTwoWideRows, kTwoWidestRows}) {
    if (Covers(form, row_packs)) return form;
  }
  return {};
}

constexpr int ThreadsOf(const RowsForm& form, int64_t row_packs) {
  return static_cast<int>(rms_norm::CeilDiv(row_packs, rms_norm::kWarp * form.packs)) *
         rms_norm::kWarp;
}

// The backward for slices of many rows. One block to a multiprocessor leaves fewest sums of slices.
// H200, bf16, share of the copy rate with a weight: H 1024 83.9 %, 4 packs 76.1 %; H 2048 86.9 %
// (80.7 %); H 4096 86.3 %, 1 row and two blocks 81.6 %, 4 packs 79.7 %; H 8192 84.4 %, 4 packs and
// two blocks 74.3 %; but H 5120, whose threads are fewer, 75.9 and 81.6 %.
constexpr rms_norm::Policy SelectSlicesBackward(int sm, int64_t row_packs, int x_bytes,
                                                int dy_bytes) {
  using rms_norm::CutRow;
  const int max_cluster = sm >= 90 ? rms_norm::kMaxCluster : 1;
  rms_norm::Policy policy = {};
  int blocks = 1;
  if (row_packs <= 64) {
    policy = CutRow(row_packs, 4, rms_norm::kWarp, 1, 128);
    blocks = 3;
  } else if (row_packs <= 512 || (row_packs > 768 && row_packs <= 1024)) {
    policy = CutRow(row_packs, 2, 512, 1, 512);
  } else if (row_packs <= 768) {
    policy = CutRow(row_packs, 4, 256, 1, 256);
    blocks = 2;
  } else {
    policy = CutRow(row_packs, 4, 512, max_cluster, 512);
  }
  if (policy.packs == 0) return policy;
  policy.blocks_per_sm = blocks;
  policy.stages = 2;
  policy.shared_weight = true;
  const auto fits = [&] { return rms_norm::FitsShared(policy, sm, x_bytes, dy_bytes); };
  while (policy.blocks_per_sm > 1 && !fits()) --policy.blocks_per_sm;
  if (!fits()) policy.stages = 1;
  return fits() ? policy : rms_norm::Policy{};
}

// What the kernels for wide rows keep in shared memory: the factors of an example, in f32, and in
// the forward its shift; in the backward the factors of two examples while a block's slice is short
// enough for one piece. Their threads read no further than a warp beyond a piece. H200, bf16, 2^28
// elements, a weight, share of the copy rate, blocks and slots: forward H 16384 2 and 6 or 8 91.5
// %, 4 and 8 90 %; H 32768 4 and 8 93 %, 4 and 6 88 %, 8 and 8 89 %; H 65536 8 and 8 92.5 %, 8 and
// 6 91 %. Backward H 16384 4 and 6 91 %, 2 and 3 90.3 %; H 32768 8 and 6 92 %, 4 and 3 90 %; H
// 65536 8 and 4 90.4 %, 8 and 3 89.6 %. Of a slice of the backward that is too long for one, as
// layer_norm's, which has two sums, too.
inline constexpr int kWidePieces = rms_norm::kWideBackwardPieces<true>;

constexpr bool IsLongSlice(int64_t row_packs) {
  return row_packs > int64_t{rms_norm::kWideCluster} * rms_norm::kWidePiecePacks;
}

constexpr rms_norm::WideForm WideForwardForm(int bytes) {
  return {.tensors = 1,
          .kept = bytes == 4 ? 2 : 3,
          .pieces = rms_norm::kWideForwardPieces,
          .least_slots = 8,
          .few_blocks = true,
          .reach = rms_norm::kWidePiecePacks + rms_norm::kWarp};
}

constexpr rms_norm::WideForm WideBackwardForm(int bytes, int64_t row_packs) {
  const bool is_long = IsLongSlice(row_packs);
  return {.tensors = 2,
          .kept = (bytes == 4 ? 1 : 2) * (is_long ? 1 : 2),
          .pieces = kWidePieces,
          .least_slots = 4,
          .few_blocks = false,
          .reach = rms_norm::kWidePiecePacks + rms_norm::kWarp};
}

// Whether the forward gives each of many clusters every n-th row, so that what all of them read
// lies together, rather than rows that follow one another: each cluster then comes to each example.
// H200, bf16, 2^28 elements, every n-th / one by one: H 12288, 66 clusters, 91 / 86 %; H 16384 to
// 65536, 30 or 15 clusters, alike; 7 clusters, H 131072 with 18 rows of an example to each 90 / 93
// %, H 262144 with 9 83 / 92 %.
inline constexpr int64_t kWideRowsToStride = 15;  // Of an example, to each cluster.
inline constexpr int64_t kFewWideClusters = 8;

constexpr bool InStrides(int64_t clusters, int64_t group_rows) {
  return clusters > kFewWideClusters && group_rows >= kWideRowsToStride * clusters;
}

// Examples of fewer rows are for the other forward kernels: a cluster would do little but read what
// they are multiplied with. H200, bf16, 2^27 elements, these / others: H 16384, 2 rows 318 / 188
// us, 8 rows 196 us, where two rows to a block take 85 us for 4 x 1024, which are half as many; H
// 65536, 1 row 338 / 346 us, 2 rows 248 / 306 us. Backward, 1 row: H 16384 433 / 673 us, H 65536
// 431 / 758 us.
inline constexpr int64_t kWideExampleRows = 2;
inline constexpr int64_t kWideExampleRowsBesideForms = 32;

constexpr rms_norm::Policy SelectWideForward(int sm, int64_t row_packs, int bytes,
                                             int64_t group_rows) {
  const int64_t least = SelectRowsForm(row_packs, group_rows).rows > 0 ? kWideExampleRowsBesideForms
                                                                       : kWideExampleRows;
  if (row_packs <= 1024 || group_rows < least) return {};
  return rms_norm::CutWide(sm, row_packs, WideForwardForm(bytes));
}

constexpr rms_norm::Policy SelectWideBackward(int sm, int64_t row_packs, int bytes) {
  if (row_packs <= 1024) return {};
  return rms_norm::CutWide(sm, row_packs, WideBackwardForm(bytes, row_packs));
}

// A slice at its beginning has no row on its way: only for slices of this many turns.
inline constexpr int kManyTurns = 8;

// One row at a time, its sums in memory.
constexpr rms_norm::Policy SelectLooping(int64_t hidden) {
  const bool narrow = hidden <= 1024;
  return {.packs = 0,
          .threads_per_row = narrow ? 128 : 512,
          .rows_per_block = 1,
          .cluster = 1,
          .blocks_per_sm = narrow ? 8 : 2,
          .stages = 0,
          .shared_weight = false};
}

// Blocks or clusters that a device runs at once.
constexpr int64_t Resident(const rms_norm::Policy& policy, int sm_count) {
  constexpr int64_t kPlenty = int64_t{1} << 40;
  return rms_norm::BackwardBlocks(policy, kPlenty, sm_count) / policy.cluster;
}

// The cut of which the busiest block has least to do, in turns of rows_per_block rows. The end of a
// slice counts as two of them; as three more, if there are several to a group, what adds them up,
// unless dweight has that launched anyway.
constexpr Slices SelectSlices(int64_t groups, int64_t group_rows, int rows_per_block,
                              int64_t resident, bool has_dweight) {
  constexpr int64_t kMaxWaves = 4;
  constexpr int64_t kEndTurns = 2;
  constexpr int64_t kSumTurns = 3;
  const int64_t most = rms_norm::CeilDiv(group_rows, rows_per_block);
  Slices best = {1, group_rows};
  int64_t best_turns = INT64_MAX;
  for (int64_t wave = 0; wave <= kMaxWaves && groups > 0; ++wave) {
    int64_t per_group = wave * resident / groups;
    per_group = per_group > most ? most : per_group;
    if (per_group < 1) per_group = 1;
    const Slices slices = {per_group, rms_norm::CeilDiv(group_rows, per_group)};
    const int64_t rounds = rms_norm::CeilDiv(groups * per_group, resident);
    const int64_t turns = rounds * (rms_norm::CeilDiv(slices.rows, rows_per_block) + kEndTurns) +
                          (per_group > 1 && !has_dweight ? kSumTurns : 0);
    if (turns >= best_turns) continue;
    best = slices;
    best_turns = turns;
  }
  return best;
}

}  // namespace fuseboard::modulated_rms_norm

#endif  // KERNELS_MODULATED_RMS_NORM_MODULATED_RMS_NORM_POLICY_H_
