// The harness itself: a test that could not fail would prove nothing about a kernel.

#include "tests/testing/test_tensor.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/testing/kernel_harness.h"

namespace fuseboard::testing {
namespace {

TEST(TestTensorTest, RoundsToNearestEvenOfEachDType) {
  EXPECT_EQ(RoundToDType(FB_BF16, 1.00390625), 1.0);       // A tie: 1 + 2^-8.
  EXPECT_EQ(RoundToDType(FB_BF16, 1.01171875), 1.015625);  // A tie, upwards to even.
  EXPECT_EQ(RoundToDType(FB_F16, 65519.0), 65504.0);
  EXPECT_EQ(RoundToDType(FB_F16, 65520.0), INFINITY);
  EXPECT_EQ(RoundToDType(FB_F16, 0x1.8p-24), 0x1p-23);  // A tie of subnormals.
  EXPECT_EQ(RoundToDType(FB_F32, 16777217.0), 16777216.0);
  EXPECT_EQ(RoundToDType(FB_F32, 0x1.8p-149), 0x1p-148);
  EXPECT_EQ(RoundToDType(FB_F32, 0x1.fffffefffffffp127), 0x1.fffffep127);
  EXPECT_EQ(RoundToDType(FB_F32, 0x1.ffffffp127), INFINITY);
  EXPECT_EQ(RoundToDType(FB_BF16, -0x1.ffp127), -INFINITY);
  EXPECT_EQ(RoundToDType(FB_F16, 0x1p-1060), 0.0);
}

// Every number of a 16-bit dtype is what its rounding leaves alone, and is read back as it was set.
TEST(TestTensorTest, NumbersOf16BitsStayThemselves) {
  for (const int32_t dtype : {FB_F16, FB_BF16}) {
    TestTensor bits(dtype, {0x10000});
    auto* all = static_cast<uint16_t*>(bits.View(bits.image().data(), FB_CPU).data);
    for (int i = 0; i < 0x10000; ++i) all[i] = static_cast<uint16_t>(i);
    TestTensor back(dtype, {0x10000});
    back.Fill([&](auto, auto i) { return bits.At(0, i); });
    const auto* read = static_cast<uint16_t*>(back.View(back.image().data(), FB_CPU).data);
    for (int i = 0; i < 0x10000; ++i) {
      const double value = bits.At(0, i);
      if (std::isnan(value)) continue;
      ASSERT_EQ(RoundToDType(dtype, value), value) << i;
      ASSERT_EQ(read[i], i);
    }
  }
  TestTensor known(FB_F16, {4});
  known.Fill([](auto, auto i) { return std::ldexp(1.0 + 0x1p-10, static_cast<int>(i) - 14); });
  EXPECT_EQ(known.At(0, 3), 0x1.004p-11);
}

TEST(TestTensorTest, ReadsBackWhatWasSetInAnyLayout) {
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16, FB_F64, FB_I32, FB_I64}) {
    TestTensor tensor(dtype, {3, 5}, {.row_stride = 7, .offset = 1});
    tensor.Fill([](int64_t r, int64_t c) { return static_cast<double>(r * 10 + c) - 7.0; });
    EXPECT_EQ(tensor.At(2, 4), 17.0);
    EXPECT_EQ(tensor.At(0, 0), -7.0);
  }
}

TEST(TestTensorTest, RowsOfMoreDimensionsLieWhereTheirStridesSay) {
  TestTensor dense(FB_F32, {2, 3, 4});
  TestTensor transposed(FB_F32, {2, 3, 4}, {.strides = {4, 8, 1}});
  const auto value = [](int64_t r, int64_t c) { return static_cast<double>(r * 10 + c); };
  FbTensor view = dense.Fill(value).View(dense.image().data(), FB_CPU);
  EXPECT_EQ(view.ndim, 3);
  EXPECT_EQ(view.stride[0], 12);
  EXPECT_EQ(static_cast<float*>(view.data)[23], 53.0f);
  view = transposed.Fill(value).View(transposed.image().data(), FB_CPU);
  EXPECT_EQ(transposed.rows(), 6);
  EXPECT_EQ(static_cast<float*>(view.data)[4], 30.0f);  // [1, 0, 0].
  EXPECT_EQ(transposed.At(3, 0), 30.0);
  EXPECT_EQ(TestTensor(FB_F32, {2, 0, 4}).rows(), 0);
}

TEST(TestTensorTest, SeesAByteWrittenBesideTheElements) {
  TestTensor tensor(FB_F32, {2, 4}, {.row_stride = 6});
  tensor.Poison(0x11);
  tensor.Fill([](int64_t, int64_t) { return 1.0; });
  EXPECT_EQ(tensor.CountTouchedGuards(0x11), 0);
  FbTensor view = tensor.View(tensor.image().data(), FB_CPU);
  static_cast<float*>(view.data)[4] = 0.0f;  // Between the rows.
  static_cast<float*>(view.data)[-1] = 0.0f;
  EXPECT_EQ(tensor.CountTouchedGuards(0x11), 8);
}

const char* Accept(const FbCall* /*call*/) { return nullptr; }
uint64_t NoWorkspace(const FbCall* /*call*/) { return 0; }

// A one-output kernel from a launch function.
FbKernel KernelOf(int32_t (*launch)(const FbCall*, void*)) {
  FbKernel kernel = {};
  kernel.entries[FB_FORWARD][FB_CPU] = {Accept, NoWorkspace, launch};
  return kernel;
}

void RunOn(int32_t (*launch)(const FbCall*, void*)) {
  const FbKernel kernel = KernelOf(launch);
  KernelCall call = {
      FB_FORWARD, {TestTensor(FB_F32, {4}).FillNormal(1)}, {TestTensor(FB_F32, {4})}, nullptr};
  Run(kernel, FB_CPU, &call);
}

float* Out(const FbCall* call) { return static_cast<float*>(call->outputs[0].data); }

TEST(KernelHarnessTest, FindsAnElementThatIsNotWritten) {
  EXPECT_NONFATAL_FAILURE(RunOn([](const FbCall* call, void*) {
                            for (int i = 0; i < 3; ++i) Out(call)[i] = 1.0f;
                            return 0;
                          }),
                          "differ between two runs");
}

TEST(KernelHarnessTest, FindsAWriteToAnInput) {
  EXPECT_NONFATAL_FAILURE(RunOn([](const FbCall* call, void*) {
                            for (int i = 0; i < 4; ++i) Out(call)[i] = 1.0f;
                            // Once per run would be two failures.
                            if (call->num_threads == 1)
                              static_cast<float*>(call->inputs[0].data)[0] = 99.0f;
                            return 0;
                          }),
                          "input 0 was written");
}

TEST(KernelHarnessTest, FindsAResultThatDependsOnTheThreads) {
  EXPECT_NONFATAL_FAILURE(RunOn([](const FbCall* call, void*) {
                            for (int i = 0; i < 4; ++i) {
                              Out(call)[i] = static_cast<float>(call->num_threads);
                            }
                            return 0;
                          }),
                          "differ between two runs");
}

TEST(KernelHarnessTest, UnderALimitALargeCallOfTheGpuRunsOnTheCpu) {
  const FbKernel kernel = KernelOf([](const FbCall* call, void*) {
    EXPECT_EQ(call->device_type, FB_CPU);
    for (int i = 0; i < 4; ++i) Out(call)[i] = 1.0f;
    return 0;
  });
  KernelCall call = {FB_FORWARD, {TestTensor()}, {TestTensor(FB_F32, {2, 2})}, nullptr};
  for (const auto& [variable, limit] :
       {std::pair("FUSEBOARD_TEST_GPU_ELEMENTS", "3"), {"FUSEBOARD_TEST_GPU_COLUMNS", "1"}}) {
    setenv(variable, limit, 1);
    testing::Run(kernel, FB_CUDA, &call);
    unsetenv(variable);
    EXPECT_EQ(call.outputs[0].At(1, 1), 1.0) << variable;
    call.outputs[0].Set(1, 1, 0.0);
  }
}

TEST(KernelHarnessTest, FindsAValueOutsideTheTolerance) {
  TestTensor got(FB_F32, {4});
  got.Fill([](auto, auto) { return 1.0; });
  EXPECT_NONFATAL_FAILURE(ExpectClose(got, [](auto, auto) { return 1.0001; }), "first at [0, 0]");
  EXPECT_NONFATAL_FAILURE(ExpectClose(got, [](auto, auto) { return std::nan(""); }), "want nan");
}

}  // namespace
}  // namespace fuseboard::testing
