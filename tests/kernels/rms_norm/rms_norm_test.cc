#include <gtest/gtest.h>

#include "tests/kernels/rms_norm/rms_norm_case.h"

namespace fuseboard::rms_norm {
namespace {

using testing::ExpectClose;
using testing::KernelCall;
using testing::Layout;
using testing::OpenKernel;
using testing::TestTensor;

// Each path of the policies, and widths that no vector divides: 1; 3; one pack; part of a warp; 125
// packs, which fill no power of two; block per row, whole and ragged; 4097: element by element, a
// block per row; beyond 2,048 packs: 8 packs per thread, then clusters. 5 rows leave a block half
// empty.
struct Shape {
  int64_t rows;
  int64_t hidden;
};
constexpr Shape kShapes[] = {{1, 1},    {5, 3},    {5, 8},    {5, 128},   {3, 1000},  {5, 1536},
                             {2, 4096}, {2, 4097}, {3, 5120}, {2, 16392}, {2, 33000}, {0, 64}};

struct DTypes {
  int32_t x;
  int32_t weight;
};
constexpr DTypes kDTypes[] = {{FB_F32, FB_F32},    {FB_F32, FB_BF16}, {FB_F32, kNoWeight},
                              {FB_F16, FB_F16},    {FB_F16, FB_F32},  {FB_F16, FB_BF16},
                              {FB_BF16, FB_BF16},  {FB_BF16, FB_F32}, {FB_BF16, FB_F16},
                              {FB_BF16, kNoWeight}};

class RmsNormTest : public ::testing::TestWithParam<int> {
 protected:
  void ExpectForward(const Case& c) {
    SCOPED_TRACE(c.Name());
    const FbRmsNormParams params = c.params();
    KernelCall call = ForwardCall(c, &params);
    testing::Run(OpenKernel("rms_norm"), GetParam(), &call);
    const Reference reference(c, call.inputs[0], call.inputs[1]);
    ExpectClose(
        call.outputs[0], [&](auto r, auto i) { return reference.Y(r, i); }, 0.0, c.x_dtype);
    ExpectClose(call.outputs[1], [&](auto, auto r) { return reference.Rstd(r); });
  }

  void ExpectBackward(const Case& c, const Layout& dy_layout = {}) {
    SCOPED_TRACE(c.Name());
    const FbRmsNormParams params = c.params();
    KernelCall call = BackwardCall(c, &params, dy_layout);
    testing::Run(OpenKernel("rms_norm"), GetParam(), &call);
    const Reference reference(c, call.inputs[1], call.inputs[2]);
    const auto want = reference.Backward(call.inputs[0]);
    // Differences of terms near 1, and for dweight sums of them: errors are relative to the terms.
    ExpectClose(
        call.outputs[0], [&](auto r, auto i) { return want.dx[r][i]; }, 0.1);
    if (call.outputs[1].absent()) return;
    ExpectClose(
        call.outputs[1], [&](auto, auto i) { return want.dweight[i]; },
        std::sqrt(static_cast<double>(c.rows)), c.x_dtype);
  }

  bool IsGpu() const { return GetParam() == FB_CUDA; }
};

TEST_P(RmsNormTest, ForwardAgreesWithDoubleOnAllDTypesAndShapes) {
  for (const DTypes& dtypes : kDTypes) {
    for (const Shape& shape : kShapes) {
      for (const int32_t casting : {FB_CASTING_LLAMA, FB_CASTING_GEMMA}) {
        ExpectForward({.rows = shape.rows,
                       .hidden = shape.hidden,
                       .x_dtype = dtypes.x,
                       .weight_dtype = dtypes.weight,
                       .casting = casting,
                       .offset = casting == FB_CASTING_GEMMA ? 1.0 : 0.0});
      }
    }
  }
}

TEST_P(RmsNormTest, BackwardAgreesWithDoubleOnAllDTypesAndShapes) {
  for (const DTypes& dtypes : kDTypes) {
    for (const Shape& shape : kShapes) {
      for (const int32_t casting : {FB_CASTING_LLAMA, FB_CASTING_GEMMA}) {
        ExpectBackward({.rows = shape.rows,
                        .hidden = shape.hidden,
                        .x_dtype = dtypes.x,
                        .weight_dtype = dtypes.weight,
                        .casting = casting,
                        .offset = casting == FB_CASTING_GEMMA ? 1.0 : 0.0});
      }
    }
  }
}

TEST_P(RmsNormTest, TheWidestRowsAgreeWithDouble) {
  // On sm_90: 8 and 16 blocks per row; then, for f32, the looping kernel in the backward.
  for (const int64_t hidden : {65536, 131072, 262144}) {
    for (const int32_t dtype : {FB_F32, FB_BF16}) {
      ExpectForward({.rows = 2, .hidden = hidden, .x_dtype = dtype, .weight_dtype = dtype});
      ExpectBackward({.rows = 2, .hidden = hidden, .x_dtype = dtype, .weight_dtype = dtype});
    }
  }
}

TEST_P(RmsNormTest, ManyOfTheWidestRowsAgreeWithDouble) {
  // On an H200 7 clusters of 16 blocks, in one piece and in several, or 30 of 4: more rows to some
  // of them than a ring has slots, and one more to some than to others. On a CPU a row is a row.
  const int64_t factor = IsGpu() ? 20 : 1;
  for (const Shape& shape :
       {Shape{3 * factor, 131064}, {2 * factor - 1, 140000}, {20 * factor + 1, 20488}}) {
    ExpectForward(
        {.rows = shape.rows, .hidden = shape.hidden, .x_dtype = FB_BF16, .weight_dtype = FB_BF16});
    ExpectBackward(
        {.rows = shape.rows, .hidden = shape.hidden, .x_dtype = FB_BF16, .weight_dtype = FB_BF16});
  }
  ExpectForward({.rows = 3, .hidden = 140000, .x_dtype = FB_F16, .weight_dtype = FB_F16});
  ExpectBackward({.rows = 3, .hidden = 140000, .x_dtype = FB_F16, .weight_dtype = FB_F16});
}

TEST_P(RmsNormTest, WideRowsMayLieApartOverlapOrBeUnaligned) {
  for (const int64_t stride : {0, 20488, 20496, 20491}) {
    const Case c = {.rows = 9,
                    .hidden = 20488,
                    .x_dtype = FB_BF16,
                    .weight_dtype = stride == 20496 ? kNoWeight : int32_t{FB_BF16},
                    .x_layout = {.row_stride = stride},
                    .y_layout = {.row_stride = 20504}};
    ExpectForward(c);
    ExpectBackward(c, {.row_stride = stride});
  }
  const Case unaligned = {.rows = 3,
                          .hidden = 20488,
                          .x_dtype = FB_BF16,
                          .weight_dtype = FB_BF16,
                          .x_layout = {.offset = 1}};
  ExpectForward(unaligned);
  ExpectBackward(unaligned);
}

TEST_P(RmsNormTest, BackwardAddsUpManyRowsPerBlock) {
  // On the GPU more rows than a persistent grid of 132 x 3 blocks takes in one turn, for each
  // number of packs per thread; on the CPU more than one block of 16 rows, and more than 64 of
  // them.
  const int64_t factor = IsGpu() ? 16 : 1;
  for (const Shape& shape : {Shape{1501, 64}, {201, 100}, {101, 1024}, {101, 8192}}) {
    for (const int32_t dtype : {FB_F32, FB_BF16}) {
      ExpectBackward({.rows = shape.rows * factor,
                      .hidden = shape.hidden,
                      .x_dtype = dtype,
                      .weight_dtype = dtype});
    }
  }
}

TEST_P(RmsNormTest, FewRowsAndMoreAgreeWithDouble) {
  // One kernel for few rows, in the widths that it takes; then a persistent grid.
  for (const DTypes& dtypes : kDTypes) {
    for (const int64_t hidden : {8, 64, 1000, 1536, 4096, 5120, 8192}) {
      for (const int64_t rows : {64, 1030}) {
        if (rows > 64 && hidden > (IsGpu() && dtypes.x != FB_F16 ? 1000 : 64)) continue;
        const Case c = {.rows = rows,
                        .hidden = hidden,
                        .x_dtype = dtypes.x,
                        .weight_dtype = dtypes.weight,
                        .casting = hidden == 4096 ? FB_CASTING_GEMMA : FB_CASTING_LLAMA,
                        .offset = hidden == 4096 ? 1.0 : 0.0};
        ExpectForward(c);
        ExpectBackward(c);
      }
    }
  }
}

TEST_P(RmsNormTest, BackwardSumsZeroRowsToZero) {
  const Case c = {.rows = 0, .hidden = 64};
  const FbRmsNormParams params = c.params();
  KernelCall call = BackwardCall(c, &params, {});
  testing::Run(OpenKernel("rms_norm"), GetParam(), &call);
  ExpectClose(call.outputs[1], [](auto, auto) { return 0.0; });
}

TEST_P(RmsNormTest, RowsMayLieApartOverlapOrBeOne) {
  for (const int32_t dtype : {FB_F32, FB_BF16}) {
    for (const int64_t stride : {0, 8, 64, 72, 73}) {
      const Case c = {.rows = 6,
                      .hidden = 64,
                      .x_dtype = dtype,
                      .weight_dtype = dtype,
                      .x_layout = {.row_stride = stride},
                      .y_layout = {.row_stride = 80}};
      ExpectForward(c);
      ExpectBackward(c, {.row_stride = stride});
    }
  }
}

TEST_P(RmsNormTest, AnExpandedUpstreamGradientIsReadAsItLies) {
  ExpectBackward({.rows = 40, .hidden = 4096, .x_dtype = FB_BF16, .weight_dtype = FB_BF16},
                 {.row_stride = 0});
}

TEST_P(RmsNormTest, BasesNeedNoAlignment) {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int64_t hidden : {64, 4096}) {
      ExpectForward({.rows = 3,
                     .hidden = hidden,
                     .x_dtype = dtype,
                     .weight_dtype = dtype,
                     .x_layout = {.offset = 1}});
      ExpectBackward({.rows = 3,
                      .hidden = hidden,
                      .x_dtype = dtype,
                      .weight_dtype = dtype,
                      .y_layout = {.offset = 3}});
    }
  }
}

TEST_P(RmsNormTest, RowsMayBeginAnywhere) {
  // All rows alike, a weight that begins elsewhere: 16-byte packs from some width on, a warp or a
  // block to a row, several rows to a block of the backward; then clusters.
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int64_t hidden : {1, 3, 7, 12, 65, 131, 257, 517, 2881, 2882, 4097}) {
      for (const int64_t offset : {0, 1, 3}) {
        const Case c = {.rows = 11,
                        .hidden = hidden,
                        .x_dtype = dtype,
                        .weight_dtype = offset == 3 ? kNoWeight : dtype,
                        .casting = offset == 1 ? FB_CASTING_GEMMA : FB_CASTING_LLAMA,
                        .offset = offset == 1 ? 1.0 : 0.0,
                        .x_layout = {.offset = offset},
                        .y_layout = {.offset = offset},
                        .weight_offset = hidden % 5};
        ExpectForward(c);
        // Of fewer columns a gradient is what two terms of any size leave: kShapes has some.
        if (hidden >= 7) ExpectBackward(c, {.offset = offset});
      }
    }
  }
  for (const int64_t hidden : {16385, 20491, 40001, 70001}) {
    const Case c = {.rows = 9, .hidden = hidden, .x_dtype = FB_BF16, .weight_dtype = FB_BF16};
    ExpectForward(c);
    ExpectBackward(c);
  }
}

TEST_P(RmsNormTest, RowsNeedNotBeginAlike) {
  // Strides that keep them alike, or not; an upstream gradient that is one row.
  for (const int64_t x_apart : {3, 5}) {
    const Case c = {.rows = 19,
                    .hidden = 515,
                    .x_dtype = FB_BF16,
                    .weight_dtype = FB_BF16,
                    .x_layout = {.row_stride = 515 + x_apart, .offset = 1},
                    .y_layout = {.row_stride = 515 + 3, .offset = 1}};
    ExpectForward(c);
    ExpectBackward(c, {.row_stride = 515 + 3, .offset = 1});
    ExpectBackward(c, {.row_stride = 0, .offset = 2});
  }
}

TEST_P(RmsNormTest, ManyRowsThatBeginAnywhereAreAddedUp) {
  // On the GPU more rows than a persistent grid takes in one turn, for each number of packs; the
  // last turn is not full.
  const int64_t factor = IsGpu() ? 16 : 1;
  for (const Shape& shape : {Shape{1501, 65}, {201, 257}, {101, 1026}, {61, 2881}, {41, 5121}}) {
    for (const int32_t dtype : {FB_F32, FB_BF16}) {
      ExpectBackward({.rows = shape.rows * factor,
                      .hidden = shape.hidden,
                      .x_dtype = dtype,
                      .weight_dtype = dtype});
    }
  }
}

TEST_P(RmsNormTest, TwoRunsOfRowsThatBeginAnywhereAreBitEqual) {
  const Case c = {
      .rows = IsGpu() ? 901 : 35, .hidden = 4097, .x_dtype = FB_BF16, .weight_dtype = FB_BF16};
  const FbRmsNormParams params = c.params();
  KernelCall first = BackwardCall(c, &params, {});
  KernelCall second = first;
  testing::Run(OpenKernel("rms_norm"), GetParam(), &first);
  testing::Run(OpenKernel("rms_norm"), GetParam(), &second);
  EXPECT_EQ(first.outputs[0].image(), second.outputs[0].image());
  EXPECT_EQ(first.outputs[1].image(), second.outputs[1].image());
}

TEST_P(RmsNormTest, EachOptionalOutputMayBeAbsent) {
  for (const int64_t hidden : {256, 257}) {
    const Case c = {.rows = 7, .hidden = hidden, .x_dtype = FB_BF16, .weight_dtype = FB_BF16};
    const FbRmsNormParams params = c.params();
    const FbKernel& kernel = OpenKernel("rms_norm");

    KernelCall full = ForwardCall(c, &params);
    KernelCall no_rstd = full;
    no_rstd.outputs[1] = TestTensor();
    testing::Run(kernel, GetParam(), &full);
    testing::Run(kernel, GetParam(), &no_rstd);
    EXPECT_EQ(full.outputs[0].image(), no_rstd.outputs[0].image());

    KernelCall both = BackwardCall(c, &params, {});
    KernelCall only_dx = both;
    KernelCall only_dweight = both;
    KernelCall neither = both;
    only_dx.outputs[1] = TestTensor();
    only_dweight.outputs[0] = TestTensor();
    neither.outputs = {TestTensor(), TestTensor()};
    for (KernelCall* call : {&both, &only_dx, &only_dweight, &neither}) {
      testing::Run(kernel, GetParam(), call);
    }
    EXPECT_EQ(both.outputs[0].image(), only_dx.outputs[0].image());
    EXPECT_EQ(both.outputs[1].image(), only_dweight.outputs[1].image());
  }
}

TEST_P(RmsNormTest, LlamaRoundsBeforeTheWeightAndGemmaOnlyAfterIt) {
  const FbKernel& kernel = OpenKernel("rms_norm");
  for (const int32_t casting : {FB_CASTING_LLAMA, FB_CASTING_GEMMA, FB_CASTING_NONE}) {
    const Case c = {
        .rows = 4, .hidden = 2048, .x_dtype = FB_BF16, .weight_dtype = FB_BF16, .casting = casting};
    Case other = c;
    other.casting = casting == FB_CASTING_LLAMA ? FB_CASTING_GEMMA : FB_CASTING_LLAMA;
    const FbRmsNormParams params = c.params();
    KernelCall call = ForwardCall(c, &params);
    testing::Run(kernel, GetParam(), &call);
    const Reference here(c, call.inputs[0], call.inputs[1]);
    const Reference there(other, call.inputs[0], call.inputs[1]);
    int64_t wrong = 0;
    int64_t telling = 0;
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t i = 0; i < c.hidden; ++i) {
        const double want = testing::RoundToDType(FB_BF16, here.Y(r, i));
        wrong += call.outputs[0].At(r, i) != want ? 1 : 0;
        telling += testing::RoundToDType(FB_BF16, there.Y(r, i)) != want ? 1 : 0;
      }
    }
    // f32 statistics may push a value over a tie of bf16, once in thousands.
    EXPECT_LE(wrong, 8);
    EXPECT_GT(telling, 1000);
  }
}

TEST_P(RmsNormTest, TheOffsetIsAddedInFloat) {
  // In bf16, 1 + 2^-8 is 1. Constant rows have normed values of 1.
  const Case c = {.rows = 2,
                  .hidden = 8,
                  .x_dtype = FB_BF16,
                  .weight_dtype = FB_BF16,
                  .casting = FB_CASTING_GEMMA,
                  .eps = 0.0,
                  .offset = 1.0};
  const FbRmsNormParams params = c.params();
  KernelCall call = ForwardCall(c, &params);
  call.inputs[0].Fill([](auto, auto i) { return i == 7 ? 1.0 : 0.5; });
  call.inputs[1].Fill([](auto, auto) { return 0x1p-8; });
  testing::Run(OpenKernel("rms_norm"), GetParam(), &call);
  // mean(x^2) = (7 / 4 + 1) / 8; 0.5 / sqrt(that) = 0.8528: times 1.00390625 it rounds to
  // 0.85546875, times 1 to 0.8515625.
  EXPECT_EQ(call.outputs[0].At(0, 0), 0.85546875);
}

TEST_P(RmsNormTest, HalfStatisticsDoNotOverflow) {
  for (const double value : {256.0, 60000.0}) {
    const Case c = {.rows = 2, .hidden = 4096, .x_dtype = FB_F16, .weight_dtype = FB_F16};
    const FbRmsNormParams params = c.params();
    KernelCall call = ForwardCall(c, &params);
    call.inputs[0].Fill([&](auto, auto) { return value; });
    testing::Run(OpenKernel("rms_norm"), GetParam(), &call);
    const TestTensor& weight = call.inputs[1];
    ExpectClose(call.outputs[0], [&](auto, auto i) { return weight.At(0, i); });
  }
}

TEST_P(RmsNormTest, EpsDoesNotDependOnTheDType) {
  // At 0.058 the mean square is 3.4e-3: a bf16 epsilon of 2^-7 would scale by 1 / 1.82.
  const Case c = {.rows = 16, .hidden = 32, .x_dtype = FB_BF16, .weight_dtype = kNoWeight};
  const FbRmsNormParams params = c.params();
  KernelCall call = ForwardCall(c, &params);
  call.inputs[0].FillNormal(7, 0.058);
  testing::Run(OpenKernel("rms_norm"), GetParam(), &call);
  const Reference reference(c, call.inputs[0], call.inputs[1]);
  ExpectClose(call.outputs[0], [&](auto r, auto i) { return reference.Y(r, i); });
}

TEST_P(RmsNormTest, ANanOrInfinityStaysInItsRow) {
  const Case c = {.rows = 3, .hidden = 128, .x_dtype = FB_BF16, .weight_dtype = FB_BF16};
  const FbRmsNormParams params = c.params();
  KernelCall clean = ForwardCall(c, &params);
  KernelCall dirty = clean;
  dirty.inputs[0].Set(1, 5, std::nan(""));
  testing::Run(OpenKernel("rms_norm"), GetParam(), &clean);
  testing::Run(OpenKernel("rms_norm"), GetParam(), &dirty);
  ExpectClose(dirty.outputs[0],
              [&](auto r, auto i) { return r == 1 ? std::nan("") : clean.outputs[0].At(r, i); });
}

TEST_P(RmsNormTest, RowsAreCountedBeyondSixteenBits) {
  for (const int64_t rows : {65535, 65536, 65537, 131073}) {
    if (!IsGpu() && rows != 65537) continue;
    const Case c = {.rows = rows, .hidden = 32, .x_dtype = FB_BF16, .weight_dtype = FB_BF16};
    const FbRmsNormParams params = c.params();
    KernelCall all = ForwardCall(c, &params);
    // Cheap to fill: rows of ones, and a last one that tells.
    all.inputs[0].Poison(0);
    for (int64_t i = 0; i < c.hidden; ++i) {
      all.inputs[0].Set(rows - 1, i, 1.0 + static_cast<double>(i));
    }
    Case one = c;
    one.rows = 1;
    KernelCall last = ForwardCall(one, &params);
    last.inputs[0].Fill([](auto, auto i) { return 1.0 + static_cast<double>(i); });
    testing::Run(OpenKernel("rms_norm"), GetParam(), &all);
    testing::Run(OpenKernel("rms_norm"), GetParam(), &last);
    for (int64_t i = 0; i < c.hidden; ++i) {
      ASSERT_EQ(all.outputs[0].At(rows - 1, i), last.outputs[0].At(0, i));
    }
    EXPECT_EQ(all.outputs[0].At(rows - 2, 0), 0.0);
  }
}

FB_INSTANTIATE_PER_DEVICE(RmsNormTest);

}  // namespace
}  // namespace fuseboard::rms_norm
