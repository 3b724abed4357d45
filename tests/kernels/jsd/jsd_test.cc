#include "kernels/abi/jsd.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <numbers>
#include <utility>
#include <vector>

#include "tests/kernels/common/row_loss_suite.h"
#include "tests/kernels/jsd/jsd_reference.h"

namespace fuseboard::jsd {
namespace {

using row_loss::Suite;
using row_loss::Terms;
using testing::KernelCall;
using testing::TestTensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class JsdTest : public ::testing::TestWithParam<int> {
 protected:
  Suite OfBeta(double beta) {
    params_.push_back(std::make_unique<FbJsdParams>(
        FbJsdParams{sizeof(FbJsdParams), beta, row_loss::kIgnoredLabel, 0.0}));
    return {{"jsd",
             params_.back().get(),
             {false, false},
             [beta](double x, double y) { return Reference(beta, x, y); }},
            GetParam()};
  }

 private:
  std::vector<std::unique_ptr<FbJsdParams>> params_;
};

TEST_P(JsdTest, BothPhasesAgreeWithDoubleOnAllDTypesAndShapes) {
  for (const double beta : {0.0, 0.3, 1.0}) row_loss::ExpectAllShapes(OfBeta(beta));
}

TEST_P(JsdTest, AnyBeta) {
  for (const double beta : {1e-300, 1e-10, 1e-3, 0.5, 0.9, 1.0 - 1e-10}) {
    for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
      OfBeta(beta).ExpectForward({.rows = 3, .cols = 300, .dtype = dtype});
      OfBeta(beta).ExpectBackward({.rows = 3, .cols = 300, .dtype = dtype});
    }
  }
}

TEST_P(JsdTest, RowsMayLieAnywhere) { row_loss::ExpectAllLayouts(OfBeta(0.3)); }

TEST_P(JsdTest, IgnoredRowsAreZeroAndNotRead) {
  for (const double beta : {0.0, 0.3, 1.0}) row_loss::ExpectLabelsToBeObeyed(OfBeta(beta));
}

TEST_P(JsdTest, RowsAreCountedBeyondSixteenBits) { row_loss::ExpectManyRows(OfBeta(0.5)); }

// Logits [0, -200, 0] and [0, -200, 1]: the second probability underflows on both sides.
TEST_P(JsdTest, UnderflowOnBothSidesAddsNothing) {
  const double input_lse = std::numbers::ln2;
  const double target_lse = std::log(1.0 + std::numbers::e);
  const std::pair<double, double> wants[] = {{0.0, 0.110944}, {0.5, 0.028535}, {1.0, 0.120115}};
  for (const auto& [beta, want] : wants) {
    const Suite suite = OfBeta(beta);
    KernelCall call = suite.ForwardCall({.rows = 1, .cols = 3});
    const double input[] = {0.0, -200.0, 0.0};
    const double target[] = {0.0, -200.0, 1.0};
    call.inputs[0].Fill([&](auto, auto i) { return input[i] - input_lse; });
    call.inputs[1].Fill([&](auto, auto i) { return target[i] - target_lse; });
    call.outputs[0] = TestTensor(FB_F32, {1});
    suite.Run(&call);
    EXPECT_NEAR(call.outputs[0].At(0, 0), want, 1e-6) << "beta " << beta;
  }
}

TEST_P(JsdTest, EqualElementsHaveALossOfExactlyZero) {
  for (const double beta : {0.0, 1e-10, 0.1, 0.3, 0.5, 0.7, 1.0}) {
    const Suite suite = OfBeta(beta);
    for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
      KernelCall call = suite.ForwardCall({.rows = 2, .cols = 300, .dtype = dtype});
      call.inputs[1] = call.inputs[0];
      call.outputs[0] = TestTensor(FB_F32, {2});
      suite.Run(&call);
      EXPECT_EQ(call.outputs[0].At(0, 0), 0.0) << "beta " << beta;
    }
  }
}

// Infinite logarithms give the limits: 0 wherever the factor before them is, the entropy of the
// mixture's weight if one is finite, and infinity where the divergence is; NaN stays NaN.
TEST_P(JsdTest, SpecialValuesGiveTheLimits) {
  const double nan = std::nan("");
  for (const double beta : {0.0, 0.3, 1.0}) {
    for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
      const Suite suite = OfBeta(beta);
      const double values[] = {-kInfinity, -200.0, -2.0, 0.0, nan};
      KernelCall call = suite.ForwardCall({.rows = 5, .cols = 5, .dtype = dtype});
      call.inputs[0].Fill([&](auto r, auto) { return values[r]; });
      call.inputs[1].Fill([&](auto, auto i) { return values[i]; });
      KernelCall elements = call;
      elements.outputs[1] = TestTensor(FB_F32, {5, 5});
      call.outputs[2] = TestTensor(dtype, {5, 5});
      suite.Run(&elements);
      suite.Run(&call);
      const auto want = [&](int64_t r, int64_t i) {
        const bool is_nan = std::isnan(values[r]) || std::isnan(values[i]);
        return is_nan ? Terms{nan, nan, 0.0, 0.0} : Reference(beta, values[r], values[i]);
      };
      testing::ExpectClose(
          elements.outputs[1], [&](auto r, auto i) { return want(r, i).loss; }, 1e-2);
      // Of the forward KL divergence it is a function of target alone.
      testing::ExpectClose(
          call.outputs[2],
          [&](auto r, auto i) {
            return beta == 0.0 ? -Probability(values[i]) : want(r, i).gradient;
          },
          1.0);
    }
  }
}

FB_INSTANTIATE_PER_DEVICE(JsdTest);

}  // namespace
}  // namespace fuseboard::jsd
