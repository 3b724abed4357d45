#include <gtest/gtest.h>

#include <functional>

#include "kernels/abi/kl_div.h"
#include "tests/testing/kernel_harness.h"

namespace fuseboard::kl_div {
namespace {

using testing::KernelCall;
using testing::RawCall;
using testing::TestTensor;

// A good call on [3, 8].
KernelCall CallOf(FbPhase phase, const FbKlDivParams* params) {
  const TestTensor matrix(FB_F32, {3, 8});
  const TestTensor label(FB_I64, {3});
  if (phase == FB_BACKWARD) return {phase, {matrix, matrix, matrix, label}, {matrix}, params};
  return {phase,
          {matrix, matrix, TestTensor(FB_F32, {3}), label},
          {TestTensor(FB_F32, {3}), TestTensor(), matrix},
          params};
}

std::string ReasonFor(FbPhase phase,
                      const std::function<void(KernelCall*, FbKlDivParams*)>& spoil) {
  FbKlDivParams params = {sizeof(FbKlDivParams), 0, 1e-10, -100};
  KernelCall call = CallOf(phase, &params);
  spoil(&call, &params);
  return testing::RejectReason(testing::OpenKernel("kl_div"), call);
}

std::string ReasonForRaw(FbPhase phase, const std::function<void(RawCall*)>& spoil) {
  const FbKlDivParams params = {sizeof(FbKlDivParams), 1, 0.0, -100};
  RawCall raw;
  testing::FillRawCall(CallOf(phase, &params), FB_CPU, &raw);
  spoil(&raw);
  const char* why = testing::OpenKernel("kl_div").entries[phase][FB_CPU].reject_reason(&raw.call);
  return why != nullptr ? why : "";
}

TEST(KlDivRejectTest, AcceptsAGoodCall) {
  EXPECT_EQ(ReasonFor(FB_FORWARD, [](auto*, auto*) {}), "");
  EXPECT_EQ(ReasonFor(FB_BACKWARD, [](auto*, auto*) {}), "");
  EXPECT_EQ(ReasonFor(FB_FORWARD,
                      [](auto* call, auto*) {
                        call->outputs = {TestTensor(), TestTensor(FB_F32, {3, 8}), TestTensor()};
                      }),
            "");
}

TEST(KlDivRejectTest, NamesTheTensorAndBothValues) {
  const auto with_input = [](FbPhase phase, size_t i, const TestTensor& tensor) {
    return ReasonFor(phase, [&](auto* call, auto*) { call->inputs[i] = tensor; });
  };
  const auto with_output = [](FbPhase phase, size_t i, const TestTensor& tensor) {
    return ReasonFor(phase, [&](auto* call, auto*) { call->outputs[i] = tensor; });
  };
  EXPECT_EQ(with_input(FB_FORWARD, 0, TestTensor(FB_F32, {8})), "input: want 2 dimensions, got 1");
  EXPECT_EQ(with_input(FB_FORWARD, 0, TestTensor(FB_I64, {3, 8})),
            "input: want f32, f16 or bf16, got i64");
  EXPECT_EQ(with_input(FB_FORWARD, 1, TestTensor(FB_F32, {3, 9})),
            "target: want shape [3, 8], got [3, 9]");
  EXPECT_EQ(with_input(FB_FORWARD, 1, TestTensor(FB_BF16, {3, 8})), "target: want f32, got bf16");
  EXPECT_EQ(with_input(FB_FORWARD, 2, TestTensor(FB_F32, {4})), "scale: want shape [3], got [4]");
  EXPECT_EQ(with_input(FB_FORWARD, 2, TestTensor(FB_F16, {3})), "scale: want f32, got f16");
  EXPECT_EQ(with_input(FB_FORWARD, 3, TestTensor(FB_I64, {4})), "label: want shape [3], got [4]");
  EXPECT_EQ(with_input(FB_BACKWARD, 3, TestTensor(FB_F32, {3})), "label: want i64 or i32, got f32");
  EXPECT_EQ(with_output(FB_FORWARD, 0, TestTensor(FB_BF16, {3})), "loss: want f32, got bf16");
  EXPECT_EQ(with_output(FB_FORWARD, 1, TestTensor(FB_F32, {3, 8})),
            "losses: want no other output beside them, got loss");
  EXPECT_EQ(with_output(FB_FORWARD, 2, TestTensor(FB_BF16, {3, 8})), "dinput: want f32, got bf16");
  EXPECT_EQ(with_input(FB_BACKWARD, 0, TestTensor(FB_BF16, {3, 8})), "dloss: want f32, got bf16");
  EXPECT_EQ(with_input(FB_BACKWARD, 0, TestTensor(FB_F32, {3, 7})),
            "dloss: want shape [3, 8], got [3, 7]");
  EXPECT_EQ(with_output(FB_BACKWARD, 0, TestTensor()), "dinput: want 2 dimensions, got -1");
}

TEST(KlDivRejectTest, NamesTheParameter) {
  EXPECT_EQ(ReasonFor(FB_FORWARD, [](auto*, auto* params) { params->log_target = 2; }),
            "log_target: want 0 or 1, got 2");
  EXPECT_EQ(ReasonFor(FB_BACKWARD, [](auto*, auto* params) { params->eps = -1.0; }),
            "eps: want a finite number >= 0, got -1");
  EXPECT_EQ(ReasonFor(FB_FORWARD, [](auto*, auto* params) { params->struct_size = 4; }),
            "params: want struct_size >= 24, got 4");
}

TEST(KlDivRejectTest, NamesTheStrideDeviceCountsAndWidth) {
  EXPECT_EQ(ReasonForRaw(FB_FORWARD, [](auto* raw) { raw->inputs[0].stride[1] = 8; }),
            "input: want column stride 1, got 8");
  EXPECT_EQ(ReasonForRaw(FB_FORWARD, [](auto* raw) { raw->outputs[2].stride[0] = 4; }),
            "dinput: want row stride >= 8 (rows that do not overlap), got 4");
  EXPECT_EQ(ReasonForRaw(FB_BACKWARD, [](auto* raw) { raw->inputs[2].device_type = FB_CUDA; }),
            "target: want device 0:0, got 1:0");
  EXPECT_EQ(ReasonForRaw(FB_BACKWARD, [](auto* raw) { raw->call.num_outputs = 3; }),
            "call: want 4 inputs and 1 outputs, got 4 and 3");
  EXPECT_EQ(ReasonForRaw(FB_FORWARD, [](auto* raw) { raw->inputs[0].shape[1] = (1 << 30) + 1; }),
            "input: want at most 1073741824 columns, got 1073741825");
}

}  // namespace
}  // namespace fuseboard::kl_div
