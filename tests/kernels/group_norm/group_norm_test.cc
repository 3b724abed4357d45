#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "tests/kernels/group_norm/group_norm_case.h"

namespace fuseboard::group_norm {
namespace {

using testing::ExpectClose;
using testing::KernelCall;
using testing::TestTensor;

class GroupNormTest : public ::testing::TestWithParam<int> {
 protected:
  static const FbKernel& Kernel() { return testing::OpenKernel("group_norm"); }

  void Forward(const Case& c) {
    SCOPED_TRACE("forward " + c.Name());
    const FbGroupNormParams params = c.Params();
    KernelCall call = NewForward(c, &params);
    testing::Run(Kernel(), GetParam(), &call);
    const Reference reference(c, call.inputs[0], call.inputs[1]);
    const TestTensor& bias = call.inputs[2];
    // A mean in f32 is off by up to 6e-8 of itself. E[x^2] - mean^2 would be off by 6e-8 mean^2.
    const double scale = (1.0 + c.x_mean / 100.0);
    ExpectClose(
        call.outputs[0],
        [&](int64_t row, int64_t i) {
          return reference.Normed(row, i) * reference.Scale(row) +
                 (bias.absent() ? 0.0 : bias.At(0, row % c.channels));
        },
        scale);
    ExpectClose(
        call.outputs[1], [&](int64_t, int64_t group) { return reference.Mean(group); }, scale);
    ExpectClose(call.outputs[2], [&](int64_t, int64_t group) { return reference.Rstd(group); });
  }

  void Backward(const Case& c) {
    SCOPED_TRACE("backward " + c.Name());
    const FbGroupNormParams params = c.Params();
    KernelCall call = NewBackward(c, &params);
    testing::Run(Kernel(), GetParam(), &call);
    ExpectGradients(c, call);
  }

  static void ExpectGradients(const Case& c, const KernelCall& call) {
    const TestTensor& dy = call.inputs[0];
    const Reference reference(c, call.inputs[1], call.inputs[2]);
    const Reference::Gradients want = reference.Backward(dy);
    if (!call.outputs[0].absent()) {
      ExpectClose(
          call.outputs[0],
          [&](int64_t row, int64_t i) { return reference.InputGradient(want, dy, row, i); },
          4.0 * reference.MaxRstd());
    }
    // What is added up is of order 1, and its errors are independent of each other.
    const double scale = 4.0 * std::sqrt(1.0 + static_cast<double>(c.examples * c.elements));
    if (!call.outputs[1].absent()) {
      ExpectClose(
          call.outputs[1], [&](int64_t, int64_t channel) { return want.dweight[channel]; }, scale);
    }
    if (!call.outputs[2].absent()) {
      ExpectClose(
          call.outputs[2], [&](int64_t, int64_t channel) { return want.dbias[channel]; }, scale);
    }
  }
};

// No examples; groups of one element; one group; channels that are groups, several in a warp; the
// packs of a group in a warp, a block, and clusters, with channels that begin within a warp's run,
// a block, or both; in all of them as many threads as packs and fewer.
constexpr Case kHeld[] = {{0, 4, 8, 2},      {2, 8, 64, 1},    {3, 32, 64, 32},  {5, 16, 16, 8},
                          {1, 48, 1024, 16}, {2, 40, 256, 1},  {2, 20, 1024, 2}, {70, 4, 32, 2},
                          {2, 8, 8192, 2},   {1, 3, 32768, 1}, {1, 5, 20008, 1}, {2, 2, 65536, 1},
                          {1, 1024, 16, 1}};

TEST_P(GroupNormTest, BothPhasesAgreeWithDoubleWhereBlocksHoldGroups) {
  for (const Case& c : kHeld) {
    for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
      Forward(c.With(dtype));
      Backward(c.With(dtype));
    }
  }
}

// Channels of one element and of a few; sizes that no pack divides, in one part and in several;
// more elements or channels than a cluster holds.
constexpr Case kSplit[] = {{2, 4, 1, 4},     {3, 24, 1, 4},    {2, 6, 5, 2},      {2, 6, 20, 3},
                           {3, 16, 49, 4},   {2, 6, 7, 6},     {1, 300, 3, 1},    {2, 4, 196, 2},
                           {2, 4, 2049, 2},  {1, 2, 16387, 1}, {1, 2, 300000, 1}, {1, 4096, 8, 1},
                           {2, 2, 40001, 2}, {300, 4, 12, 2}};

TEST_P(GroupNormTest, BothPhasesAgreeWithDoubleWhereGroupsAreSplit) {
  for (const Case& c : kSplit) {
    for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
      Forward(c.With(dtype));
      Backward(c.With(dtype));
    }
  }
}

TEST_P(GroupNormTest, ALargeMeanLosesNoDigitsOfTheVariance) {
  for (const int64_t elements : {int64_t{8}, int64_t{1024}, int64_t{1001}, int64_t{20000}}) {
    Forward({.elements = elements, .x_mean = 1000.0});
  }
}

// The first elements, from which distances are taken at first, say nothing of the mean.
TEST_P(GroupNormTest, AFirstElementFarFromTheMeanLosesNoDigits) {
  for (const int64_t elements : {64, 49, 8192, 8191}) {
    const Case c = {.elements = elements};
    SCOPED_TRACE(c.Name());
    const FbGroupNormParams params = c.Params();
    KernelCall call = NewForward(c, &params);
    call.inputs[0].Fill([&](int64_t row, int64_t i) {
      return row % 2 == 0 && i < 8 ? 0.0 : 1000.0 + std::sin(static_cast<double>(row * 97 + i));
    });
    testing::Run(Kernel(), GetParam(), &call);
    const Reference reference(c, call.inputs[0], call.inputs[1]);
    ExpectClose(call.outputs[1], [&](int64_t, int64_t group) { return reference.Mean(group); });
    ExpectClose(call.outputs[2], [&](int64_t, int64_t group) { return reference.Rstd(group); });
  }
}

TEST_P(GroupNormTest, ConstantGroupsGiveTheBias) {
  for (const int64_t elements : {64, 49}) {
    const Case c = {.elements = elements};
    const FbGroupNormParams params = c.Params();
    KernelCall call = NewForward(c, &params);
    call.inputs[0].Fill([](int64_t, int64_t) { return 3.3; });
    testing::Run(Kernel(), GetParam(), &call);
    // An error of the mean in the last digit is multiplied by 1 / sqrt(eps).
    ExpectClose(
        call.outputs[0],
        [&](int64_t row, int64_t) { return call.inputs[2].At(0, row % c.channels); }, 10.0);
  }
}

TEST_P(GroupNormTest, ANaNStaysInItsGroup) {
  for (const int64_t elements : {64, 49, 40000}) {
    const Case c = {.elements = elements};
    SCOPED_TRACE(c.Name());
    const FbGroupNormParams params = c.Params();
    KernelCall call = NewForward(c, &params);
    call.inputs[0].Set(2, elements - 1, std::nan(""));
    testing::Run(Kernel(), GetParam(), &call);
    for (int64_t row = 0; row < c.examples * c.channels; ++row) {
      EXPECT_EQ(std::isnan(call.outputs[0].At(row, 0)), c.GroupOf(row) == c.GroupOf(2)) << row;
    }
  }
}

TEST_P(GroupNormTest, WeightAndBiasMayBeMissingOrOfAnotherDType) {
  for (const int32_t weight : {kAbsentDType, int32_t{FB_F32}}) {
    for (const int32_t bias : {kAbsentDType, int32_t{FB_F16}}) {
      for (const int64_t elements : {96, 49}) {
        const Case c = {
            .elements = elements, .dtype = FB_BF16, .weight_dtype = weight, .bias_dtype = bias};
        Forward(c);
        Backward(c);
      }
    }
  }
}

TEST_P(GroupNormTest, OutputsMayBeMissing) {
  for (const int64_t elements : {64, 49}) {
    const Case c = {.elements = elements};
    SCOPED_TRACE(c.Name());
    const FbGroupNormParams params = c.Params();
    KernelCall forward = NewForward(c, &params);
    forward.outputs[1] = {};
    forward.outputs[2] = {};
    testing::Run(Kernel(), GetParam(), &forward);
    const Reference reference(c, forward.inputs[0], forward.inputs[1]);
    ExpectClose(
        forward.outputs[0],
        [&](int64_t row, int64_t i) {
          return reference.Normed(row, i) * reference.Scale(row) +
                 forward.inputs[2].At(0, row % c.channels);
        },
        1.0);
    for (const int wanted : {0, 1, 2}) {
      KernelCall backward = NewBackward(c, &params);
      for (const int other : {0, 1, 2}) {
        if (other != wanted) backward.outputs[other] = {};
      }
      testing::Run(Kernel(), GetParam(), &backward);
      ExpectGradients(c, backward);
    }
  }
}

TEST_P(GroupNormTest, AnyAlignment) {
  for (const int64_t elements : {64, 200, 49, 20003}) {
    for (const auto& [x, y] : {std::pair{1, 1}, {1, 0}, {0, 3}, {8, 8}}) {
      const Case c = {.elements = elements, .x_offset = x, .y_offset = y};
      Forward(c.With(FB_BF16));
      Backward(c.With(FB_BF16));
      Forward(c);
      Backward(c);
    }
  }
}

FB_INSTANTIATE_PER_DEVICE(GroupNormTest);

}  // namespace
}  // namespace fuseboard::group_norm
