#include "kernels/abi/kl_div.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/kernels/common/row_loss_suite.h"

namespace fuseboard::kl_div {
namespace {

using row_loss::Case;
using row_loss::Suite;
using row_loss::Terms;
using testing::KernelCall;
using testing::TestTensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Terms OfProbabilities(double eps, double x, double y) {
  const double entropy = y == 0.0 ? 0.0 : y * std::log(std::max(y, eps));
  return {entropy - y * x, -y, std::fabs(entropy) + std::fabs(y * x), 0.0};
}

Terms OfLogProbabilities(double x, double y) {
  const double p = std::exp(y);
  return {p * (y - x), -p, p * (std::fabs(y) + std::fabs(x)), 0.0};
}

class KlDivTest : public ::testing::TestWithParam<int> {
 protected:
  Suite Probabilities(double eps = 0.0) {
    probabilities_ = {sizeof(FbKlDivParams), 0, eps, row_loss::kIgnoredLabel};
    return {{"kl_div",
             &probabilities_,
             {false, true},
             [eps](double x, double y) { return OfProbabilities(eps, x, y); }},
            GetParam()};
  }
  Suite LogProbabilities() {
    log_probabilities_ = {sizeof(FbKlDivParams), 1, 0.0, row_loss::kIgnoredLabel};
    return {{"kl_div", &log_probabilities_, {false, false}, OfLogProbabilities}, GetParam()};
  }

 private:
  FbKlDivParams probabilities_ = {};
  FbKlDivParams log_probabilities_ = {};
};

TEST_P(KlDivTest, BothPhasesAgreeWithDoubleOnAllDTypesAndShapes) {
  row_loss::ExpectAllShapes(Probabilities());
  row_loss::ExpectAllShapes(LogProbabilities());
}

TEST_P(KlDivTest, RowsMayLieAnywhere) {
  row_loss::ExpectAllLayouts(Probabilities());
  row_loss::ExpectAllLayouts(LogProbabilities());
}

TEST_P(KlDivTest, RowsAreCountedBeyondSixteenBits) { row_loss::ExpectManyRows(Probabilities()); }

TEST_P(KlDivTest, IgnoredRowsAreZeroAndNotRead) {
  row_loss::ExpectLabelsToBeObeyed(Probabilities());
  row_loss::ExpectLabelsToBeObeyed(LogProbabilities());
}

TEST_P(KlDivTest, EpsIsTheLeastProbabilityWhoseLogarithmIsTaken) {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    Probabilities(1e-2).ExpectForward({.rows = 4, .cols = 333, .dtype = dtype});
  }
}

// As F.kl_div: in the order of the table, input, target, and loss of an element.
TEST_P(KlDivTest, SpecialValuesGiveWhatTheyGiveNatively) {
  struct Element {
    double input;
    double target;
    double loss;
  };
  const double nan = std::nan("");
  const std::vector<Element> probabilities = {{-2.0, 0.0, 0.0},
                                              {-kInfinity, 0.5, kInfinity},
                                              {-kInfinity, 0.0, nan},
                                              {nan, 0.0, nan},
                                              {-2.0, nan, nan},
                                              {-2.0, -0.5, nan},
                                              {-2.0, 1.0, 2.0},
                                              {0.0, 1.0, 0.0},
                                              {-2.0, kInfinity, kInfinity}};
  const std::vector<Element> log_probabilities = {{-2.0, -kInfinity, nan},
                                                  {-kInfinity, -kInfinity, nan},
                                                  {-kInfinity, 0.0, kInfinity},
                                                  {nan, -1.0, nan},
                                                  {-2.0, nan, nan},
                                                  {-2.0, 0.0, 2.0},
                                                  {-2.0, -200.0, 0.0}};
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const bool log_target : {false, true}) {
      const Suite suite = log_target ? LogProbabilities() : Probabilities();
      const auto& elements = log_target ? log_probabilities : probabilities;
      const Case c = {.rows = 1, .cols = static_cast<int64_t>(elements.size()), .dtype = dtype};
      KernelCall call = suite.ForwardCall(c);
      call.outputs[1] = TestTensor(FB_F32, {1, c.cols});
      for (int64_t i = 0; i < c.cols; ++i) {
        call.inputs[0].Set(0, i, elements[i].input);
        call.inputs[1].Set(0, i, elements[i].target);
      }
      suite.Run(&call);
      testing::ExpectClose(
          call.outputs[1], [&](auto, auto i) { return elements[i].loss; }, 1e-2);
    }
  }
}

TEST_P(KlDivTest, AScaleMayBeOneNumberForAllRows) {
  const Suite suite = LogProbabilities();
  const Case c = {.rows = 5, .cols = 100};
  KernelCall one = suite.ForwardCall(c);
  KernelCall many = one;
  one.inputs[2] = TestTensor(FB_F32, {5}, {.row_stride = 0}).Fill([](auto, auto) { return 0.3; });
  many.inputs[2] = TestTensor(FB_F32, {5}).Fill([](auto, auto) { return 0.3; });
  for (KernelCall* call : {&one, &many}) {
    call->outputs[2] = TestTensor(FB_F32, {5, 100});
    suite.Run(call);
  }
  EXPECT_TRUE(one.outputs[2].HasBitsOf(many.outputs[2]));
}

// A row's sum has the same bits whatever rows lie beside it.
TEST_P(KlDivTest, RowsDoNotDependOnOneAnother) {
  const Suite suite = LogProbabilities();
  for (const int64_t cols : {40, 3000, 70000}) {
    KernelCall many = suite.ForwardCall({.rows = 7, .cols = cols, .dtype = FB_BF16});
    KernelCall one = suite.ForwardCall({.rows = 1, .cols = cols, .dtype = FB_BF16});
    for (const size_t input : {0, 1}) {
      one.inputs[input].Fill([&](auto, auto i) { return many.inputs[input].At(4, i); });
    }
    many.outputs[0] = TestTensor(FB_F32, {7});
    one.outputs[0] = TestTensor(FB_F32, {1});
    suite.Run(&many);
    suite.Run(&one);
    EXPECT_EQ(many.outputs[0].At(0, 4), one.outputs[0].At(0, 0));
  }
}

FB_INSTANTIATE_PER_DEVICE(KlDivTest);

}  // namespace
}  // namespace fuseboard::kl_div
