#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/rope/rope_case.h"

namespace fuseboard::rope {
namespace {

using testing::ExpectClose;
using testing::KernelCall;
using testing::OpenKernel;
using testing::TestTensor;

constexpr int32_t kDTypes[] = {FB_F32, FB_F16, FB_BF16};

// Dimensions that are cut into runs of 16 bytes, of 8 (36 = 72 / 2, 12 = 24 / 2), and into elements
// (odd ones; 14 = 7 pairs); whole heads, parts, and a rest that is an odd number of runs.
struct Dims {
  int64_t dim;
  int64_t rotary_dim;
};
constexpr Dims kDims[] = {{128, 128}, {80, 80}, {512, 512}, {64, 16}, {80, 32},
                          {96, 96},   {72, 72}, {64, 24},   {24, 8},  {2, 2},
                          {7, 2},     {14, 14}, {33, 32},   {40, 6},  {256, 64}};

class RopeTest : public ::testing::TestWithParam<int> {
 protected:
  KernelCall ExpectPhase(const Case& c, FbPhase phase) {
    SCOPED_TRACE(c.Name() + ", phase " + std::to_string(phase));
    const FbRopeParams params = c.params();
    KernelCall call = CallOf(c, phase, &params);
    testing::Run(OpenKernel("rope"), GetParam(), &call);
    const Reference want(c, call);
    for (const int i : {0, 1}) {
      if (call.outputs[i].absent()) continue;
      // A difference of two products: its error is relative to theirs.
      ExpectClose(
          call.outputs[i], [&](auto r, auto e) { return want(i, r, e); }, 1.0);
    }
    return call;
  }

  void ExpectBothPhases(const Case& c) {
    ExpectPhase(c, FB_FORWARD);
    ExpectPhase(c, FB_BACKWARD);
  }
};

TEST_P(RopeTest, BothFormsAgreeWithDoubleOnAllDTypesAndDims) {
  for (const int32_t dtype : kDTypes) {
    for (const Dims& dims : kDims) {
      for (const int32_t interleaved : {0, 1}) {
        for (const char* order : {"bsh", "bhs"}) {
          Case c = {.dim = dims.dim,
                    .rotary_dim = dims.rotary_dim,
                    .dtype = dtype,
                    .table_dtype = dtype,
                    .interleaved = interleaved,
                    .in = {.order = order},
                    .out = {.order = order}};
          ExpectBothPhases(c);
          c.round_products = 1;
          ExpectBothPhases(c);
          c.per_pair = true;
          ExpectBothPhases(c);
          c.table_dtype = FB_F32;
          ExpectBothPhases(c);
        }
      }
    }
  }
}

TEST_P(RopeTest, TablesMayBePerExampleStridedAndUnaligned) {
  for (const int32_t dtype : kDTypes) {
    for (const int32_t table_dtype : {dtype, int32_t{FB_F32}}) {
      for (const int32_t interleaved : {0, 1}) {
        for (const bool per_pair : {false, true}) {
          Case c = {.dim = 64,
                    .rotary_dim = 64,
                    .dtype = dtype,
                    .table_dtype = table_dtype,
                    .interleaved = interleaved,
                    .per_pair = per_pair,
                    .table_batch = 2};
          ExpectBothPhases(c);
          c.table_offset = 1;
          ExpectBothPhases(c);
          c.table_step = 2;  // The real or imaginary parts of complex numbers.
          ExpectBothPhases(c);
        }
      }
    }
  }
}

TEST_P(RopeTest, SectionsTakeTheirFactorsFromTheirStream) {
  // Whole runs; not; empty ones.
  for (const auto& sections : {std::vector<int64_t>{16, 24, 24}, {21, 22, 21}, {0, 63, 1}}) {
    for (const int32_t dtype : kDTypes) {
      for (const int32_t interleaved : {0, 1}) {
        for (const bool per_pair : {false, true}) {
          Case c = {.dim = 136,
                    .rotary_dim = 128,
                    .dtype = dtype,
                    .table_dtype = dtype,
                    .interleaved = interleaved,
                    .per_pair = per_pair,
                    .table_batch = 2,
                    .sections = sections};
          ExpectBothPhases(c);
          c.dim = 128;
          c.round_products = 1;
          ExpectBothPhases(c);
        }
      }
    }
  }
}

TEST_P(RopeTest, HeadsMayLieInAnyOrderApartAndUnaligned) {
  for (const int32_t dtype : kDTypes) {
    for (const char* order : {"bsh", "bhs", "sbh", "shb", "hbs", "hsb"}) {
      for (const int64_t pad : {0, 8, 4, 1}) {
        for (const int64_t offset : {0, 4, 1}) {
          Case c = {.dim = 32,
                    .rotary_dim = 32,
                    .dtype = dtype,
                    .in = {.order = order, .pad = pad, .offset = offset},
                    .out = {.order = "bhs", .pad = pad}};
          ExpectBothPhases(c);
          c.table_dtype = dtype;
          c.round_products = 1;
          ExpectBothPhases(c);
        }
      }
    }
  }
}

TEST_P(RopeTest, AnExpandedUpstreamGradientIsReadAsItLies) {
  for (const char* expanded : {"bhs", "s", "h", "b"}) {
    Case c = {.dim = 64, .rotary_dim = 64, .dtype = FB_BF16, .in = {.expanded = expanded}};
    ExpectPhase(c, FB_BACKWARD);
    c.table_dtype = FB_BF16;
    c.round_products = 1;
    ExpectPhase(c, FB_BACKWARD);
  }
}

TEST_P(RopeTest, AnyNumberOfHeadsAndPositions) {
  // One head; grouped queries; more heads than a block takes in one turn; one position; more
  // positions than a block has; a head that is more than a block of threads.
  struct Sizes {
    int64_t batch, heads, k_heads, positions, dim;
  };
  for (const Sizes& s : {Sizes{1, 1, kNoHeads, 1, 16},
                         {3, 1, 1, 67, 16},
                         {1, 32, 8, 9, 128},
                         {2, 71, 1, 3, 128},
                         {1, 700, 3, 2, 16},
                         {5, 4, 4, 1, 64},
                         {2, 2, 1, 3, 5120},
                         {1, 2, 1, 3, 1022}}) {
    for (const int32_t interleaved : {0, 1}) {
      for (const char* order : {"bsh", "bhs"}) {
        Case c = {.batch = s.batch,
                  .heads = s.heads,
                  .k_heads = s.k_heads,
                  .positions = s.positions,
                  .dim = s.dim,
                  .rotary_dim = s.dim,
                  .dtype = FB_BF16,
                  .table_dtype = FB_BF16,
                  .interleaved = interleaved,
                  .in = {.order = order},
                  .out = {.order = order}};
        ExpectBothPhases(c);
        c.round_products = 1;
        ExpectBothPhases(c);
      }
    }
  }
}

TEST_P(RopeTest, EitherTensorMayBeAbsentFromTheBackward) {
  Case c = {
      .dim = 32, .rotary_dim = 32, .dtype = FB_F16, .table_dtype = FB_F16, .round_products = 1};
  const KernelCall both = ExpectPhase(c, FB_BACKWARD);
  c.k_heads = kNoHeads;
  EXPECT_EQ(ExpectPhase(c, FB_BACKWARD).outputs[0].image(), both.outputs[0].image());
  c.k_heads = 2;
  c.heads = kNoHeads;
  EXPECT_EQ(ExpectPhase(c, FB_BACKWARD).outputs[1].image(), both.outputs[1].image());
  c.k_heads = kNoHeads;
  ExpectPhase(c, FB_BACKWARD);
}

TEST_P(RopeTest, NothingToDoIsSuccess) {
  ExpectBothPhases({.batch = 0});
  ExpectBothPhases({.positions = 0});
  ExpectBothPhases({.heads = 0, .k_heads = 0});
  ExpectBothPhases({.heads = 0});
}

TEST_P(RopeTest, RoundProductsRoundsLikeSeparateOperators) {
  for (const int32_t dtype : kDTypes) {
    for (const FbPhase phase : {FB_FORWARD, FB_BACKWARD}) {
      for (const int32_t interleaved : {0, 1}) {
        const Case c = {.positions = 40,
                        .dim = 64,
                        .rotary_dim = 64,
                        .dtype = dtype,
                        .table_dtype = dtype,
                        .interleaved = interleaved,
                        .round_products = 1};
        const FbRopeParams params = c.params();
        KernelCall call = CallOf(c, phase, &params);
        testing::Run(OpenKernel("rope"), GetParam(), &call);
        Case other = c;
        other.round_products = 0;
        const Reference here(c, call);
        const Reference there(other, call);
        int64_t telling = 0;
        const TestTensor& y = call.outputs[0];
        for (int64_t r = 0; r < y.rows(); ++r) {
          for (int64_t e = 0; e < c.dim; ++e) {
            // Two roundings of the sum, of which the first is exact but for f32.
            ASSERT_EQ(y.At(r, e), testing::RoundToDType(dtype, here(0, r, e)));
            telling += y.At(r, e) != testing::RoundToDType(dtype, there(0, r, e)) ? 1 : 0;
          }
        }
        EXPECT_GT(telling, 1000);
      }
    }
  }
}

TEST_P(RopeTest, WiderTablesKeepTheProductsWide) {
  Case c = {.dim = 32, .rotary_dim = 32, .dtype = FB_BF16, .table_dtype = FB_F32};
  const KernelCall wide = ExpectPhase(c, FB_FORWARD);
  c.round_products = 1;
  EXPECT_EQ(ExpectPhase(c, FB_FORWARD).outputs[0].image(), wide.outputs[0].image());
}

TEST_P(RopeTest, WhatIsNotRotatedKeepsItsBits) {
  for (const int32_t dtype : kDTypes) {
    for (const int32_t interleaved : {0, 1}) {
      for (const Dims& dims : {Dims{64, 16}, {72, 24}, {33, 6}}) {
        const Case c = {.dim = dims.dim,
                        .rotary_dim = dims.rotary_dim,
                        .dtype = dtype,
                        .interleaved = interleaved};
        const FbRopeParams params = c.params();
        KernelCall call = CallOf(c, FB_FORWARD, &params);
        TestTensor& x = call.inputs[0];
        for (int64_t r = 0; r < x.rows(); ++r) {
          for (int64_t e = c.rotary_dim; e < c.dim; ++e) {
            x.Set(r, e, e % 3 == 0 ? INFINITY : (e % 3 == 1 ? std::nan("") : -0.0));
          }
        }
        testing::Run(OpenKernel("rope"), GetParam(), &call);
        for (int64_t r = 0; r < x.rows(); ++r) {
          for (int64_t e = 0; e < c.dim; ++e) {
            const double got = call.outputs[0].At(r, e);
            if (e < c.rotary_dim) {
              ASSERT_TRUE(std::isfinite(got));
            } else {
              ASSERT_TRUE(got == x.At(r, e) || (std::isnan(got) && e % 3 == 1));
              ASSERT_EQ(std::signbit(got), std::signbit(x.At(r, e)));
            }
          }
        }
      }
    }
  }
}

TEST_P(RopeTest, PositionsAreCountedBeyondSixteenBits) {
  ExpectPhase({.batch = 1,
               .heads = 1,
               .k_heads = kNoHeads,
               .positions = 131073,
               .dim = 2,
               .rotary_dim = 2,
               .dtype = FB_BF16},
              FB_FORWARD);
}

FB_INSTANTIATE_PER_DEVICE(RopeTest);

}  // namespace
}  // namespace fuseboard::rope
