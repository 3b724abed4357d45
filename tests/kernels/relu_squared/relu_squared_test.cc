// relu_squared, bit for bit: one product in f32 and one rounding leave no room. Sizes beyond 2^31
// are the business of the kernel under it, which swiglu's tests go through.

#include "kernels/abi/relu_squared.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "tests/testing/kernel_harness.h"

namespace fuseboard::relu_squared {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using testing::KernelCall;
using testing::Layout;
using testing::OpenKernel;
using testing::RoundToDType;
using testing::TestTensor;

struct Case {
  int64_t rows;
  int64_t cols;
  int32_t dtype;
  Layout in_layout = {};
  Layout out_layout = {};

  TestTensor In(uint32_t seed) const {
    return TestTensor(dtype, {rows, cols}, in_layout).FillNormal(seed, 3.0);
  }
  TestTensor Out() const { return {dtype, {rows, cols}, out_layout}; }
};

class ReluSquaredTest : public ::testing::TestWithParam<int> {
 protected:
  void ExpectBits(const Case& c) {
    SCOPED_TRACE("[" + std::to_string(c.rows) + ", " + std::to_string(c.cols) + "], dtype " +
                 std::to_string(c.dtype));
    KernelCall forward = {FB_FORWARD, {c.In(1)}, {c.Out()}};
    KernelCall backward = {FB_BACKWARD, {c.In(2), c.In(1)}, {c.Out()}};
    testing::Run(OpenKernel("relu_squared"), GetParam(), &forward);
    testing::Run(OpenKernel("relu_squared"), GetParam(), &backward);
    int64_t wrong = 0;
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t i = 0; i < c.cols; ++i) {
        const double x = forward.inputs[0].At(r, i);
        const double relu = x <= 0.0 ? 0.0 : x;
        const double dx = backward.inputs[0].At(r, i) * (2.0 * relu);
        wrong += forward.outputs[0].At(r, i) != RoundToDType(c.dtype, relu * relu) ? 1 : 0;
        wrong += backward.outputs[0].At(r, i) != RoundToDType(c.dtype, dx) ? 1 : 0;
      }
    }
    EXPECT_EQ(wrong, 0);
  }
};

// Whole packs and none, several tiles, rows that share a block, nothing at all; strides.
TEST_P(ReluSquaredTest, BothPhasesHaveTheBitsOfOneRounding) {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1},
                                     {5, 7},
                                     {4, 8},
                                     {1, 4097},
                                     {3, 14336},
                                     {0, 16},
                                     {5, 0}}) {
      ExpectBits({rows, cols, dtype});
    }
    ExpectBits({9, 64, dtype, {.row_stride = 65, .offset = 1}, {.row_stride = 72}});
    ExpectBits({9, 64, dtype, {.row_stride = 0}, {.row_stride = 72, .offset = 3}});
  }
}

TEST_P(ReluSquaredTest, NaNStaysAndInfinityTimesNothingIsNothing) {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    const Case c = {1, 8, dtype};
    const double values[] = {std::nan(""), kInfinity, -kInfinity, -0.0, 0.0, 300.0, -2.0, 2.0};
    KernelCall forward = {FB_FORWARD, {c.In(1)}, {c.Out()}};
    KernelCall backward = {FB_BACKWARD, {c.In(2), c.In(1)}, {c.Out()}};
    forward.inputs[0].Fill([&](auto, auto i) { return values[i]; });
    backward.inputs[0].Fill([](auto, auto) { return kInfinity; });
    backward.inputs[1].Fill([&](auto, auto i) { return values[i]; });
    testing::Run(OpenKernel("relu_squared"), GetParam(), &forward);
    testing::Run(OpenKernel("relu_squared"), GetParam(), &backward);
    const double high = dtype == FB_F16 ? kInfinity : RoundToDType(dtype, 90000.0);
    const double y[] = {0.0, kInfinity, 0.0, 0.0, 0.0, high, 0.0, 4.0};
    EXPECT_TRUE(std::isnan(forward.outputs[0].At(0, 0)));
    EXPECT_TRUE(std::isnan(backward.outputs[0].At(0, 0)));
    for (int64_t i = 1; i < 8; ++i) {
      EXPECT_EQ(forward.outputs[0].At(0, i), y[i]) << i;
      EXPECT_EQ(backward.outputs[0].At(0, i), values[i] > 0.0 ? kInfinity : 0.0) << i;
    }
  }
}

FB_INSTANTIATE_PER_DEVICE(ReluSquaredTest);

}  // namespace
}  // namespace fuseboard::relu_squared
