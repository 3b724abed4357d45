#include <gtest/gtest.h>

#include <functional>

#include "tests/kernels/rope/rope_case.h"

namespace fuseboard::rope {
namespace {

using testing::KernelCall;
using testing::OpenKernel;
using testing::RawCall;
using testing::RejectReason;
using testing::TestTensor;

// q [2, 3, 5, 16], k [2, 2, 5, 16], tables [1, 1, 5, 16], all f32.
std::string ReasonFor(FbPhase phase, const std::function<void(KernelCall*, FbRopeParams*)>& spoil,
                      const Case& c = {}, int device_type = FB_CPU) {
  FbRopeParams params = c.params();
  KernelCall call = CallOf(c, phase, &params);
  spoil(&call, &params);
  return RejectReason(OpenKernel("rope"), call, device_type);
}

std::string ReasonForParams(const std::function<void(FbRopeParams*)>& spoil, const Case& c = {}) {
  return ReasonFor(
      FB_FORWARD, [&](KernelCall*, FbRopeParams* params) { spoil(params); }, c);
}

std::string ReasonForRaw(FbPhase phase, const std::function<void(RawCall*)>& spoil) {
  const Case c;
  const FbRopeParams params = c.params();
  RawCall raw;
  testing::FillRawCall(CallOf(c, phase, &params), FB_CPU, &raw);
  spoil(&raw);
  const char* why = OpenKernel("rope").entries[phase][FB_CPU].reject_reason(&raw.call);
  return why != nullptr ? why : "";
}

TEST(RopeRejectTest, AcceptsAGoodCallOnEachDevice) {
  const auto nothing = [](KernelCall*, FbRopeParams*) {};
  for (const FbPhase phase : {FB_FORWARD, FB_BACKWARD}) {
    EXPECT_EQ(ReasonFor(phase, nothing), "");
#if defined(FB_HAVE_CUDA)
    EXPECT_EQ(ReasonFor(phase, nothing, {}, FB_CUDA), "");
#endif
  }
}

TEST(RopeRejectTest, NamesTheParameterAndItsValue) {
  EXPECT_EQ(ReasonForParams([](auto* p) { p->interleaved = 2; }),
            "interleaved: want 0 or 1, got 2");
  EXPECT_EQ(ReasonForParams([](auto* p) { p->round_products = -1; }),
            "round_products: want 0 or 1, got -1");
  for (const int64_t dim : {0, 7, 18}) {
    EXPECT_EQ(ReasonForParams([&](auto* p) { p->rotary_dim = dim; }),
              "rotary_dim: want an even number from 2 to 16, got " + std::to_string(dim));
  }
  // Heads of an odd size can be rotated in part only.
  EXPECT_EQ(ReasonForParams([](auto* p) { p->rotary_dim = 7; }, {.dim = 7, .rotary_dim = 6}),
            "rotary_dim: want an even number from 2 to 7, got 7");
  EXPECT_EQ(ReasonForParams([](auto* p) { p->struct_size = 8; }),
            "params: want struct_size >= 48, got 8");
  EXPECT_EQ(ReasonForParams([](auto* p) { p->sections[2] = 3; }, {.sections = {2, 2, 4}}),
            "sections: want three that add up to 8, got 2, 2 and 3");
  EXPECT_EQ(ReasonForParams([](auto* p) { p->sections[0] = -2; }, {.sections = {2, 2, 4}}),
            "sections: want three that add up to 8, got -2, 2 and 4");
}

TEST(RopeRejectTest, NamesTheTensorAndBothShapes) {
  const auto reason = [](FbPhase phase, size_t input, const TestTensor& tensor) {
    return ReasonFor(phase, [&](auto* call, auto*) { call->inputs[input] = tensor; });
  };
  EXPECT_EQ(reason(FB_FORWARD, 0, TestTensor(FB_F32, {3, 16})), "q: want 4 dimensions, got 2");
  EXPECT_EQ(reason(FB_FORWARD, 0, TestTensor()), "q: want a tensor, got none");
  EXPECT_EQ(reason(FB_FORWARD, 1, TestTensor(FB_F32, {2, 2, 4, 16})),
            "k: want shape [2, 2, 5, 16], got [2, 2, 4, 16]");
  EXPECT_EQ(reason(FB_FORWARD, 1, TestTensor()), "k_out: want it absent, as k is, got it present");
  EXPECT_EQ(reason(FB_BACKWARD, 1, TestTensor()),
            "dk: want it absent, as dk_out is, got it present");
  EXPECT_EQ(reason(FB_FORWARD, 2, TestTensor(FB_F32, {5, 16})), "cos: want 4 dimensions, got 2");
  EXPECT_EQ(reason(FB_FORWARD, 2, TestTensor(FB_F32, {2, 1, 5, 16})),
            "cos: want 1 or 3 streams, got 2");
  EXPECT_EQ(reason(FB_FORWARD, 2, TestTensor(FB_F32, {1, 3, 5, 16})),
            "cos: want a batch of 1 or 2, got 3");
  EXPECT_EQ(reason(FB_FORWARD, 2, TestTensor(FB_F32, {1, 1, 5, 12})),
            "cos: want 16 or 8 columns, got 12");
  EXPECT_EQ(reason(FB_FORWARD, 2, TestTensor(FB_F32, {1, 1, 6, 16})),
            "cos: want shape [1, 1, 5, 16], got [1, 1, 6, 16]");
  EXPECT_EQ(reason(FB_BACKWARD, 3, TestTensor(FB_F32, {1, 1, 5, 8})),
            "sin: want shape [1, 1, 5, 16], got [1, 1, 5, 8]");
  EXPECT_EQ(ReasonFor(FB_FORWARD,
                      [](auto* call, auto*) {
                        call->outputs[0] = TestTensor(FB_F32, {2, 4, 5, 16});
                      }),
            "q_out: want shape [2, 3, 5, 16], got [2, 4, 5, 16]");
}

TEST(RopeRejectTest, NamesTheTensorAndBothDTypes) {
  const auto reason = [](size_t input, const TestTensor& tensor) {
    return ReasonFor(FB_FORWARD, [&](auto* call, auto*) { call->inputs[input] = tensor; });
  };
  EXPECT_EQ(reason(0, TestTensor(FB_F64, {2, 3, 5, 16})), "q: want f32, f16 or bf16, got f64");
  EXPECT_EQ(reason(1, TestTensor(FB_F16, {2, 2, 5, 16})), "k: want f32, got f16");
  EXPECT_EQ(reason(2, TestTensor(FB_F16, {1, 1, 5, 16})), "cos: want f32, got f16");
  EXPECT_EQ(ReasonFor(FB_FORWARD,
                      [](auto* call, auto*) {
                        call->inputs[2] = TestTensor(FB_BF16, {1, 1, 5, 16});
                      },
                      {.dtype = FB_F16}),
            "cos: want f16 or f32, got bf16");
  EXPECT_EQ(reason(3, TestTensor(FB_BF16, {1, 1, 5, 16})), "sin: want f32, got bf16");
  EXPECT_EQ(ReasonFor(FB_BACKWARD,
                      [](auto* call, auto*) {
                        call->outputs[1] = TestTensor(FB_F16, {2, 2, 5, 16});
                      }),
            "dk: want f32, got f16");
}

TEST(RopeRejectTest, NamesTheStrideDeviceAndCounts) {
  EXPECT_EQ(ReasonForRaw(FB_FORWARD, [](auto* raw) { raw->inputs[0].stride[3] = 2; }),
            "q: want stride 1 in the last dimension, got 2");
  EXPECT_EQ(ReasonForRaw(FB_FORWARD, [](auto* raw) { raw->inputs[1].stride[1] = -16; }),
            "k: want strides >= 0, got -16 in dimension 1");
  EXPECT_EQ(ReasonForRaw(FB_FORWARD, [](auto* raw) { raw->outputs[0].stride[1] = 8; }),
            "q_out: want stride >= 16 in dimension 1 (no overlap), got 8");
  EXPECT_EQ(ReasonForRaw(FB_BACKWARD, [](auto* raw) { raw->outputs[1].stride[0] = 0; }),
            "dk: want stride >= 1 in dimension 0 (no overlap), got 0");
  EXPECT_EQ(ReasonForRaw(FB_BACKWARD, [](auto* raw) { raw->inputs[2].device_type = FB_CUDA; }),
            "cos: want device 0:0, got 1:0");
  EXPECT_EQ(ReasonForRaw(FB_BACKWARD, [](auto* raw) { raw->call.num_outputs = 1; }),
            "call: want 4 inputs and 2 outputs, got 4 and 1");
  EXPECT_EQ(ReasonForRaw(FB_FORWARD, [](auto* raw) { raw->inputs[0].data = nullptr; }),
            "q: want memory for 480 elements, got NULL");
}

}  // namespace
}  // namespace fuseboard::rope
