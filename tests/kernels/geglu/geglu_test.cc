// geglu against double in both forms. Strides, alignment and sizes beyond 2^31 are the business of
// the kernel under it, which swiglu's tests go through.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/geglu/geglu_case.h"

namespace fuseboard::geglu {
namespace {

using testing::ExpectClose;
using testing::KernelCall;
using testing::OpenKernel;
using testing::TestTensor;

// Whole packs, and numbers of elements that no vector divides; one tile, part of one and several;
// the CPU's blocks are of 1,024.
struct Shape {
  int64_t rows;
  int64_t cols;
};
constexpr Shape kShapes[] = {{1, 1}, {5, 7}, {4, 8}, {1, 4097}, {2, 14336}, {0, 16}, {5, 0}};
constexpr int32_t kDTypes[] = {FB_F32, FB_F16, FB_BF16};
constexpr int32_t kForms[] = {FB_GELU_TANH, FB_GELU_EXACT};

// Exponentials below 2^-126 are 0 on the GPU in 16-bit dtypes: what is flushed is this, times the
// tolerance.
constexpr double kFlushed = 0x1p-119;

class GegluTest : public ::testing::TestWithParam<int> {
 protected:
  void ExpectForward(const Case& c) {
    SCOPED_TRACE(c.Name());
    const FbGegluParams params = c.params();
    KernelCall call = ForwardCall(c, &params);
    testing::Run(OpenKernel("geglu"), GetParam(), &call);
    ExpectClose(
        call.outputs[0],
        [&](auto r, auto i) {
          return c.Activation(call.inputs[0].At(r, i)) * call.inputs[1].At(r, i);
        },
        kFlushed);
  }

  void ExpectBackward(const Case& c) {
    SCOPED_TRACE(c.Name());
    const FbGegluParams params = c.params();
    KernelCall call = BackwardCall(c, &params);
    testing::Run(OpenKernel("geglu"), GetParam(), &call);
    const auto& in = call.inputs;
    // The derivative has a zero at g = -0.75; around it the error is that of its terms.
    ExpectClose(
        call.outputs[0],
        [&](auto r, auto i) {
          return in[0].At(r, i) * in[2].At(r, i) * GeluDerivative(c.gelu, in[1].At(r, i));
        },
        0.05);
    ExpectClose(
        call.outputs[1],
        [&](auto r, auto i) { return in[0].At(r, i) * c.Activation(in[1].At(r, i)); }, kFlushed);
  }
};

TEST_P(GegluTest, BothPhasesAgreeWithDoubleOnAllDTypesFormsAndShapes) {
  for (const int32_t dtype : kDTypes) {
    for (const int32_t gelu : kForms) {
      for (const Shape& shape : kShapes) {
        for (const int32_t round : {0, 1}) {
          const Case c = {.rows = shape.rows,
                          .cols = shape.cols,
                          .dtype = dtype,
                          .gelu = gelu,
                          .round_activation = round};
          ExpectForward(c);
          ExpectBackward(c);
        }
      }
    }
  }
}

TEST_P(GegluTest, RowsMayLieApartAndBasesNeedNoAlignment) {
  for (const int32_t dtype : kDTypes) {
    for (const int32_t gelu : kForms) {
      const Case c = {.rows = 9,
                      .cols = 64,
                      .dtype = dtype,
                      .gelu = gelu,
                      .in_layout = {.row_stride = 65, .offset = 1},
                      .out_layout = {.row_stride = 72}};
      ExpectForward(c);
      ExpectBackward(c);
    }
  }
}

TEST_P(GegluTest, TheTwoFormsAreTold) {
  // They differ by 4.7e-4 at most, at -2.70: a loose tolerance would hide one for the other.
  for (const int32_t gelu : kForms) {
    const Case c = {.rows = 1, .cols = 8, .gelu = gelu};
    const FbGegluParams params = c.params();
    KernelCall call = ForwardCall(c, &params);
    call.inputs[0].Fill([](auto, auto) { return -2.7; });
    call.inputs[1].Fill([](auto, auto) { return 1.0; });
    testing::Run(OpenKernel("geglu"), GetParam(), &call);
    EXPECT_NEAR(call.outputs[0].At(0, 0), Gelu(gelu, -2.7), 2e-8);
    EXPECT_GT(std::fabs(Gelu(FB_GELU_TANH, -2.7) - Gelu(FB_GELU_EXACT, -2.7)), 4e-4);
  }
}

TEST_P(GegluTest, BothTailsKeepTheirDigits) {
  for (const int32_t dtype : kDTypes) {
    for (const int32_t gelu : kForms) {
      const Case c = {.rows = 1, .cols = 2048, .dtype = dtype, .gelu = gelu};
      SCOPED_TRACE(c.Name());
      const FbGegluParams params = c.params();
      KernelCall call = ForwardCall(c, &params);
      call.inputs[0].Fill([](auto, auto i) { return 0.01 * static_cast<double>(i) - 9.0; });
      call.inputs[1].Fill([](auto, auto) { return 1.0; });
      testing::Run(OpenKernel("geglu"), GetParam(), &call);
      // Below 2^-14 f16 has no more digits.
      const double floor = dtype == FB_F16 ? 0x1p-14 : 0.0;
      const double relative = testing::ToleranceOf(dtype).relative;
      for (int64_t i = 0; i < c.cols; ++i) {
        const double want = Gelu(gelu, call.inputs[0].At(0, i));
        EXPECT_NEAR(call.outputs[0].At(0, i), want, relative * (std::fabs(want) + floor)) << i;
      }
    }
  }
}

TEST_P(GegluTest, ExtremeGatesGiveWhatTheFormulaGives) {
  for (const int32_t dtype : kDTypes) {
    for (const int32_t gelu : kForms) {
      const Case c = {.rows = 1, .cols = 8, .dtype = dtype, .gelu = gelu};
      SCOPED_TRACE(c.Name());
      const FbGegluParams params = c.params();
      KernelCall forward = ForwardCall(c, &params);
      KernelCall backward = BackwardCall(c, &params);
      const double large = dtype == FB_F16 ? 60000.0 : 1e25;
      const double gates[] = {INFINITY, std::nan(""), large, -large, 0.0, -200.0, 200.0, 1.0};
      const auto gate = [&](auto, auto i) { return gates[i]; };
      const auto one = [](auto, auto) { return 1.0; };
      forward.inputs[0].Fill(gate);
      forward.inputs[1].Fill(one);
      backward.inputs[0].Fill(one);
      backward.inputs[1].Fill(gate);
      backward.inputs[2].Fill(one);
      testing::Run(OpenKernel("geglu"), GetParam(), &forward);
      testing::Run(OpenKernel("geglu"), GetParam(), &backward);
      const TestTensor& out = forward.outputs[0];
      const TestTensor& dgate = backward.outputs[0];
      EXPECT_EQ(out.At(0, 0), INFINITY);
      EXPECT_TRUE(std::isnan(out.At(0, 1)));
      EXPECT_EQ(out.At(0, 2), forward.inputs[0].At(0, 2));
      EXPECT_EQ(out.At(0, 3), 0.0);
      EXPECT_EQ(out.At(0, 4), 0.0);
      EXPECT_TRUE(std::isnan(dgate.At(0, 1)));
      EXPECT_EQ(dgate.At(0, 2), 1.0);
      EXPECT_EQ(dgate.At(0, 3), 0.0);
      EXPECT_EQ(dgate.At(0, 4), 0.5);
      EXPECT_EQ(dgate.At(0, 5), 0.0);
      EXPECT_EQ(dgate.At(0, 6), 1.0);
    }
  }
}

TEST_P(GegluTest, EachGradientMayBeAbsent) {
  for (const int32_t gelu : kForms) {
    const Case c = {.rows = 3, .cols = 1000, .dtype = FB_BF16, .gelu = gelu};
    const FbGegluParams params = c.params();
    KernelCall both = BackwardCall(c, &params);
    KernelCall no_dgate = both;
    KernelCall no_dup = both;
    KernelCall neither = both;
    no_dgate.outputs[0] = TestTensor();
    no_dup.outputs[1] = TestTensor();
    neither.outputs = {TestTensor(), TestTensor()};
    for (KernelCall* call : {&both, &no_dgate, &no_dup, &neither}) {
      testing::Run(OpenKernel("geglu"), GetParam(), call);
    }
    EXPECT_EQ(both.outputs[1].image(), no_dgate.outputs[1].image());
    EXPECT_EQ(both.outputs[0].image(), no_dup.outputs[0].image());
  }
}

FB_INSTANTIATE_PER_DEVICE(GegluTest);

}  // namespace
}  // namespace fuseboard::geglu
