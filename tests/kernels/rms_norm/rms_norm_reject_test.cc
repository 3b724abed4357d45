#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/kernels/rms_norm/rms_norm_case.h"

namespace fuseboard::rms_norm {
namespace {

using testing::KernelCall;
using testing::OpenKernel;
using testing::RawCall;
using testing::RejectReason;
using testing::TestTensor;

// The reason for a call that `spoil` made from a good one, on the CPU.
std::string ReasonFor(FbPhase phase, const Case& c,
                      const std::function<void(KernelCall*, FbRmsNormParams*)>& spoil) {
  FbRmsNormParams params = c.params();
  KernelCall call = phase == FB_FORWARD ? ForwardCall(c, &params) : BackwardCall(c, &params, {});
  spoil(&call, &params);
  return RejectReason(OpenKernel("rms_norm"), call);
}

std::string ReasonForRaw(const std::function<void(RawCall*)>& spoil) {
  const Case c;
  const FbRmsNormParams params = c.params();
  RawCall raw;
  testing::FillRawCall(ForwardCall(c, &params), FB_CPU, &raw);
  spoil(&raw);
  const char* why = OpenKernel("rms_norm").entries[FB_FORWARD][FB_CPU].reject_reason(&raw.call);
  return why != nullptr ? why : "";
}

TEST(RmsNormRejectTest, AcceptsAGoodCallOnEachDevice) {
  const Case c;
  const FbRmsNormParams params = c.params();
  const FbKernel& kernel = OpenKernel("rms_norm");
  EXPECT_EQ(RejectReason(kernel, ForwardCall(c, &params)), "");
  EXPECT_EQ(RejectReason(kernel, BackwardCall(c, &params, {})), "");
#if defined(FB_HAVE_CUDA)
  EXPECT_EQ(RejectReason(kernel, ForwardCall(c, &params), FB_CUDA), "");
  EXPECT_EQ(RejectReason(kernel, BackwardCall(c, &params, {}), FB_CUDA), "");
#else
  EXPECT_EQ(kernel.entries[FB_FORWARD][FB_CUDA].launch, nullptr);
#endif
}

TEST(RmsNormRejectTest, NamesTheParameterAndItsValue) {
  const Case c;
  const auto reason = [&](const std::function<void(FbRmsNormParams*)>& spoil) {
    return ReasonFor(FB_FORWARD, c, [&](KernelCall*, FbRmsNormParams* params) { spoil(params); });
  };
  EXPECT_EQ(reason([](auto* p) { p->casting = 3; }), "casting: want 0, 1 or 2, got 3");
  EXPECT_EQ(reason([](auto* p) { p->eps = -1.0; }), "eps: want a finite number >= 0, got -1");
  EXPECT_EQ(reason([](auto* p) { p->eps = NAN; }), "eps: want a finite number >= 0, got nan");
  EXPECT_EQ(reason([](auto* p) { p->offset = INFINITY; }), "offset: want a finite number, got inf");
  EXPECT_EQ(reason([](auto* p) { p->struct_size = 8; }), "params: want struct_size >= 24, got 8");
}

TEST(RmsNormRejectTest, NamesTheTensorAndBothShapes) {
  const Case c;  // [4, 8]
  const auto forward = [&](const std::function<void(KernelCall*)>& spoil) {
    return ReasonFor(FB_FORWARD, c, [&](KernelCall* call, FbRmsNormParams*) { spoil(call); });
  };
  const auto backward = [&](const std::function<void(KernelCall*)>& spoil) {
    return ReasonFor(FB_BACKWARD, c, [&](KernelCall* call, FbRmsNormParams*) { spoil(call); });
  };
  EXPECT_EQ(forward([](auto* call) { call->inputs[0] = TestTensor(FB_F32, {8}); }),
            "x: want 2 dimensions, got 1");
  EXPECT_EQ(forward([](auto* call) {
              call->inputs[0] = TestTensor(FB_F32, {4, 0});
            }),
            "x: want hidden in [1, 2147483647], got 0");
  EXPECT_EQ(forward([](auto* call) { call->inputs[1] = TestTensor(FB_F32, {9}); }),
            "weight: want shape [8], got [9]");
  EXPECT_EQ(forward([](auto* call) {
              call->outputs[0] = TestTensor(FB_F32, {4, 9});
            }),
            "y: want shape [4, 8], got [4, 9]");
  EXPECT_EQ(forward([](auto* call) { call->outputs[0] = TestTensor(); }),
            "y: want 2 dimensions, got -1");
  EXPECT_EQ(forward([](auto* call) { call->outputs[1] = TestTensor(FB_F32, {5}); }),
            "rstd: want shape [4], got [5]");
  EXPECT_EQ(backward([](auto* call) {
              call->inputs[0] = TestTensor(FB_F32, {5, 8});
            }),
            "dy: want shape [4, 8], got [5, 8]");
  EXPECT_EQ(backward([](auto* call) { call->inputs[3] = TestTensor(); }),
            "rstd: want 1 dimensions, got -1");
  EXPECT_EQ(backward([](auto* call) {
              call->outputs[0] = TestTensor(FB_F32, {4, 7});
            }),
            "dx: want shape [4, 8], got [4, 7]");
  EXPECT_EQ(backward([](auto* call) { call->outputs[1] = TestTensor(FB_F32, {7}); }),
            "dweight: want shape [8], got [7]");
  EXPECT_EQ(backward([](auto* call) { call->inputs[2] = TestTensor(); }),
            "dweight: want absent without a weight, got a tensor");
}

TEST(RmsNormRejectTest, NamesTheTensorAndBothDTypes) {
  Case c;
  c.x_dtype = FB_BF16;
  const auto forward = [&](const std::function<void(KernelCall*)>& spoil) {
    return ReasonFor(FB_FORWARD, c, [&](KernelCall* call, FbRmsNormParams*) { spoil(call); });
  };
  EXPECT_EQ(forward([](auto* call) {
              call->inputs[0] = TestTensor(FB_F64, {4, 8});
            }),
            "x: want f32, f16 or bf16, got f64");
  EXPECT_EQ(forward([](auto* call) { call->inputs[1] = TestTensor(FB_I64, {8}); }),
            "weight: want f32, f16 or bf16, got i64");
  // bf16 normed values times an f32 weight are f32, and bf16 for the castings that round last.
  EXPECT_EQ(forward([](auto* call) {
              call->outputs[0] = TestTensor(FB_BF16, {4, 8});
            }),
            "y: want f32, got bf16");
  EXPECT_EQ(ReasonFor(FB_FORWARD, c,
                      [](KernelCall*, FbRmsNormParams* p) { p->casting = FB_CASTING_NONE; }),
            "y: want bf16, got f32");
  EXPECT_EQ(forward([](auto* call) { call->outputs[1] = TestTensor(FB_BF16, {4}); }),
            "rstd: want f32, got bf16");
  EXPECT_EQ(ReasonFor(FB_BACKWARD, c,
                      [](KernelCall* call, FbRmsNormParams*) {
                        call->outputs[1] = TestTensor(FB_BF16, {8});
                      }),
            "dweight: want f32, got bf16");
}

TEST(RmsNormRejectTest, NamesTheStride) {
  EXPECT_EQ(ReasonForRaw([](RawCall* raw) { raw->inputs[0].stride[1] = 2; }),
            "x: want column stride 1, got 2");
  EXPECT_EQ(ReasonForRaw([](RawCall* raw) { raw->inputs[0].stride[0] = -8; }),
            "x: want row stride >= 0, got -8");
  EXPECT_EQ(ReasonForRaw([](RawCall* raw) { raw->inputs[1].stride[0] = 2; }),
            "weight: want stride 1, got 2");
  EXPECT_EQ(ReasonForRaw([](RawCall* raw) { raw->outputs[0].stride[0] = 7; }),
            "y: want row stride >= 8 (rows that do not overlap), got 7");
}

TEST(RmsNormRejectTest, NamesTheDeviceCountsAndSizes) {
  EXPECT_EQ(ReasonForRaw([](RawCall* raw) { raw->inputs[1].device_type = FB_CUDA; }),
            "weight: want device 0:0, got 1:0");
  EXPECT_EQ(ReasonForRaw([](RawCall* raw) { raw->outputs[0].device_index = 2; }),
            "y: want device 0:0, got 0:2");
  EXPECT_EQ(ReasonForRaw([](RawCall* raw) { raw->call.device_type = FB_CUDA; }),
            "call: want device type 0, got 1");
  EXPECT_EQ(ReasonForRaw([](RawCall* raw) { raw->call.num_inputs = 1; }),
            "call: want 2 inputs and 2 outputs, got 1 and 2");
  EXPECT_EQ(ReasonForRaw([](RawCall* raw) { raw->call.params = nullptr; }),
            "params: want a parameter struct, got NULL");
  EXPECT_EQ(ReasonForRaw([](RawCall* raw) { raw->inputs[0].data = nullptr; }),
            "x: want memory for 32 elements, got NULL");
  EXPECT_THAT(ReasonForRaw([](RawCall* raw) { raw->call.struct_size = 16; }),
              ::testing::HasSubstr(", got 16"));
}

TEST(RmsNormTableTest, SaysWhatItIsAndPreparesTheCpuAtOnce) {
  const FbKernel& kernel = OpenKernel("rms_norm");
  EXPECT_EQ(kernel.abi_version, FB_ABI_VERSION);
  EXPECT_STREQ(kernel.name, "rms_norm");
  EXPECT_EQ(kernel.struct_size, sizeof(FbKernel));
  EXPECT_EQ(kernel.prepare(FB_CPU, 0), 0);
}

}  // namespace
}  // namespace fuseboard::rms_norm
