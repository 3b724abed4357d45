#include <gtest/gtest.h>

#include <limits>

#include "tests/kernels/softmax/softmax_case.h"

namespace fuseboard::softmax {
namespace {

using testing::KernelCall;
using testing::OpenKernel;
using testing::TestTensor;

// One column; rows of a few threads, of a warp (of f32 up to 512 columns), of a block, so many that
// blocks have several, of several blocks (from 16,384 columns of f32 on), and the widest; widths
// that 16 bytes do not divide.
struct Shape {
  int64_t rows;
  int64_t cols;
};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr Shape kShapes[] = {
    {1, 1},    {5, 3},     {33, 16},   {7, 67},    {9, 256},    {3, 515},    {3, 1024}, {601, 4096},
    {2, 5120}, {2, 16411}, {1, 32768}, {1, 50257}, {1, 131072}, {1, 262144}, {0, 16},   {5, 0}};

class SoftmaxTest : public ::testing::TestWithParam<int> {
 protected:
  void Run(KernelCall* call) { testing::Run(OpenKernel("softmax"), GetParam(), call); }

  void ExpectForward(const Case& c) {
    SCOPED_TRACE(c.Name());
    KernelCall call = ForwardCall(c);
    Run(&call);
    std::vector<std::vector<double>> want;
    want.reserve(static_cast<size_t>(c.rows));
    for (int64_t r = 0; r < c.rows; ++r) want.push_back(SoftmaxOf(call.inputs[0], r));
    testing::ExpectClose(call.outputs[0], [&](auto r, auto i) { return want[r][i]; });
  }

  // dx = y * (dy - dot) is a difference: its error is that of dot, times y.
  void ExpectBackward(const Case& c) {
    SCOPED_TRACE(c.Name());
    KernelCall call = BackwardCall(c);
    Run(&call);
    const TestTensor& dy = call.inputs[0];
    const TestTensor& y = call.inputs[1];
    const double relative = testing::ToleranceOf(c.dtype).relative;
    const double floor = c.dtype == FB_F16 ? 0x1p-24 : 0x1p-126;
    for (int64_t r = 0; r < c.rows; ++r) {
      const double dot = DotOf(dy, y, r);
      int64_t wrong = 0;
      for (int64_t i = 0; i < c.cols; ++i) {
        const double want = y.At(r, i) * (dy.At(r, i) - dot);
        const double slack = relative * std::fabs(want) + 2e-6 * y.At(r, i) + floor;
        wrong += std::fabs(call.outputs[0].At(r, i) - want) <= slack ? 0 : 1;
      }
      EXPECT_EQ(wrong, 0) << "row " << r;
    }
  }
};

TEST_P(SoftmaxTest, BothPhasesAgreeWithDoubleOnAllDTypesAndShapes) {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const Shape& shape : kShapes) {
      const Case c = {.rows = shape.rows, .cols = shape.cols, .dtype = dtype};
      ExpectForward(c);
      ExpectBackward(c);
    }
  }
}

TEST_P(SoftmaxTest, RowsMayLieApartOverlapOrBeOne) {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    // 67 and 0 are aligned like no output below but the first; 72 like the second.
    for (const int64_t stride : {128, 72, 67, 32, 0}) {
      for (const int64_t out_stride : {67, 72}) {
        const Case c = {.rows = 9,
                        .cols = 67,
                        .dtype = dtype,
                        .in_layout = {.row_stride = stride},
                        .out_layout = {.row_stride = out_stride}};
        ExpectForward(c);
        ExpectBackward(c);
      }
    }
  }
}

TEST_P(SoftmaxTest, BasesMayLieAnywhere) {
  for (const int32_t dtype : {FB_F32, FB_BF16}) {
    for (const int64_t in_offset : {0, 1, 3}) {
      for (const int64_t out_offset : {0, 1, 3}) {
        for (const int64_t cols : {5, 130, 1500}) {
          const Case c = {.rows = 3,
                          .cols = cols,
                          .dtype = dtype,
                          .in_layout = {.offset = in_offset},
                          .out_layout = {.offset = out_offset}};
          ExpectForward(c);
          ExpectBackward(c);
        }
      }
    }
  }
}

TEST_P(SoftmaxTest, ResultsDoNotDependOnAlignmentByMoreThanRounding) {
  const Case aligned = {.rows = 2, .cols = 4096, .dtype = FB_F32};
  const Case shifted = {.rows = 2, .cols = 4096, .dtype = FB_F32, .in_layout = {.offset = 1}};
  KernelCall a = ForwardCall(aligned);
  KernelCall b = ForwardCall(shifted);
  Run(&a);
  Run(&b);
  testing::ExpectClose(
      a.outputs[0], [&](auto r, auto i) { return b.outputs[0].At(r, i); }, 0.0);
}

// The values that masks are made of.
TEST_P(SoftmaxTest, MaskedElementsBecomeZeroAndRowsOfOneValueUniform) {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    const double lowest = dtype == FB_F16 ? -65504.0
                          : dtype == FB_F32
                              ? -static_cast<double>(std::numeric_limits<float>::max())
                              : -0x1.FEp127;
    for (const int64_t cols : {16, 67, 1030, 70000}) {
      KernelCall call = ForwardCall({.rows = 4, .cols = cols, .dtype = dtype});
      TestTensor& x = call.inputs[0];
      x.Fill([&](auto r, auto i) {
        if (r == 0) return lowest;
        if (r == 1) return i % 2 == 0 ? 1.0 : -kInfinity;
        if (r == 2) return i == cols - 1 ? 2.0 : lowest;
        return i == 0 ? 0.0 : -kInfinity;
      });
      Run(&call);
      const auto n = static_cast<double>(cols);
      const int64_t evens = (cols + 1) / 2;
      const auto half = static_cast<double>(evens);
      testing::ExpectClose(call.outputs[0], [&](auto r, auto i) {
        if (r == 0) return 1.0 / n;
        if (r == 1) return i % 2 == 0 ? 1.0 / half : 0.0;
        if (r == 2) return i == cols - 1 ? 1.0 : 0.0;
        return i == 0 ? 1.0 : 0.0;
      });
      EXPECT_EQ(call.outputs[0].At(1, 1), 0.0);
      EXPECT_EQ(call.outputs[0].At(2, 0), 0.0);
      EXPECT_EQ(call.outputs[0].At(3, 0), 1.0);
    }
  }
}

TEST_P(SoftmaxTest, NanInfinityAndNothingButMinusInfinityMakeTheRowNan) {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int64_t cols : {67, 1024, 70000}) {
      KernelCall call = ForwardCall({.rows = 4, .cols = cols, .dtype = dtype});
      TestTensor& x = call.inputs[0];
      x.Set(0, cols / 2, std::nan(""));
      x.Set(1, cols - 1, kInfinity);
      for (int64_t i = 0; i < cols; ++i) x.Set(2, i, -kInfinity);
      Run(&call);
      for (int64_t i = 0; i < cols; i += 13) {
        for (const int64_t r : {0, 1, 2}) EXPECT_TRUE(std::isnan(call.outputs[0].At(r, i)));
        EXPECT_FALSE(std::isnan(call.outputs[0].At(3, i)));
      }
    }
  }
}

TEST_P(SoftmaxTest, AConstantAddedToARowChangesNothing) {
  const Case c = {.rows = 2, .cols = 1000, .dtype = FB_F32};
  KernelCall plain = ForwardCall(c);
  KernelCall shifted = plain;
  plain.inputs[0].Fill([](auto, auto i) { return static_cast<double>(i % 17); });
  shifted.inputs[0].Fill([](auto, auto i) { return 4096.0 + static_cast<double>(i % 17); });
  Run(&plain);
  Run(&shifted);
  EXPECT_TRUE(plain.outputs[0].HasBitsOf(shifted.outputs[0]));
}

TEST_P(SoftmaxTest, AnEvenGradientGivesNone) {
  const Case c = {.rows = 2, .cols = 333, .dtype = FB_F32};
  KernelCall call = BackwardCall(c);
  call.inputs[0].Fill([](auto, auto) { return 3.0; });
  Run(&call);
  testing::ExpectClose(
      call.outputs[0], [](auto, auto) { return 0.0; }, 0.1);
}

TEST_P(SoftmaxTest, RowsAreCountedBeyondSixteenBits) {
  ExpectForward({.rows = 131073, .cols = 3, .dtype = FB_BF16, .in_layout = {.row_stride = 4}});
}

FB_INSTANTIATE_PER_DEVICE(SoftmaxTest);

}  // namespace
}  // namespace fuseboard::softmax
