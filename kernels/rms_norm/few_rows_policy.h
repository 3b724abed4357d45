// When the backward of a norm is the one kernel for few rows, and how it is cut. Host-only and
// constexpr, so it is tested without a GPU.

#ifndef KERNELS_RMS_NORM_FEW_ROWS_POLICY_H_
#define KERNELS_RMS_NORM_FEW_ROWS_POLICY_H_

#include "kernels/rms_norm/rms_norm_policy.h"

namespace fuseboard::rms_norm {

inline constexpr int kFewRowsMaxThreads = 512;
// Packs side by side that a block adds up all rows of. 64 x 4096: 4.4 us, with 4 packs 4.6, with 16
// 4.6; 256 x 4096 6.0, 5.9 and 7.1.
inline constexpr int kFewRowsTile = 8;
inline constexpr int kFewRowsBatch = 1;

// Above this the kernels for many rows are as good, or not known to be worse. H200, bf16, this
// kernel / the others, us between events: 64 x 1024 4.0 / 7.4, 64 x 2048 4.2 / 8.1, 64 x 4096 4.4 /
// 8.1, 64 x 8192 5.4 / 11.7; 256 x 256 4.9 / 7.0, 512 x 256 6.2 / 6.7; 512 x 512 6.2 / 7.4, 1024 x
// 512 8.6 / 8.1; 768 x 1024 7.6 / 9.1, 1024 x 1024 8.8 / 8.9; 1024 x 2048 9.5 / 12.4, 1024 x 4096
// 11.0 / 17.0, 1024 x 8192 20.6 / 24.2; 2048 x 2048 15.0 / 15.3, 2048 x 8192 35.7 / 34.9.
// layer_norm 64 x 4096 4.9 / 10.6, 1024 x 8192 22.8 / 31.1.
constexpr int64_t MostFewRows(int64_t row_packs) {
  if (row_packs > 2 * kFewRowsMaxThreads) return 0;
  return row_packs >= 256 ? 1024 : row_packs >= 128 ? 768 : row_packs >= 32 ? 512 : 256;
}

// packs == 0: too many rows, or too wide. 512 threads: 1024 x 4096 11.0 us, 256 14.8.
constexpr Policy SelectFewRows(int64_t rows, int64_t row_packs) {
  const int64_t most = MostFewRows(row_packs);
  if (most == 0 || rows > most) return {};
  return {.packs = row_packs <= kFewRowsMaxThreads ? 1 : 2,
          .threads_per_row = kFewRowsMaxThreads,
          .rows_per_block = 1,
          .cluster = 1,
          .blocks_per_sm = 0,
          .stages = 0,
          .shared_weight = false,
          .wide = false,
          .few_rows = true};
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_FEW_ROWS_POLICY_H_
