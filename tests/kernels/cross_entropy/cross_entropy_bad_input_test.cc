// Inputs that broke others: what is not a class, not a number, or not to be trained on.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/cross_entropy/cross_entropy_case.h"

namespace fuseboard::cross_entropy {
namespace {

using ::fuseboard::testing::TestTensor;

constexpr double kInf = INFINITY;

class CrossEntropyBadInputTest : public ::testing::TestWithParam<int> {};
FB_INSTANTIATE_PER_DEVICE(CrossEntropyBadInputTest);

// The three ways in which the GPU version goes through a row.
constexpr int64_t kVocabs[] = {16, 1500, 40000};

TEST_P(CrossEntropyBadInputTest, EveryLabelIgnoredGivesZerosAndReadsNothing) {
  for (const int64_t vocab : kVocabs) {
    Case c({4, vocab, FB_F32}, 1);
    c.target.Fill([](int64_t, int64_t) { return -100; });
    c.logits.Fill([](int64_t, int64_t) { return NAN; });
    c.wants_argmax = false;
    const auto outputs = RunAndCheck(c, GetParam());
    EXPECT_EQ(outputs[kLoss].At(0, 3), 0.0);
    EXPECT_EQ(outputs[kZLoss].At(0, 3), 0.0);
    EXPECT_EQ(outputs[kLse].At(0, 3), 0.0);
    EXPECT_EQ(outputs[kDlogits].At(3, vocab - 1), 0.0);
  }
}

TEST_P(CrossEntropyBadInputTest, IgnoredRowsStillHaveAnArgmaxAndNoGradient) {
  for (const int64_t vocab : kVocabs) {
    Case c({3, vocab, FB_BF16}, 2);
    c.target.Set(0, 1, -100);
    RunAndCheck(c, GetParam());
  }
}

TEST_P(CrossEntropyBadInputTest, IgnoreIndexMayBeAClass) {
  for (const int64_t ignore : {-100, 0, 3}) {
    Case c({8, 5, FB_F32}, 3);
    c.params.ignore_index = ignore;
    c.target.Fill([&](int64_t, int64_t row) { return row % 4 == 0 ? row % 5 : ignore; });
    c.target.Set(0, 4, ignore == 0 ? 1 : 4);
    RunAndCheck(c, GetParam());
  }
}

// Mean over valid rows, weighted, of a batch whose other row is ignored: 2.540451.
TEST_P(CrossEntropyBadInputTest, ClassWeightsAndSmoothingSkipTheIgnoredRow) {
  Case c({2, 2, FB_F32}, 4);
  const double logits[2][2] = {{1, 2}, {3, 0.4}};
  c.logits.Fill([&](int64_t row, int64_t i) { return logits[row][i]; });
  c.target.Set(0, 0, -100);
  c.target.Set(0, 1, 1);
  c.class_weight = TestTensor(FB_F32, {2});
  c.class_weight.Set(0, 0, 0.2);
  c.class_weight.Set(0, 1, 0.3);
  c.params.label_smoothing = 0.1;
  const auto outputs = RunAndCheck(c, GetParam());
  EXPECT_EQ(outputs[kLoss].At(0, 0), 0.0);
  EXPECT_NEAR(outputs[kLoss].At(0, 1) / 0.3, 2.540451, 2e-6);
}

// Columns past the end that count as logit 0 would dominate these rows.
TEST_P(CrossEntropyBadInputTest, ThereAreNoPhantomColumns) {
  for (const int64_t vocab : {1, 2, 5, 7, 127, 129, 1000, 32001, 50257, 65535, 65536, 65537, 102400,
                              131073, 151936, 262144}) {
    Case c({1, vocab, FB_BF16}, 5);
    c.logits.Fill([](int64_t, int64_t) { return -20; });
    testing::KernelCall call = c.Forward();
    testing::Run(Kernel(), GetParam(), &call);
    EXPECT_NEAR(call.outputs[kLoss].At(0, 0), std::log(static_cast<double>(vocab)), 3e-6) << vocab;
    EXPECT_EQ(call.outputs[kArgmax].At(0, 0), 0);
  }
}

TEST_P(CrossEntropyBadInputTest, ATargetThatIsNoClassMakesItsRowNan) {
  for (const int64_t vocab : kVocabs) {
    for (const double target : {static_cast<double>(vocab), -1.0, 4294967296.0 + 3, -1e12}) {
      Case c({3, vocab, FB_F32}, 6);
      c.params.z_loss_scale = 0.1;
      c.target.Set(0, 1, target);
      const auto outputs = RunAndCheck(c, GetParam());
      EXPECT_TRUE(std::isnan(outputs[kLoss].At(0, 1)));
      EXPECT_TRUE(std::isnan(outputs[kZLoss].At(0, 1)));
      EXPECT_TRUE(std::isnan(outputs[kDlogits].At(1, 0)));
      EXPECT_FALSE(std::isnan(outputs[kDlogits].At(2, vocab - 1)));
    }
  }
}

TEST_P(CrossEntropyBadInputTest, TheUsualIgnoredTargetIsNoClassUnderAnotherIgnoreIndex) {
  Case c({2, 16, FB_F32}, 7);
  c.params.ignore_index = -1;
  c.target.Set(0, 0, -100);
  const auto outputs = RunAndCheck(c, GetParam());
  EXPECT_TRUE(std::isnan(outputs[kLoss].At(0, 0)));
}

// A padded vocabulary: columns from 16 on belong to the row's memory, not to the row.
TEST_P(CrossEntropyBadInputTest, ATargetInThePaddingIsNoClass) {
  Case c({4, 16, FB_F32}, 8, {.row_stride = 64});
  for (int64_t row = 0; row < 4; ++row) {
    c.target.Set(0, row, 16.0 + 15.0 * static_cast<double>(row));
  }
  const auto outputs = RunAndCheck(c, GetParam());
  for (int64_t row = 0; row < 4; ++row) EXPECT_TRUE(std::isnan(outputs[kLoss].At(0, row)));
}

TEST_P(CrossEntropyBadInputTest, FewSupervisedRowsGetExactlyTheirGradient) {
  for (const int64_t vocab : {32, 16384}) {
    Case c({64, vocab, FB_BF16}, 9);
    c.logits.FillNormal(10, 0.01);  // Near uniform: gradients of 1 / vocab.
    for (int64_t row = 0; row < 56; ++row) c.target.Set(0, row, -100);
    c.wants_argmax = false;
    const auto outputs = RunAndCheck(c, GetParam());
    for (int64_t row = 0; row < 64; ++row) {
      EXPECT_EQ(outputs[kDlogits].At(row, 5) != 0, row >= 56) << row;
    }
  }
}

// As log_softmax: a NaN or +inf anywhere, or -inf everywhere, is NaN in that row.
TEST_P(CrossEntropyBadInputTest, NonFiniteLogitsDoWhatTheyDoNatively) {
  for (const int64_t vocab : kVocabs) {
    for (const int32_t dtype : {FB_F32, FB_BF16}) {
      SCOPED_TRACE(::testing::Message() << vocab << " " << dtype);
      Case c({5, vocab, dtype}, 11);
      c.wants_argmax = false;
      c.target.Fill([](int64_t, int64_t) { return 2; });
      c.logits.Set(0, vocab - 1, NAN);
      c.logits.Set(1, vocab - 1, kInf);
      for (int64_t i = 0; i < vocab; ++i) {
        c.logits.Set(2, i, -kInf);
        if (i != 2 && i != vocab - 1) c.logits.Set(3, i, -kInf);
      }
      testing::KernelCall call = c.Forward();
      testing::Run(Kernel(), GetParam(), &call);
      const TestTensor& loss = call.outputs[kLoss];
      for (int64_t row = 0; row < 3; ++row) EXPECT_TRUE(std::isnan(loss.At(0, row))) << row;
      EXPECT_TRUE(std::isnan(call.outputs[kDlogits].At(0, 0)));
      const double want = Solve(c, 3).loss;
      EXPECT_NEAR(loss.At(0, 3), want, 1e-6 * want + 5e-7);
      EXPECT_EQ(call.outputs[kDlogits].At(3, 1), 0.0);
      EXPECT_NEAR(loss.At(0, 4), Solve(c, 4).loss, 3e-5);
    }
  }
}

TEST_P(CrossEntropyBadInputTest, AMaskedTargetHasInfiniteLossAndAFiniteGradient) {
  for (const int64_t vocab : kVocabs) {
    Case c({1, vocab, FB_F32}, 12);
    c.target.Set(0, 0, 1);
    c.logits.Set(0, 1, -kInf);
    const auto outputs = RunAndCheck(c, GetParam());
    EXPECT_EQ(outputs[kLoss].At(0, 0), kInf);
    EXPECT_EQ(outputs[kDlogits].At(0, 1), -1.0);
  }
}

TEST_P(CrossEntropyBadInputTest, ArgmaxIsTheFirstOfEqualsWhereverTheyLie) {
  for (const int64_t vocab : {9, 1024, 1501, 40001}) {
    for (const int64_t first : {int64_t{0}, int64_t{1}, vocab / 3, vocab - 2}) {
      Case c({3, vocab, FB_BF16}, 13, {vocab, 1});
      c.logits.Set(1, first, 100);
      c.logits.Set(1, vocab - 1, 100);
      c.logits.Set(1, (first + vocab) / 2, 100);
      for (int64_t i = 0; i < vocab; ++i) c.logits.Set(2, i, -kInf);
      testing::KernelCall call = c.Forward();
      testing::Run(Kernel(), GetParam(), &call);
      EXPECT_EQ(call.outputs[kArgmax].At(0, 1), static_cast<double>(first)) << vocab;
      EXPECT_EQ(call.outputs[kArgmax].At(0, 2), 0) << vocab;
    }
  }
}

}  // namespace
}  // namespace fuseboard::cross_entropy
