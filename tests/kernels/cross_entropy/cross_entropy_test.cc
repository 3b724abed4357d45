// Values of the loss and its gradient against double, over shapes, layouts and options.

#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <random>

#include "tests/kernels/cross_entropy/cross_entropy_case.h"

namespace fuseboard::cross_entropy {
namespace {

using ::fuseboard::testing::TestTensor;

class CrossEntropyTest : public ::testing::TestWithParam<int> {};
FB_INSTANTIATE_PER_DEVICE(CrossEntropyTest);

// Vocabularies around what an implementation cuts at: one class; fewer than a vector; warps, blocks
// and rings of the GPU version (1024 columns, 16 KiB); odd ones, whose rows start unaligned; real
// ones up to 262144, which take clusters of 1 to 8.
TEST_P(CrossEntropyTest, MatchesDoubleForEveryVocabularyAndDType) {
  for (const int64_t vocab : {1, 2, 3, 5, 7, 8, 9, 31, 127, 129, 1000, 1024, 1025, 4097, 8191, 8192,
                              8193, 32001, 50257}) {
    for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
      SCOPED_TRACE(::testing::Message() << "vocab " << vocab << " dtype " << dtype);
      RunAndCheck(Case({vocab > 5000 ? 2 : 5, vocab, dtype}, 11).WithScale(12), GetParam());
    }
  }
}

TEST_P(CrossEntropyTest, MatchesDoubleForTheLargestVocabularies) {
  for (const int64_t vocab : {65535, 65536, 65537, 128256, 131073, 151936, 262144}) {
    const int32_t dtype = vocab % 2 == 0 ? FB_BF16 : FB_F32;
    SCOPED_TRACE(::testing::Message() << "vocab " << vocab);
    RunAndCheck(Case({2, vocab, dtype}, 13).WithScale(14), GetParam());
  }
}

TEST_P(CrossEntropyTest, SolvesMoreRowsThanRunAtOnce) {
  // On the CPU that is a row per thread.
  const int64_t factor = GetParam() == FB_CUDA ? 25 : 1;
  for (const int64_t vocab : {33, 2050, 9000}) {
    SCOPED_TRACE(::testing::Message() << "vocab " << vocab);
    Case c({(vocab > 5000 ? 20 : 60) * factor, vocab, FB_BF16}, 15);
    for (int64_t row = 0; row < c.shape.rows; row += 3) c.target.Set(0, row, -100);
    c.wants_gradient = vocab > 5000;
    RunAndCheck(c, GetParam());
  }
}

TEST_P(CrossEntropyTest, LossWithoutGradientIsTheSame) {
  for (const int64_t vocab : {100, 5000, 40001}) {
    Case c({4, vocab, FB_BF16}, 16);
    const auto with = RunAndCheck(c, GetParam());
    c.wants_gradient = false;
    const auto without = RunAndCheck(c, GetParam());
    for (int64_t row = 0; row < 4; ++row) {
      EXPECT_NEAR(with[kLoss].At(0, row), without[kLoss].At(0, row), 2e-6 * 20) << vocab;
    }
  }
}

TEST_P(CrossEntropyTest, NoRowsIsSuccess) {
  RunAndCheck(Case({0, 32}, 1), GetParam());
  RunAndCheck(Case({0, 40000}, 1), GetParam());
}

// Unaligned bases and strides in every combination of logits and gradient.
TEST_P(CrossEntropyTest, TakesAnyBaseAndRowStride) {
  for (const int64_t vocab : {24, 1030, 10000}) {
    for (const testing::Layout& in : {testing::Layout{vocab + 3, 1}, testing::Layout{vocab + 8, 0},
                                      testing::Layout{vocab, 5}}) {
      for (const testing::Layout& out : {testing::Layout{vocab + 1, 0}, testing::Layout{-1, 5}}) {
        SCOPED_TRACE(::testing::Message() << vocab << " " << in.row_stride << " " << out.offset);
        Case c({3, vocab, FB_BF16}, 17, in);
        c.dlogits_layout = out;
        RunAndCheck(c, GetParam());
      }
    }
  }
}

TEST_P(CrossEntropyTest, TakesExpandedLogitsOutOfPlace) {
  Case c({4, 9000, FB_F32}, 18, {.row_stride = 0});
  testing::KernelCall call = c.Forward();
  testing::Run(Kernel(), GetParam(), &call);
  ExpectForward(c, call.outputs);
}

TEST_P(CrossEntropyTest, TakesStridedAndNarrowTargetsAndScales) {
  for (const int32_t dtype : {FB_I32, FB_I64}) {
    for (const int64_t stride : {0, 1, 2}) {
      Case c({6, 300, FB_F32}, 19);
      c.target = TestTensor(dtype, {6}, {.row_stride = stride});
      c.target.Fill([&](int64_t, int64_t row) { return stride == 0 ? 7 : row * 31; });
      c.WithScale(20, stride);
      RunAndCheck(c, GetParam());
    }
  }
}

// Each option alone and all together, small and in the ring.
TEST_P(CrossEntropyTest, OptionsMatchDouble) {
  for (const int64_t vocab : {77, 1500, 9001}) {
    for (const int32_t dtype : {FB_F32, FB_BF16}) {
      for (int option = 0; option < 9; ++option) {
        SCOPED_TRACE(::testing::Message() << vocab << " " << dtype << " option " << option);
        Case c({4, vocab, dtype}, 21);
        c.target.Set(0, 2, -100);
        const bool all = option == 8;
        if (option == 0 || all) c.params.label_smoothing = 0.1;
        if (option == 1 || all) c.WithClassWeights(3);
        if (option == 2 || all) c.params.softcap = 5;
        if (option == 3 || all) c.params.logit_scale = 0.37;
        if (option == 4) c.params.logit_scale = -1.5;
        if (option == 5 || all) c.params.z_loss_scale = 1e-3;
        if (option == 6 || all) c.params.z_loss_in_loss = 1;
        if (option == 6) c.params.z_loss_scale = 0.1;
        if (option == 7) c.params.label_smoothing = 1;
        if (all) c.WithScale(5);
        RunAndCheck(c, GetParam());
      }
    }
  }
}

TEST_P(CrossEntropyTest, SoftcapOfSmallAndSaturatedLogitsIsAccurate) {
  for (const double size : {1e-3, 0.3, 2.0, 100.0}) {
    Case c({2, 640, FB_F32}, 22);
    c.logits.FillNormal(23, size);
    c.params.softcap = 1.0;
    SCOPED_TRACE(::testing::Message() << "size " << size);
    RunAndCheck(c, GetParam());
  }
}

// A small loss is what remains of large numbers.
TEST_P(CrossEntropyTest, ConfidentRowsKeepTheirDigits) {
  for (const int32_t dtype : {FB_F32, FB_BF16}) {
    for (const int64_t vocab : {16, 20000}) {
      Case c({1, vocab, dtype}, 24);
      c.logits.Fill([](int64_t, int64_t i) { return i == 3 ? 60.0 : 50.0; });
      c.target.Set(0, 0, 3);
      c.wants_argmax = false;
      testing::KernelCall call = c.Forward();
      testing::Run(Kernel(), GetParam(), &call);
      const double want = std::log1p(static_cast<double>(vocab - 1) * std::exp(-10.0));
      EXPECT_NEAR(call.outputs[kLoss].At(0, 0), want, 5e-7) << vocab;
      const double d = call.outputs[kDlogits].At(0, 3);
      EXPECT_NEAR(d, std::expm1(-want), 5e-7 + 2e-3 * std::fabs(d)) << vocab;
    }
  }
}

TEST_P(CrossEntropyTest, SecondRunIsBitEqual) {
  // The harness compares two runs; on the CPU they have 1 and 3 threads, and one row of this width
  // is then split by columns.
  RunAndCheck(Case({1, 131073, FB_F32}, 25), GetParam());
  Case smoothed({2, 131073, FB_BF16}, 26);
  smoothed.params.label_smoothing = 0.1;
  smoothed.WithClassWeights(4);
  RunAndCheck(smoothed, GetParam());
}

TEST_P(CrossEntropyTest, RandomProblemsMatchDouble) {
  const uint32_t seed = 20261130;
  std::mt19937 random(seed);  // NOLINT(bugprone-random-generator-seed): the same in every run.
  const auto pick = [&](std::initializer_list<double> of) {
    return of.begin()[random() % of.size()];
  };
  for (int i = 0; i < 60; ++i) {
    const auto vocab = static_cast<int64_t>(pick({1, 4, 50, 333, 1024, 1100, 3000, 9999, 17001}));
    const auto dtype = static_cast<int32_t>(pick({FB_F32, FB_F16, FB_BF16}));
    const testing::Layout layout{vocab + static_cast<int64_t>(random() % 9),
                                 static_cast<int64_t>(random() % 5)};
    Case c({1 + static_cast<int64_t>(random() % 4), vocab, dtype}, random(), layout);
    c.params.label_smoothing = pick({0, 0, 0.1, 0.5});
    c.params.softcap = pick({0, 0, 15, 30});
    c.params.logit_scale = pick({1, 1, 0.25, 2, -0.5});
    c.params.z_loss_scale = pick({0, 1e-4, 0.01});
    c.params.z_loss_in_loss = static_cast<int32_t>(random() % 2);
    c.wants_argmax = random() % 2 == 0;
    c.wants_gradient = random() % 4 != 0;
    if (random() % 3 == 0) c.WithClassWeights(random() % 100);
    if (random() % 2 == 0) c.WithScale(random());
    if (random() % 2 == 0) c.target.Set(0, 0, pick({-100, -1, 1e6}));
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " problem " << i << " vocab " << vocab
                                      << " dtype " << dtype << " softcap " << c.params.softcap);
    RunAndCheck(c, GetParam());
  }
}

}  // namespace
}  // namespace fuseboard::cross_entropy
