#include <gtest/gtest.h>

#include "tests/kernels/qk_norm_rope/qk_norm_rope_case.h"

namespace fuseboard::qk_norm_rope {
namespace {

constexpr int32_t kDTypes[] = {FB_F32, FB_F16, FB_BF16};

// Heads in runs of 16 bytes of 16-bit floats, of every number of threads that may share one: 2 (16
// elements), 4, 5 of 8 (80), 6 of 8, 8, 12 of 16 (192), 16 and 32 (512); partly rotated ones; and
// those that the looping kernels take: 72, odd ones, 14, 600 and 1,022.
struct Dims {
  int64_t dim;
  int64_t rotary_dim;
};
constexpr Dims kDims[] = {{16, 16},   {64, 64},   {80, 80},  {96, 96},  {128, 128}, {192, 192},
                          {256, 256}, {512, 512}, {128, 64}, {256, 64}, {80, 32},   {72, 72},
                          {33, 32},   {7, 2},     {14, 14},  {2, 2},    {600, 600}, {1022, 1022}};

class QkNormRopeTest : public ::testing::TestWithParam<int> {
 protected:
  void ExpectBoth(const Case& c) { ExpectBothPhases(c, GetParam()); }
};

TEST_P(QkNormRopeTest, BothRowsAndFormsAgreeWithDoubleOnAllDTypesAndDims) {
  for (const int32_t dtype : kDTypes) {
    for (const Dims& dims : kDims) {
      for (const int32_t interleaved : {0, 1}) {
        for (const int32_t all_heads : {0, 1}) {
          ExpectBoth({.rope = {.dim = dims.dim,
                               .rotary_dim = dims.rotary_dim,
                               .dtype = dtype,
                               .table_dtype = dtype,
                               .interleaved = interleaved,
                               .round_products = 1},
                      .weight_dtype = dtype,
                      .casting = interleaved == 0 ? FB_CASTING_LLAMA : FB_CASTING_GEMMA,
                      .offset = interleaved == 0 ? 0.0 : 1.0,
                      .all_heads = all_heads});
        }
      }
    }
  }
}

TEST_P(QkNormRopeTest, AnyNumberOfHeadsAndPositions) {
  // One head; grouped queries; heads that take several turns, with all heads more than a block of
  // the backward, of the many-heads backward and of any has room for; one position; more positions
  // than a tile has; more tiles than a persistent grid has blocks, where there is one.
  const int64_t many = GetParam() == FB_CUDA ? 2500 : 100;
  struct Sizes {
    int64_t batch, heads, k_heads, positions, dim;
  };
  for (const Sizes& s : {Sizes{1, 1, kNoHeads, 1, 64},
                         {3, 1, 1, 67, 16},
                         {2, 32, 8, 9, 128},
                         {1, 40, 8, 5, 128},
                         {1, 64, 64, 3, 128},
                         {2, 71, 3, 3, 128},
                         {1, 150, 3, 2, 128},
                         {1, 16, 1, 7, 256},
                         {5, 4, 4, 1, 64},
                         {1, 1, kNoHeads, many, 512}}) {
    for (const int32_t all_heads : {0, 1}) {
      for (const char* order : {"bsh", "bhs"}) {
        Case c = {.rope = {.batch = s.batch,
                           .heads = s.heads,
                           .k_heads = s.k_heads,
                           .positions = s.positions,
                           .dim = s.dim,
                           .rotary_dim = s.dim,
                           .dtype = FB_BF16,
                           .table_dtype = FB_BF16,
                           .in = {.order = order},
                           .out = {.order = order}},
                  .weight_dtype = FB_BF16,
                  .all_heads = all_heads};
        ExpectBoth(c);
        // The order that is not a projection's has its own kernels on the GPU alone.
        if (GetParam() == FB_CPU && c.rope.in.order == "bhs") continue;
        c.rope.round_products = 1;
        ExpectBoth(c);
        // OLMo2's tables are of f32.
        c.rope.table_dtype = FB_F32;
        c.casting = FB_CASTING_GEMMA;
        ExpectBoth(c);
      }
    }
  }
}

TEST_P(QkNormRopeTest, HeadsMayLieInAnyOrderApartAndUnaligned) {
  for (const int32_t dtype : kDTypes) {
    for (const char* order : {"bsh", "bhs", "sbh", "shb", "hbs", "hsb"}) {
      for (const int64_t pad : {0, 8, 1}) {
        for (const int64_t offset : {0, 1}) {
          for (const int32_t all_heads : {0, 1}) {
            Case c = {.rope = {.dim = 32,
                               .rotary_dim = 32,
                               .dtype = dtype,
                               .in = {.order = order, .pad = pad, .offset = offset},
                               .out = {.order = "bhs", .pad = pad}},
                      .all_heads = all_heads};
            ExpectBoth(c);
            c.rope.table_dtype = c.weight_dtype = dtype;
            c.rope.round_products = 1;
            ExpectBoth(c);
          }
        }
      }
    }
  }
}

TEST_P(QkNormRopeTest, AnExpandedUpstreamGradientIsReadAsItLies) {
  for (const char* expanded : {"bhs", "s", "h", "b"}) {
    for (const int32_t all_heads : {0, 1}) {
      Case c = {
          .rope = {.dim = 64, .rotary_dim = 64, .dtype = FB_BF16, .in = {.expanded = expanded}},
          .weight_dtype = FB_BF16,
          .all_heads = all_heads};
      ExpectBackward(c, GetParam());
      c.rope.table_dtype = FB_BF16;
      c.rope.round_products = 1;
      ExpectBackward(c, GetParam());
    }
  }
}

TEST_P(QkNormRopeTest, NothingToDoIsSuccess) {
  for (const int32_t all_heads : {0, 1}) {
    ExpectBoth({.rope = {.batch = 0}, .all_heads = all_heads});
    ExpectBoth({.rope = {.positions = 0}, .all_heads = all_heads});
    ExpectBoth({.rope = {.heads = 0, .k_heads = 0}, .all_heads = all_heads});
    ExpectBoth({.rope = {.heads = 0}, .all_heads = all_heads});
  }
}

TEST_P(QkNormRopeTest, PositionsAreCountedBeyondSixteenBits) {
  ExpectBoth({.rope = {.batch = 1,
                       .heads = 1,
                       .k_heads = kNoHeads,
                       .positions = 66000,
                       .dim = 8,
                       .rotary_dim = 2,
                       .dtype = FB_BF16},
              .weight_dtype = FB_BF16});
}

FB_INSTANTIATE_PER_DEVICE(QkNormRopeTest);

}  // namespace
}  // namespace fuseboard::qk_norm_rope
