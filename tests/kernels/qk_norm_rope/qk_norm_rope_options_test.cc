// What the parameters, the weights and the tables change, and which results are wanted.

#include <gtest/gtest.h>

#include "tests/kernels/qk_norm_rope/qk_norm_rope_case.h"

namespace fuseboard::qk_norm_rope {
namespace {

using testing::KernelCall;
using testing::TestTensor;

constexpr int32_t kDTypes[] = {FB_F32, FB_F16, FB_BF16};

class QkNormRopeOptionsTest : public ::testing::TestWithParam<int> {
 protected:
  void ExpectBoth(const Case& c) { ExpectBothPhases(c, GetParam()); }
};

TEST_P(QkNormRopeOptionsTest, TheWeightMayHaveAnyDTypeOrBeAbsent) {
  for (const int32_t dtype : kDTypes) {
    for (const int32_t weight_dtype : kDTypes) {
      for (const int32_t casting : {FB_CASTING_LLAMA, FB_CASTING_GEMMA, FB_CASTING_NONE}) {
        for (const int32_t all_heads : {0, 1}) {
          // In runs; looping; a weight that is not aligned.
          for (const int64_t dim : {64, 72, 128}) {
            Case c = {.rope = {.dim = dim,
                               .rotary_dim = dim,
                               .dtype = dtype,
                               .table_dtype = dtype,
                               .round_products = 1},
                      .weight_dtype = weight_dtype,
                      .casting = casting,
                      .offset = 0.5,
                      .all_heads = all_heads,
                      .weight_offset = dim == 128 ? 1 : 0};
            ExpectBoth(c);
            c.weights = false;
            ExpectBoth(c);
          }
        }
      }
    }
  }
}

TEST_P(QkNormRopeOptionsTest, CastingsRoundLikeSeparateOperators) {
  for (const int32_t all_heads : {0, 1}) {
    for (const int32_t casting : {FB_CASTING_LLAMA, FB_CASTING_GEMMA, FB_CASTING_NONE}) {
      const Case c = {.rope = {.positions = 40,
                               .dim = 64,
                               .rotary_dim = 64,
                               .dtype = FB_BF16,
                               .table_dtype = FB_BF16,
                               .round_products = 1},
                      .weight_dtype = FB_BF16,
                      .casting = casting,
                      .all_heads = all_heads};
      const FbQkNormRopeParams params = c.params();
      KernelCall call = ForwardCall(c, &params);
      testing::Run(testing::OpenKernel("qk_norm_rope"), GetParam(), &call);
      const Reference here(c, call, 0);
      Case other = c;
      other.casting = casting == FB_CASTING_LLAMA ? FB_CASTING_GEMMA : FB_CASTING_LLAMA;
      const Reference there(other, call, 0);
      const TestTensor& y = call.outputs[0];
      int64_t wrong = 0;
      int64_t telling = 0;
      for (int64_t r = 0; r < y.rows(); ++r) {
        for (int64_t e = 0; e < y.cols(); ++e) {
          const double want = testing::RoundToDType(FB_BF16, here.Rotated(r, e));
          wrong += y.At(r, e) != want ? 1 : 0;
          telling += testing::RoundToDType(FB_BF16, there.Rotated(r, e)) != want ? 1 : 0;
        }
      }
      // f32 statistics may push a value over a tie of bf16, once in thousands.
      EXPECT_LE(wrong, 30);
      EXPECT_GT(telling, 1000);
    }
  }
}

TEST_P(QkNormRopeOptionsTest, TablesMayBePerExampleWideStridedUnalignedAndOfSections) {
  for (const int32_t dtype : kDTypes) {
    for (const int32_t table_dtype : {dtype, int32_t{FB_F32}}) {
      for (const int32_t interleaved : {0, 1}) {
        for (const bool per_pair : {false, true}) {
          Case c = {.rope = {.dim = 64,
                             .rotary_dim = 64,
                             .dtype = dtype,
                             .table_dtype = table_dtype,
                             .interleaved = interleaved,
                             .per_pair = per_pair,
                             .table_batch = 2}};
          ExpectBoth(c);
          c.rope.table_offset = 1;
          ExpectBoth(c);
          c.rope.table_step = 2;
          ExpectBoth(c);
          c.rope.sections = {5, 8, 19};
          ExpectBoth(c);
        }
      }
    }
  }
}

TEST_P(QkNormRopeOptionsTest, EpsAndOffsetCount) {
  for (const int32_t all_heads : {0, 1}) {
    ExpectBoth({.rope = {.dim = 32, .rotary_dim = 32},
                .casting = FB_CASTING_GEMMA,
                .eps = 3.0,
                .offset = 2.0,
                .all_heads = all_heads});
    ExpectBoth({.rope = {.dim = 10, .rotary_dim = 10},
                .casting = FB_CASTING_NONE,
                .eps = 0.0,
                .offset = -1.0,
                .all_heads = all_heads});
  }
}

TEST_P(QkNormRopeOptionsTest, OnlyWhatIsWantedIsWritten) {
  for (const int32_t all_heads : {0, 1}) {
    for (const int64_t dim : {64, 72}) {
      const Case c = {.rope = {.dim = dim, .rotary_dim = dim, .dtype = FB_BF16},
                      .weight_dtype = FB_BF16,
                      .all_heads = all_heads};
      const KernelCall all = ExpectBackward(c, GetParam());
      for (unsigned mask = 0; mask < 15; ++mask) {
        const KernelCall some = ExpectBackward(c, GetParam(), [&](KernelCall* call) {
          for (size_t i = 0; i < 4; ++i) {
            if ((mask >> i & 1) == 0) call->outputs[i] = TestTensor();
          }
        });
        for (size_t i = 0; i < 4; ++i) {
          if ((mask >> i & 1) == 0) continue;
          // The number of blocks of a side, and with it the order of a weight's sums, is another
          // where the other side has no work.
          const bool same = i < 2 || GetParam() == FB_CPU || ((mask & 5) != 0 && (mask & 10) != 0);
          EXPECT_TRUE(!same || some.outputs[i].HasBitsOf(all.outputs[i]));
        }
      }
    }
  }
}

TEST_P(QkNormRopeOptionsTest, EitherUpstreamGradientMayBeAbsent) {
  for (const size_t absent : {0, 1}) {
    ExpectBackward({.rope = {.dim = 32, .rotary_dim = 32, .dtype = FB_F16}, .weight_dtype = FB_F16},
                   GetParam(), [&](KernelCall* call) {
                     call->inputs[absent] = TestTensor();
                     call->outputs[absent] = TestTensor();
                     call->outputs[2 + absent] = TestTensor();
                   });
  }
}

TEST_P(QkNormRopeOptionsTest, WhatIsNotRotatedDoesNotSeeTheRest) {
  // An infinite weight of one element is of no other's concern.
  for (const int32_t interleaved : {0, 1}) {
    for (const int64_t dim : {64, 33}) {
      const Case c = {
          .rope = {.dim = dim, .rotary_dim = 32, .dtype = FB_BF16, .interleaved = interleaved},
          .weight_dtype = FB_BF16};
      const FbQkNormRopeParams params = c.params();
      KernelCall call = ForwardCall(c, &params);
      call.inputs[4].Set(0, 32, INFINITY);
      testing::Run(testing::OpenKernel("qk_norm_rope"), GetParam(), &call);
      const TestTensor& y = call.outputs[0];
      for (int64_t r = 0; r < y.rows(); ++r) {
        for (int64_t e = 0; e < dim; ++e) EXPECT_EQ(std::isfinite(y.At(r, e)), e != 32);
      }
    }
  }
}

FB_INSTANTIATE_PER_DEVICE(QkNormRopeOptionsTest);

}  // namespace
}  // namespace fuseboard::qk_norm_rope
