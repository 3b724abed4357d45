#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/kernels/swiglu/swiglu_case.h"

namespace fuseboard::swiglu {
namespace {

using testing::KernelCall;
using testing::OpenKernel;
using testing::RawCall;
using testing::RejectReason;
using testing::TestTensor;

std::string ReasonFor(FbPhase phase,
                      const std::function<void(KernelCall*, FbSwigluParams*)>& spoil) {
  const Case c;  // [3, 8]
  FbSwigluParams params = c.params();
  KernelCall call = phase == FB_FORWARD ? ForwardCall(c, &params) : BackwardCall(c, &params);
  spoil(&call, &params);
  return RejectReason(OpenKernel("swiglu"), call);
}

std::string ReasonForRaw(FbPhase phase, const std::function<void(RawCall*)>& spoil) {
  const Case c;
  const FbSwigluParams params = c.params();
  RawCall raw;
  testing::FillRawCall(phase == FB_FORWARD ? ForwardCall(c, &params) : BackwardCall(c, &params),
                       FB_CPU, &raw);
  spoil(&raw);
  const char* why = OpenKernel("swiglu").entries[phase][FB_CPU].reject_reason(&raw.call);
  return why != nullptr ? why : "";
}

TEST(SwigluRejectTest, AcceptsAGoodCall) {
  EXPECT_EQ(ReasonFor(FB_FORWARD, [](auto*, auto*) {}), "");
  EXPECT_EQ(ReasonFor(FB_BACKWARD, [](auto*, auto*) {}), "");
}

TEST(SwigluRejectTest, NamesTheTensorAndBothValues) {
  EXPECT_EQ(ReasonFor(FB_FORWARD,
                      [](auto* call, auto*) {
                        call->inputs[1] = TestTensor(FB_F32, {3, 9});
                      }),
            "up: want shape [3, 8], got [3, 9]");
  EXPECT_EQ(ReasonFor(FB_FORWARD,
                      [](auto* call, auto*) {
                        call->inputs[1] = TestTensor(FB_BF16, {3, 8});
                      }),
            "up: want f32, got bf16");
  EXPECT_EQ(ReasonFor(FB_FORWARD,
                      [](auto* call, auto*) {
                        call->inputs[0] = TestTensor(FB_I32, {3, 8});
                      }),
            "gate: want f32, f16 or bf16, got i32");
  EXPECT_EQ(
      ReasonFor(FB_FORWARD, [](auto* call, auto*) { call->inputs[0] = TestTensor(FB_F32, {8}); }),
      "gate: want 2 dimensions, got 1");
  EXPECT_EQ(ReasonFor(FB_FORWARD, [](auto* call, auto*) { call->outputs[0] = TestTensor(); }),
            "out: want 2 dimensions, got -1");
  EXPECT_EQ(ReasonFor(FB_BACKWARD,
                      [](auto* call, auto*) {
                        call->inputs[1] = TestTensor(FB_F32, {2, 8});
                      }),
            "gate: want shape [3, 8], got [2, 8]");
  EXPECT_EQ(ReasonFor(FB_BACKWARD,
                      [](auto* call, auto*) {
                        call->outputs[0] = TestTensor(FB_F16, {3, 8});
                      }),
            "dgate: want f32, got f16");
  EXPECT_EQ(ReasonFor(FB_BACKWARD,
                      [](auto* call, auto*) {
                        call->outputs[1] = TestTensor(FB_F32, {3, 4});
                      }),
            "dup: want shape [3, 8], got [3, 4]");
  EXPECT_EQ(ReasonFor(FB_FORWARD, [](auto*, auto* params) { params->round_activation = 2; }),
            "round_activation: want 0 or 1, got 2");
  EXPECT_EQ(ReasonFor(FB_FORWARD, [](auto*, auto* params) { params->struct_size = 4; }),
            "params: want struct_size >= 8, got 4");
}

TEST(SwigluRejectTest, NamesTheStrideDeviceAndCounts) {
  EXPECT_EQ(ReasonForRaw(FB_FORWARD, [](auto* raw) { raw->inputs[1].stride[1] = 8; }),
            "up: want column stride 1, got 8");
  EXPECT_EQ(ReasonForRaw(FB_FORWARD, [](auto* raw) { raw->outputs[0].stride[0] = 0; }),
            "out: want row stride >= 8 (rows that do not overlap), got 0");
  EXPECT_EQ(ReasonForRaw(FB_BACKWARD, [](auto* raw) { raw->inputs[0].device_type = FB_CUDA; }),
            "dout: want device 0:0, got 1:0");
  EXPECT_EQ(ReasonForRaw(FB_BACKWARD, [](auto* raw) { raw->call.num_outputs = 1; }),
            "call: want 3 inputs and 2 outputs, got 3 and 1");
}

TEST(SwigluRejectTest, NamesTheOptionAndItsValue) {
  EXPECT_EQ(ReasonFor(FB_FORWARD, [](auto*, auto* params) { params->limit = -1.5; }),
            "limit: want >= 0, got -1.5");
  EXPECT_EQ(ReasonFor(FB_BACKWARD, [](auto*, auto* params) { params->alpha = HUGE_VAL; }),
            "alpha: want a finite f32, got inf");
  EXPECT_EQ(ReasonFor(FB_BACKWARD, [](auto*, auto* params) { params->up_offset = NAN; }),
            "up_offset: want a finite f32, got nan");
  EXPECT_EQ(ReasonFor(FB_FORWARD, [](auto*, auto* params) { params->out_multiplier = 1e39; }),
            "out_multiplier: want a finite f32, got 1e+39");
}

// Makes gate and up the columns of one matrix; dgate and dup likewise.
void Alternate(FbPhase phase, RawCall* raw) {
  const auto pair = [](FbTensor* even) {
    even[0].stride[0] = even[1].stride[0] = 16;
    even[0].stride[1] = even[1].stride[1] = 2;
    even[1].data = static_cast<char*>(even[0].data) + 4;
  };
  pair(&raw->inputs[phase == FB_FORWARD ? 0 : 1]);
  if (phase == FB_BACKWARD) pair(raw->outputs.data());
}

// Why an alternating call is refused once `spoil` has been at it.
std::string ReasonForAlternating(FbPhase phase, const std::function<void(RawCall*)>& spoil) {
  return ReasonForRaw(phase, [&](RawCall* raw) {
    Alternate(phase, raw);
    spoil(raw);
  });
}

TEST(SwigluRejectTest, WhatAlternatesMustFitTogether) {
  for (const FbPhase phase : {FB_FORWARD, FB_BACKWARD}) {
    EXPECT_EQ(ReasonForAlternating(phase, [](auto*) {}), "");
  }
  EXPECT_EQ(ReasonForAlternating(FB_FORWARD, [](auto* raw) { raw->inputs[1].stride[1] = 1; }),
            "up: want column stride 2, as the others have, got 1");
  EXPECT_EQ(ReasonForAlternating(FB_FORWARD,
                                 [](auto* raw) { raw->inputs[1].data = raw->inputs[0].data; }),
            "up: want the columns after those of gate, 4 bytes on, row stride 16, got 0 and 16");
  EXPECT_EQ(ReasonForAlternating(FB_FORWARD, [](auto* raw) { raw->outputs[0].stride[1] = 2; }),
            "out: want column stride 1, got 2");
  EXPECT_EQ(ReasonForAlternating(FB_BACKWARD, [](auto* raw) { raw->outputs[0].stride[1] = 1; }),
            "dgate: want column stride 2, as the others have, got 1");
  EXPECT_EQ(ReasonForAlternating(FB_BACKWARD, [](auto* raw) { raw->outputs[1].ndim = -1; }),
            "dup: want 2 dimensions, got -1");
  EXPECT_EQ(ReasonForAlternating(
                FB_BACKWARD,
                [](auto* raw) { raw->outputs[0].stride[0] = raw->outputs[1].stride[0] = 15; }),
            "dgate: want row stride >= 16 (rows that do not overlap), got 15");
}

}  // namespace
}  // namespace fuseboard::swiglu
