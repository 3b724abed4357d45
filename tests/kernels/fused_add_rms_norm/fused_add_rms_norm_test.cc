// fused_add_rms_norm against double: the sum bit for bit, the norm of the rounded sum, and the
// gradient that joins the one of the norm with the one of the sum.

#include "kernels/abi/fused_add_rms_norm.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/kernels/rms_norm/rms_norm_case.h"
#include "tests/testing/kernel_harness.h"

namespace fuseboard::fused_add_rms_norm {
namespace {

using rms_norm::Case;
using rms_norm::kNoWeight;
using rms_norm::Reference;
using testing::ExpectClose;
using testing::KernelCall;
using testing::Layout;
using testing::RoundToDType;
using testing::TestTensor;

const FbKernel& Kernel() { return testing::OpenKernel("fused_add_rms_norm"); }

TestTensor Residual(const Case& c) {
  return TestTensor(c.x_dtype, {c.rows, c.hidden}, c.x_layout).FillNormal(7);
}

// x + residual as the library must round it.
TestTensor SumOf(const Case& c) {
  const TestTensor x = c.X();
  const TestTensor residual = Residual(c);
  return TestTensor(c.x_dtype, {c.rows, c.hidden}).Fill([&](int64_t row, int64_t col) {
    const auto a = static_cast<float>(x.At(row, col));
    const auto b = static_cast<float>(residual.At(row, col));
    return RoundToDType(c.x_dtype, a + b);
  });
}

class FusedAddRmsNormTest : public ::testing::TestWithParam<int> {
 protected:
  void Forward(const Case& c) {
    SCOPED_TRACE(c.Name());
    const FbRmsNormParams params = c.params();
    KernelCall call = {
        FB_FORWARD,
        {c.X(), Residual(c), c.Weight()},
        {TestTensor(c.y_dtype(), {c.rows, c.hidden}, c.y_layout),
         TestTensor(c.x_dtype, {c.rows, c.hidden}, c.y_layout), TestTensor(FB_F32, {c.rows})},
        &params};
    testing::Run(Kernel(), GetParam(), &call);
    const TestTensor sum = SumOf(c);
    int64_t wrong = 0;
    for (int64_t row = 0; row < c.rows; ++row) {
      for (int64_t col = 0; col < c.hidden; ++col) {
        wrong += call.outputs[1].At(row, col) != sum.At(row, col);
      }
    }
    EXPECT_EQ(wrong, 0) << "sum";
    const Reference reference(c, sum, call.inputs[2]);
    ExpectClose(
        call.outputs[0], [&](int64_t row, int64_t col) { return reference.Y(row, col); }, 0.0,
        c.x_dtype);
    ExpectClose(call.outputs[2], [&](int64_t, int64_t row) { return reference.Rstd(row); });
  }

  void Backward(const Case& c, const Layout& dsum_layout, bool has_dsum) {
    SCOPED_TRACE(c.Name());
    const FbRmsNormParams params = c.params();
    const TestTensor sum = SumOf(c);
    const TestTensor dsum =
        has_dsum ? TestTensor(c.x_dtype, {c.rows, c.hidden}, dsum_layout).FillNormal(9)
                 : TestTensor();
    KernelCall call = {
        FB_BACKWARD,
        {TestTensor(c.y_dtype(), {c.rows, c.hidden}, c.y_layout).FillNormal(3), dsum, sum,
         c.Weight(), TestTensor(FB_F32, {c.rows})},
        {TestTensor(c.x_dtype, {c.rows, c.hidden}, c.y_layout),
         c.weight_dtype == kNoWeight ? TestTensor() : TestTensor(c.weight_dtype, {c.hidden})},
        &params};
    const Reference reference(c, sum, call.inputs[3]);
    call.inputs[4].Fill([&](int64_t, int64_t row) { return reference.Rstd(row); });
    testing::Run(Kernel(), GetParam(), &call);
    const auto want = reference.Backward(call.inputs[0]);
    ExpectClose(
        call.outputs[0],
        [&](int64_t row, int64_t col) {
          return want.dx[row][col] + (has_dsum ? dsum.At(row, col) : 0.0);
        },
        4.0);
    if (call.outputs[1].absent()) return;
    ExpectClose(
        call.outputs[1], [&](int64_t, int64_t col) { return want.dweight[col]; },
        4.0 * static_cast<double>(c.rows), c.x_dtype);
  }
};

// No rows, one element, a width that no vector divides, several blocks, rows that share a block,
// rows of clusters of 4 and 16 blocks.
constexpr std::pair<int64_t, int64_t> kShapes[] = {
    {0, 16}, {1, 1}, {3, 1000}, {5, 37}, {2, 4097}, {70, 128}, {3, 8192}, {3, 20488}, {2, 140000}};

TEST_P(FusedAddRmsNormTest, SumIsExactAndTheNormIsOfTheRoundedSum) {
  for (const auto& [rows, hidden] : kShapes) {
    for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
      for (const int32_t casting : {FB_CASTING_LLAMA, FB_CASTING_GEMMA, FB_CASTING_NONE}) {
        Forward({.rows = rows,
                 .hidden = hidden,
                 .x_dtype = dtype,
                 .weight_dtype = dtype,
                 .casting = casting,
                 .offset = casting == FB_CASTING_GEMMA ? 1.0 : 0.0});
      }
    }
  }
}

TEST_P(FusedAddRmsNormTest, GradientsOfNormAndSumAreJoinedInOneRounding) {
  for (const auto& [rows, hidden] : kShapes) {
    for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
      const Case c = {.rows = rows, .hidden = hidden, .x_dtype = dtype, .weight_dtype = dtype};
      Backward(c, {}, /*has_dsum=*/true);
      Backward(c, {}, /*has_dsum=*/false);
    }
  }
}

TEST_P(FusedAddRmsNormTest, FewRowsAndMoreAreAddedUp) {
  // One kernel for few rows, in the widths that it takes; then a persistent grid.
  for (const int64_t hidden : {64, 1000, 4096, 8192}) {
    for (const int64_t rows : {64, 1030}) {
      if (rows > 64 && hidden > (GetParam() == FB_CUDA ? 1000 : 64)) continue;
      for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
        const Case c = {.rows = rows, .hidden = hidden, .x_dtype = dtype, .weight_dtype = dtype};
        Forward(c);
        Backward(c, {.row_stride = 0}, /*has_dsum=*/true);
        Backward(c, {}, /*has_dsum=*/false);
      }
    }
  }
}

TEST_P(FusedAddRmsNormTest, ManyWideRowsPerClusterAreAddedUp) {
  // On a CPU a row is a row.
  const int64_t factor = GetParam() == FB_CUDA ? 15 : 1;
  for (const auto& [rows, hidden] :
       {std::pair<int64_t, int64_t>{26 * factor + 1, 20488}, {2 * factor + 1, 262136}}) {
    const Case c = {.rows = rows, .hidden = hidden, .x_dtype = FB_BF16, .weight_dtype = FB_BF16};
    Forward(c);
    Backward(c, {}, /*has_dsum=*/true);
    Backward(c, {}, /*has_dsum=*/false);
  }
}

TEST_P(FusedAddRmsNormTest, AnyStridesAndAlignments) {
  for (const int64_t hidden : {64, 200}) {
    const Case c = {.rows = 6,
                    .hidden = hidden,
                    .x_dtype = FB_BF16,
                    .weight_dtype = FB_BF16,
                    .x_layout = {.row_stride = hidden + 24, .offset = 1},
                    .y_layout = {.row_stride = hidden + 3}};
    Forward(c);
    Backward(c, {.row_stride = 0}, /*has_dsum=*/true);
    const Case expanded = {
        .rows = 6, .hidden = hidden, .x_dtype = FB_BF16, .x_layout = {.row_stride = 0}};
    Forward(expanded);
  }
}

TEST_P(FusedAddRmsNormTest, RowsMayBeginAnywhere) {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int64_t hidden : {1, 3, 7, 12, 65, 131, 257, 517, 2881, 2882, 4097, 20491}) {
      if (hidden > 5000 && dtype == FB_F16) continue;
      const Case c = {.rows = 11,
                      .hidden = hidden,
                      .x_dtype = dtype,
                      .weight_dtype = dtype,
                      .weight_offset = hidden % 5};
      Forward(c);
      Backward(c, {}, /*has_dsum=*/true);
      Backward(c, {}, /*has_dsum=*/false);
    }
  }
  const int64_t factor = GetParam() == FB_CUDA ? 16 : 1;
  for (const auto& [rows, hidden] :
       {std::pair<int64_t, int64_t>{401, 65}, {101, 1026}, {61, 2881}, {41, 5121}}) {
    Backward({.rows = rows * factor, .hidden = hidden, .x_dtype = FB_BF16, .weight_dtype = FB_BF16},
             {}, /*has_dsum=*/true);
  }
}

TEST_P(FusedAddRmsNormTest, WithoutAWeightOrWithAWiderOne) {
  for (const int32_t weight : {kNoWeight, int32_t{FB_F32}}) {
    const Case c = {.rows = 9, .hidden = 96, .x_dtype = FB_BF16, .weight_dtype = weight};
    Forward(c);
    Backward(c, {}, /*has_dsum=*/true);
  }
}

FB_INSTANTIATE_PER_DEVICE(FusedAddRmsNormTest);

}  // namespace
}  // namespace fuseboard::fused_add_rms_norm
