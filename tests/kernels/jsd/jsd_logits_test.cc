// A forward from logits.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/abi/jsd.h"
#include "kernels/jsd/logits_policy.h"
#include "tests/kernels/jsd/jsd_reference.h"

namespace fuseboard::jsd {
namespace {

using row_loss::kIgnoredLabel;
using row_loss::Terms;
using testing::KernelCall;
using testing::Layout;
using testing::TestTensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Rows in one block, in clusters of 2, 4 and 8, and on devices without clusters in one block.
static_assert(SelectLogitsPolicy(90, 3, 24) == LogitsPolicy{32, 1});
static_assert(SelectLogitsPolicy(90, 4000, 64000) == LogitsPolicy{256, 2});
static_assert(SelectLogitsPolicy(90, 6282, 100514).cluster == 4);
static_assert(SelectLogitsPolicy(90, 32064, 513024) == LogitsPolicy{256, 8});
static_assert(SelectLogitsPolicy(80, 32064, 513024) == LogitsPolicy{256, 1});

struct Case {
  int64_t rows = 3;
  int64_t cols = 8;
  int32_t dtype = FB_F32;
  double beta = 0.3;
  double temperature = 1.0;
  Layout in_layout = {};
  Layout out_layout = {};
  int64_t ignored_step = 0;  // Every so manieth row is ignored; 0: there is no label.

  bool IsIgnored(int64_t row) const { return ignored_step != 0 && row % ignored_step == 0; }
  std::string Name() const {
    return "[" + std::to_string(rows) + ", " + std::to_string(cols) + "], dtype " +
           std::to_string(dtype) + ", beta " + std::to_string(beta) + ", row stride " +
           std::to_string(in_layout.row_stride) + ", offset " + std::to_string(in_layout.offset);
  }
};

// The log-softmax of one row in double.
std::vector<double> LogSoftmax(const TestTensor& logits, int64_t row, double temperature) {
  std::vector<double> x;
  x.reserve(static_cast<size_t>(logits.cols()));
  for (int64_t i = 0; i < logits.cols(); ++i) x.push_back(logits.At(row, i) / temperature);
  double most = -kInfinity;
  for (const double value : x) most = std::isnan(value) ? value : std::max(most, value);
  double sum = 0.0;
  for (const double value : x) sum += std::exp(value - most);
  for (double& value : x) value -= most + std::log(sum);
  return x;
}

class JsdLogitsTest : public ::testing::TestWithParam<int> {
 protected:
  // With a scale, and outputs for loss and gradient. The params live until the next call is made.
  KernelCall CallOf(const Case& c) {
    params_ = {sizeof(FbJsdParams), c.beta, kIgnoredLabel, c.temperature};
    TestTensor label;
    if (c.ignored_step != 0) {
      label = TestTensor(FB_I64, {c.rows}).Fill([&](auto, auto r) {
        return c.IsIgnored(r) ? static_cast<double>(kIgnoredLabel) : 7.0;
      });
    }
    return {FB_FORWARD,
            {TestTensor(c.dtype, {c.rows, c.cols}, c.in_layout).FillNormal(1, 3.0, 5.0),
             TestTensor(c.dtype, {c.rows, c.cols}, c.in_layout).FillNormal(2, 3.0, -2.0),
             TestTensor(FB_F32, {c.rows}).FillNormal(3), label},
            {TestTensor(FB_F32, {c.rows}), TestTensor(c.dtype, {c.rows, c.cols}, c.out_layout)},
            &params_};
  }

  bool IsGpu() const { return GetParam() == FB_CUDA; }
  void Run(KernelCall* call) const { testing::Run(Kernel(), GetParam(), call); }
  static const FbKernel& Kernel() { return testing::OpenKernel("jsd"); }

  void Expect(const Case& c) {
    SCOPED_TRACE(c.Name());
    KernelCall call = CallOf(c);
    Run(&call);
    ExpectRows(c, call);
    KernelCall loss_alone = call;
    loss_alone.outputs[1] = {};
    Run(&loss_alone);
    EXPECT_TRUE(loss_alone.outputs[0].HasBitsOf(call.outputs[0]));
    KernelCall gradient_alone = call;
    gradient_alone.outputs[0] = {};
    Run(&gradient_alone);
    EXPECT_TRUE(gradient_alone.outputs[1].HasBitsOf(call.outputs[1]));
    if (c.in_layout.row_stride == 0 || !SameLayout(c)) return;
    const auto in_place =
        testing::RunInPlace(Kernel(), GetParam(), call, /*input=*/0, /*output=*/1);
    EXPECT_TRUE(in_place[0].HasBitsOf(call.outputs[0]));
    EXPECT_TRUE(in_place[1].HasBitsOf(call.outputs[1]));
  }

 private:
  static constexpr double kError = 1e-5;  // f32 of a few roundings.

  static bool SameLayout(const Case& c) {
    return c.in_layout.row_stride == c.out_layout.row_stride &&
           c.in_layout.offset == c.out_layout.offset;
  }

  static void ExpectRows(const Case& c, const KernelCall& call) {
    for (int64_t r = 0; r < c.rows; ++r) {
      if (c.IsIgnored(r)) {
        EXPECT_EQ(call.outputs[0].At(0, r), 0.0);
        for (int64_t i = 0; i < c.cols; ++i) EXPECT_EQ(call.outputs[1].At(r, i), 0.0);
      } else {
        ExpectRow(c, call, r);
      }
    }
  }

  static void ExpectRow(const Case& c, const KernelCall& call, int64_t r) {
    const std::vector<double> x = LogSoftmax(call.inputs[0], r, c.temperature);
    const std::vector<double> y = LogSoftmax(call.inputs[1], r, c.temperature);
    std::vector<Terms> terms;
    Terms sum = {};
    for (size_t i = 0; i < x.size(); ++i) {
      const Terms t = Reference(c.beta, x[i], y[i]);
      terms.push_back(t);
      sum.loss += t.loss;
      sum.gradient += t.gradient;
      sum.loss_size += t.loss_size + std::fabs(t.loss);
      sum.gradient_size += t.gradient_size + std::fabs(t.gradient);
    }
    EXPECT_NEAR(call.outputs[0].At(0, r), sum.loss, kError * sum.loss_size) << "row " << r;
    const double relative = testing::ToleranceOf(c.dtype).relative;
    const double floor = c.dtype == FB_F16 ? 0x1p-24 : 0x1p-126;
    const double scale = call.inputs[2].At(0, r) / c.temperature;
    int64_t wrong = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double q = Probability(x[i]);
      const double want = scale * (terms[i].gradient - q * sum.gradient);
      const double size =
          terms[i].gradient_size + std::fabs(terms[i].gradient) + q * sum.gradient_size;
      const double slack = relative * std::fabs(want) + kError * size * std::fabs(scale) + floor;
      const double got = call.outputs[1].At(r, static_cast<int64_t>(i));
      if (std::fabs(got - want) <= slack) continue;
      if (wrong++ > 0) continue;
      ADD_FAILURE() << "[" << r << ", " << i << "]: want " << want << " within " << slack
                    << ", got " << got;
    }
    EXPECT_EQ(wrong, 0);
  }

  FbJsdParams params_ = {};
};

// Of less than a warp, of a block, and of a cluster, with widths that 16 bytes do not divide.
TEST_P(JsdLogitsTest, LossAndGradientAgreeWithDoubleOnAllDTypesAndShapes) {
  struct Shape {
    int64_t rows;
    int64_t cols;
  };
  constexpr Shape kShapes[] = {{1, 1},     {5, 3},      {9, 67},     {3, 1025}, {2, 40000},
                               {3, 50257}, {2, 128256}, {1, 262145}, {0, 16}};
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const double beta : {0.0, 0.3, 1.0}) {
      for (const Shape& shape : kShapes) {
        // The CPU has one way through a row: what is wide is wide enough in one dtype.
        if (!IsGpu() && shape.cols > 50000 && dtype != FB_BF16) continue;
        Expect({.rows = shape.rows, .cols = shape.cols, .dtype = dtype, .beta = beta});
      }
    }
  }
}

TEST_P(JsdLogitsTest, AnyBetaAndTemperature) {
  for (const double beta : {0.0, 1e-10, 0.5, 0.9, 1.0}) {
    for (const double temperature : {0.5, 0.8, 2.0, 20.0}) {
      for (const int32_t dtype : {FB_F32, FB_BF16}) {
        Expect({.cols = 300, .dtype = dtype, .beta = beta, .temperature = temperature});
      }
    }
  }
}

TEST_P(JsdLogitsTest, RowsMayLieAnywhere) {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int64_t stride : {72, 67, 0}) {
      for (const int64_t out_stride : {67, 72}) {
        Expect({.rows = 9,
                .cols = 67,
                .dtype = dtype,
                .in_layout = {.row_stride = stride},
                .out_layout = {.row_stride = out_stride}});
      }
    }
    for (const int64_t in_offset : {0, 1, 3}) {
      for (const int64_t out_offset : {0, 3}) {
        Expect({.cols = 130,
                .dtype = dtype,
                .in_layout = {.offset = in_offset},
                .out_layout = {.offset = out_offset}});
      }
    }
  }
}

TEST_P(JsdLogitsTest, MoreRowsThanTheDeviceHoldsClusters) {
  Expect({.rows = IsGpu() ? 600 : 20, .cols = 17000, .dtype = FB_BF16});
}

TEST_P(JsdLogitsTest, IgnoredRowsAreZeroAndNotRead) {
  for (const int64_t cols : {1, 67, 40000}) {
    for (const int64_t step : {1, 2, 3}) {
      const Case c = {.rows = 5, .cols = cols, .dtype = FB_BF16, .ignored_step = step};
      Expect(c);
      KernelCall call = CallOf(c);
      KernelCall poisoned = call;
      for (int64_t r = 0; r < c.rows; ++r) {
        for (int64_t i = 0; i < c.cols && c.IsIgnored(r); ++i) {
          poisoned.inputs[0].Set(r, i, std::nan(""));
          poisoned.inputs[1].Set(r, i, std::nan(""));
        }
      }
      Run(&call);
      Run(&poisoned);
      EXPECT_TRUE(call.outputs[0].HasBitsOf(poisoned.outputs[0]));
      EXPECT_TRUE(call.outputs[1].HasBitsOf(poisoned.outputs[1]));
    }
  }
}

// Logits of a thousand differ by steps of 6e-5 in f32, of which nothing may be lost.
TEST_P(JsdLogitsTest, LargeLogitsKeepTheirDigits) {
  for (const double offset : {1000.0, -1000.0}) {
    KernelCall call = CallOf({.rows = 2, .cols = 100});
    KernelCall shifted = call;
    for (TestTensor* logits : {call.inputs.data(), &call.inputs[1]}) {
      logits->Fill([&](auto r, auto i) { return static_cast<double>((r + 7 * i) % 11) / 4; });
    }
    for (TestTensor* logits : {shifted.inputs.data(), &shifted.inputs[1]}) {
      logits->Fill(
          [&](auto r, auto i) { return offset + static_cast<double>((r + 7 * i) % 11) / 4; });
    }
    call.inputs[1].Set(0, 3, 5.0);
    shifted.inputs[1].Set(0, 3, offset + 5.0);
    Run(&call);
    Run(&shifted);
    EXPECT_TRUE(call.outputs[0].HasBitsOf(shifted.outputs[0]));
    EXPECT_TRUE(call.outputs[1].HasBitsOf(shifted.outputs[1]));
  }
}

// Classes that both exclude add nothing; one that only the student excludes has an infinite loss
// at beta = 0 alone, and one that only the teacher excludes at beta = 1.
TEST_P(JsdLogitsTest, ExcludedClassesGiveTheLimits) {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const double beta : {0.0, 0.3, 1.0}) {
      KernelCall call = CallOf({.rows = 3, .cols = 70, .dtype = dtype, .beta = beta});
      for (const int64_t i : {0, 9, 69}) {
        call.inputs[0].Set(0, i, -kInfinity);
        call.inputs[1].Set(0, i, -kInfinity);
      }
      call.inputs[0].Set(1, 5, -kInfinity);
      call.inputs[1].Set(2, 5, -kInfinity);
      Run(&call);
      EXPECT_TRUE(std::isfinite(call.outputs[0].At(0, 0)));
      for (const int64_t i : {0, 9, 69}) EXPECT_EQ(call.outputs[1].At(0, i), 0.0);
      for (int64_t i = 0; i < 70; ++i) EXPECT_TRUE(std::isfinite(call.outputs[1].At(0, i)));
      EXPECT_EQ(std::isinf(call.outputs[0].At(0, 1)), beta == 0.0);
      EXPECT_EQ(std::isinf(call.outputs[0].At(0, 2)), beta == 1.0);
    }
  }
}

// NaN, +inf, and a row of -inf alone, in either row.
TEST_P(JsdLogitsTest, RowsWithoutASoftmaxAreNaN) {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const double beta : {0.0, 0.3, 1.0}) {
      for (const size_t of : {0U, 1U}) {
        KernelCall call = CallOf({.rows = 4, .cols = 70, .dtype = dtype, .beta = beta});
        call.inputs[of].Set(0, 33, std::nan(""));
        call.inputs[of].Set(1, 33, kInfinity);
        for (int64_t i = 0; i < 70; ++i) call.inputs[of].Set(2, i, -kInfinity);
        Run(&call);
        for (int64_t r = 0; r < 3; ++r) {
          EXPECT_TRUE(std::isnan(call.outputs[0].At(0, r))) << r;
          for (int64_t i = 0; i < 70; ++i) {
            EXPECT_TRUE(std::isnan(call.outputs[1].At(r, i))) << r << ", " << i;
          }
        }
        EXPECT_TRUE(std::isfinite(call.outputs[0].At(0, 3)));
      }
    }
  }
}

FB_INSTANTIATE_PER_DEVICE(JsdLogitsTest);

}  // namespace
}  // namespace fuseboard::jsd
