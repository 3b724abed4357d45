// How fused_linear_cross_entropy cuts its rows into chunks. A function of shapes alone: ranks of a
// job with equal shapes cut alike, whatever memory they have free and however many labels they
// ignore.

#ifndef KERNELS_TORCH_FUSED_LINEAR_CROSS_ENTROPY_CHUNKS_H_
#define KERNELS_TORCH_FUSED_LINEAR_CROSS_ENTROPY_CHUNKS_H_

#include <algorithm>
#include <cstdint>

namespace fuseboard::torch_binding {

// 512 MiB is 2092 rows of a bf16 vocabulary of 128,256, so 8192 rows make 4 chunks of 2048. H200,
// 8192 x 4096 x 128256, gradients included: 40.3 ms at 2048 rows, 45.3 at 1024, 48.1 at 512, 41.0
// at 4096.
inline constexpr int64_t kDefaultChunkBytes = int64_t{512} << 20;

// GEMM tiles are 128 or 256 rows; a chunk that ends within one wastes the rest of it.
inline constexpr int64_t kChunkRowMultiple = 256;

// Up to here dW is accumulated in the weight's dtype, which needs no fp32 copy of the weight's
// size. What it costs: root mean square error of dW against float64, relative to eager's, bf16,
// 4096 x 64 x 512:
//   chunks                 1     2     4     8     16    64
//   in bf16                1.00  1.16  1.43  1.84  2.48  4.76
//   in fp32, any number    1.00
inline constexpr int64_t kMaxChunksInWeightDtype = 8;

struct ChunkPlan {
  int64_t rows;      // Of each chunk but the last.
  int64_t chunks;    // 0 if there are no rows.
  int64_t row_step;  // Elements from one row of the logits buffer to the next.

  friend constexpr bool operator==(const ChunkPlan&, const ChunkPlan&) = default;
};

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// `chunk_bytes` is the budget of the logits buffer, 0: the default. A chunk has at least one row.
// Chunks are made alike: 2100 rows at a budget of 2048 are two of 1280 and 820, not of 2048 and 52.
constexpr ChunkPlan PlanChunks(int64_t rows, int64_t vocab, int64_t element_bytes,
                               int64_t chunk_bytes) {
  // 64 elements of 2 bytes: every row begins on a 128-byte line.
  const int64_t row_step = std::max<int64_t>(1, CeilDiv(vocab, 64)) * 64;
  const int64_t budget = chunk_bytes > 0 ? chunk_bytes : kDefaultChunkBytes;
  int64_t most = std::max<int64_t>(1, budget / (row_step * element_bytes));
  if (most > kChunkRowMultiple) most = most / kChunkRowMultiple * kChunkRowMultiple;
  if (rows <= most) return {rows, rows > 0 ? 1 : 0, row_step};
  int64_t per_chunk = CeilDiv(rows, CeilDiv(rows, most));
  if (most >= kChunkRowMultiple)
    per_chunk = CeilDiv(per_chunk, kChunkRowMultiple) * kChunkRowMultiple;
  return {per_chunk, CeilDiv(rows, per_chunk), row_step};
}

static_assert(PlanChunks(8192, 128256, 2, 0) == ChunkPlan{2048, 4, 128256});
static_assert(PlanChunks(1024, 128256, 2, 0) == ChunkPlan{1024, 1, 128256});
static_assert(PlanChunks(2100, 128256, 2, 0) == ChunkPlan{1280, 2, 128256});
static_assert(PlanChunks(5, 3, 4, 1) == ChunkPlan{1, 5, 64});
static_assert(PlanChunks(0, 3, 4, 0) == ChunkPlan{0, 0, 64});

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_FUSED_LINEAR_CROSS_ENTROPY_CHUNKS_H_
