#include <gtest/gtest.h>

#include <functional>

#include "tests/kernels/qk_norm_rope/qk_norm_rope_case.h"

namespace fuseboard::qk_norm_rope {
namespace {

using testing::KernelCall;
using testing::OpenKernel;
using testing::RejectReason;
using testing::TestTensor;

using Spoil = std::function<void(KernelCall*, FbQkNormRopeParams*)>;

// q [2, 3, 5, 16], k [2, 2, 5, 16], tables [1, 1, 5, 16], weights [16], all f32.
std::string ReasonFor(FbPhase phase, const Spoil& spoil, const Case& c = {},
                      int device_type = FB_CPU) {
  FbQkNormRopeParams params = c.params();
  KernelCall call = phase == FB_FORWARD ? ForwardCall(c, &params) : BackwardCall(c, &params);
  spoil(&call, &params);
  return RejectReason(OpenKernel("qk_norm_rope"), call, device_type);
}

std::string ReasonForParams(const std::function<void(FbQkNormRopeParams*)>& spoil) {
  return ReasonFor(FB_FORWARD, [&](KernelCall*, auto* params) { spoil(params); });
}

std::string ReasonForInput(FbPhase phase, size_t input, const TestTensor& tensor,
                           const Case& c = {}) {
  return ReasonFor(
      phase, [&](auto* call, auto*) { call->inputs[input] = tensor; }, c);
}

std::string ReasonForOutput(FbPhase phase, size_t output, const TestTensor& tensor,
                            const Case& c = {}) {
  return ReasonFor(
      phase, [&](auto* call, auto*) { call->outputs[output] = tensor; }, c);
}

TEST(QkNormRopeRejectTest, AcceptsAGoodCallOnEachDevice) {
  const Spoil nothing = [](KernelCall*, FbQkNormRopeParams*) {};
  for (const FbPhase phase : {FB_FORWARD, FB_BACKWARD}) {
    EXPECT_EQ(ReasonFor(phase, nothing), "");
    EXPECT_EQ(ReasonFor(phase, nothing, {.all_heads = 1}), "");
#if defined(FB_HAVE_CUDA)
    EXPECT_EQ(ReasonFor(phase, nothing, {}, FB_CUDA), "");
#endif
  }
}

TEST(QkNormRopeRejectTest, NamesTheParameterAndItsValue) {
  EXPECT_EQ(ReasonForParams([](auto* p) { p->casting = 3; }), "casting: want 0, 1 or 2, got 3");
  EXPECT_EQ(ReasonForParams([](auto* p) { p->eps = -1.0; }),
            "eps: want a finite number >= 0, got -1");
  EXPECT_EQ(ReasonForParams([](auto* p) { p->offset = INFINITY; }),
            "offset: want a finite number, got inf");
  EXPECT_EQ(ReasonForParams([](auto* p) { p->all_heads = 2; }), "all_heads: want 0 or 1, got 2");
  EXPECT_EQ(ReasonForParams([](auto* p) { p->rope.interleaved = 2; }),
            "interleaved: want 0 or 1, got 2");
  EXPECT_EQ(ReasonForParams([](auto* p) { p->rope.rotary_dim = 7; }),
            "rotary_dim: want an even number from 2 to 16, got 7");
  EXPECT_EQ(ReasonForParams([](auto* p) { p->struct_size = 8; }),
            "params: want struct_size >= 80, got 8");
}

TEST(QkNormRopeRejectTest, NamesTheTensorAndBothShapes) {
  EXPECT_EQ(ReasonForInput(FB_FORWARD, 0, TestTensor()), "q: want a tensor, got none");
  EXPECT_EQ(ReasonForInput(FB_FORWARD, 0, TestTensor(FB_F32, {3, 16})),
            "q: want 4 dimensions, got 2");
  EXPECT_EQ(ReasonForInput(FB_FORWARD, 1, TestTensor(FB_F32, {2, 2, 4, 16})),
            "k: want shape [2, 2, 5, 16], got [2, 2, 4, 16]");
  EXPECT_EQ(ReasonForInput(FB_FORWARD, 4, TestTensor(FB_F32, {15})),
            "q_weight: want shape [16], got [15]");
  EXPECT_EQ(ReasonForInput(FB_FORWARD, 5, TestTensor(FB_F32, {16}), {.all_heads = 1}),
            "k_weight: want shape [32], got [16]");
  EXPECT_EQ(ReasonForInput(FB_FORWARD, 2, TestTensor(FB_F32, {1, 1, 6, 16})),
            "cos: want shape [1, 1, 5, 16], got [1, 1, 6, 16]");
  EXPECT_EQ(ReasonForOutput(FB_FORWARD, 0, TestTensor(FB_F32, {2, 4, 5, 16})),
            "q_out: want shape [2, 3, 5, 16], got [2, 4, 5, 16]");
  EXPECT_EQ(ReasonForOutput(FB_FORWARD, 1, TestTensor()),
            "k_out: want it present, as k is, got it absent");
  EXPECT_EQ(ReasonForInput(FB_BACKWARD, 0, TestTensor(FB_F32, {2, 2, 5, 16})),
            "dq_out: want shape [2, 3, 5, 16], got [2, 2, 5, 16]");
  EXPECT_EQ(ReasonForOutput(FB_BACKWARD, 3, TestTensor(FB_F32, {8})),
            "dk_weight: want shape [16], got [8]");
}

TEST(QkNormRopeRejectTest, NamesWhatMustBeAbsent) {
  EXPECT_EQ(ReasonForInput(FB_BACKWARD, 1, TestTensor()), "dk: want it absent, as dk_out is");
  EXPECT_EQ(ReasonForInput(FB_BACKWARD, 3, TestTensor()), "dk_out: want it absent, as k is");
  EXPECT_EQ(ReasonForInput(FB_BACKWARD, 6, TestTensor()),
            "dq_weight: want it absent, as q_weight is");
  EXPECT_EQ(ReasonFor(FB_BACKWARD,
                      [](auto* call, auto*) {
                        call->inputs[0] = TestTensor();
                        call->outputs[0] = TestTensor();
                      }),
            "dq_weight: want it absent, as dq_out is");
}

TEST(QkNormRopeRejectTest, NamesTheTensorAndBothDTypes) {
  EXPECT_EQ(ReasonForInput(FB_FORWARD, 0, TestTensor(FB_F64, {2, 3, 5, 16})),
            "q: want f32, f16 or bf16, got f64");
  EXPECT_EQ(ReasonForInput(FB_FORWARD, 1, TestTensor(FB_F16, {2, 2, 5, 16})),
            "k: want f32, got f16");
  EXPECT_EQ(ReasonForInput(FB_FORWARD, 4, TestTensor(FB_F64, {16})),
            "q_weight: want f32, f16 or bf16, got f64");
  EXPECT_EQ(ReasonForInput(FB_FORWARD, 2, TestTensor(FB_F16, {1, 1, 5, 16})),
            "cos: want f32, got f16");
  const Case mixed = {.rope = {.dtype = FB_BF16}, .weight_dtype = FB_F32};
  EXPECT_EQ(ReasonForOutput(FB_FORWARD, 0, TestTensor(FB_BF16, {2, 3, 5, 16}), mixed),
            "q_out: want f32, got bf16");
  EXPECT_EQ(ReasonForInput(FB_BACKWARD, 0, TestTensor(FB_BF16, {2, 3, 5, 16}), mixed),
            "dq_out: want f32, got bf16");
  EXPECT_EQ(ReasonForInput(FB_FORWARD, 5, TestTensor(FB_BF16, {16}), mixed),
            "k_weight: want a result in f32, as q has it, got one in bf16");
  EXPECT_EQ(ReasonForOutput(FB_BACKWARD, 2, TestTensor(FB_BF16, {16}), mixed),
            "dq_weight: want f32, got bf16");
}

}  // namespace
}  // namespace fuseboard::qk_norm_rope
