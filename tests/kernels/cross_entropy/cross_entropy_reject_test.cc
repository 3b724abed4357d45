// Every refusal, by its sentence.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/cross_entropy/cross_entropy_case.h"

namespace fuseboard::cross_entropy {
namespace {

using ::fuseboard::testing::KernelCall;
using ::fuseboard::testing::TestTensor;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string WhyNot(const KernelCall& call) { return testing::RejectReason(Kernel(), call); }

class CrossEntropyRejectTest : public ::testing::Test {
 protected:
  CrossEntropyRejectTest() : c_({4, 16, FB_BF16}, 1) {
    c_.WithScale(2);
    forward_ = c_.Forward();
    backward_ = c_.Backward(TestTensor(FB_F32, {4}));
  }

  // The sentence for this forward call with dlogits at an address of our choice.
  std::string WhyNotAt(int64_t bytes_from_logits, int64_t row_stride) {
    testing::RawCall raw;
    testing::FillRawCall(forward_, FB_CPU, &raw);
    raw.outputs[kDlogits].data = static_cast<char*>(raw.inputs[0].data) + bytes_from_logits;
    raw.outputs[kDlogits].stride[0] = row_stride;
    const char* why = Kernel().entries[FB_FORWARD][FB_CPU].reject_reason(&raw.call);
    return why == nullptr ? "" : why;
  }

  std::string WithParams(void (*change)(FbCrossEntropyParams*)) {
    FbCrossEntropyParams params = c_.params;
    change(&params);
    KernelCall call = forward_;
    call.params = &params;
    return WhyNot(call);
  }

  Case c_;
  KernelCall forward_;
  KernelCall backward_;
};

TEST_F(CrossEntropyRejectTest, WhatIsRightIsTaken) {
  EXPECT_EQ(WhyNotAt(-(1 << 16), 16), "");
  EXPECT_EQ(WhyNotAt(1 << 16, 16), "");
}

TEST_F(CrossEntropyRejectTest, NamesTheOptionAndItsValue) {
  EXPECT_EQ(WithParams([](auto* p) { p->label_smoothing = 1.5; }),
            "label_smoothing: want 0 to 1, got 1.5");
  EXPECT_EQ(WithParams([](auto* p) { p->label_smoothing = NAN; }),
            "label_smoothing: want 0 to 1, got nan");
  EXPECT_EQ(WithParams([](auto* p) { p->softcap = -1; }), "softcap: want 0 (none) or more, got -1");
  EXPECT_EQ(WithParams([](auto* p) { p->z_loss_scale = -0.5; }),
            "z_loss_scale: want 0 or more, got -0.5");
  EXPECT_EQ(WithParams([](auto* p) { p->logit_scale = 0; }),
            "logit_scale: want a finite number other than 0, got 0");
  EXPECT_EQ(WithParams([](auto* p) { p->z_loss_in_loss = 2; }),
            "z_loss_in_loss: want 0 or 1, got 2");
  EXPECT_THAT(WithParams([](auto* p) { p->struct_size = 8; }),
              StartsWith("params: want struct_size >= "));
}

TEST_F(CrossEntropyRejectTest, NamesTheTensorAndBothValues) {
  KernelCall call = forward_;
  call.inputs[0] = TestTensor(FB_F64, {4, 16});
  EXPECT_EQ(WhyNot(call), "logits: want f32, f16 or bf16, got f64");

  call = forward_;
  call.inputs[0] = TestTensor(FB_BF16, {4, 0});
  EXPECT_EQ(WhyNot(call), "logits: want 1 to 1073741824 columns, got 0");

  call = forward_;
  call.inputs[1] = TestTensor(FB_F32, {4});
  EXPECT_EQ(WhyNot(call), "target: want i64 or i32, got f32");

  call = forward_;
  call.inputs[1] = TestTensor(FB_I64, {5});
  EXPECT_EQ(WhyNot(call), "target: want shape [4], got [5]");

  call = forward_;
  call.inputs[2] = TestTensor(FB_F32, {15});
  EXPECT_EQ(WhyNot(call), "class_weight: want shape [16], got [15]");

  call = forward_;
  call.inputs[3] = TestTensor(FB_BF16, {4});
  EXPECT_EQ(WhyNot(call), "scale: want f32, got bf16");

  call = forward_;
  call.outputs[kArgmax] = TestTensor(FB_I32, {4});
  EXPECT_EQ(WhyNot(call), "argmax: want i64, got i32");

  call = forward_;
  call.outputs[kLse] = TestTensor(FB_F32, {4}, {.row_stride = 2});
  EXPECT_EQ(WhyNot(call), "lse: want stride 1, got 2");

  call = forward_;
  call.outputs[kLse] = TestTensor(FB_F64, {4});
  EXPECT_EQ(WhyNot(call), "lse: want f32, got f64");  // Beside bf16.
  call.inputs[0] = TestTensor(FB_F32, {4, 16});
  call.outputs[kDlogits] = TestTensor(FB_F32, {4, 16});
  EXPECT_EQ(WhyNot(call), "");

  call = forward_;
  call.outputs[kDlogits] = TestTensor(FB_F32, {4, 16});
  EXPECT_EQ(WhyNot(call), "dlogits: want bf16, got f32");

  call = forward_;
  call.outputs[kDlogits] = TestTensor(FB_BF16, {4, 16}, {.row_stride = 0});
  EXPECT_THAT(WhyNot(call), StartsWith("dlogits: want row stride >= 16"));

  call = forward_;
  call.outputs.pop_back();
  EXPECT_EQ(WhyNot(call), "call: want 4 inputs and 5 outputs, got 4 and 4");
}

TEST_F(CrossEntropyRejectTest, BackwardNeedsItsScaleAndLse) {
  KernelCall call = backward_;
  call.inputs[3] = TestTensor();
  EXPECT_EQ(WhyNot(call), "scale: want 1 dimensions, got -1");
  call = backward_;
  call.inputs[4] = TestTensor(FB_F32, {3});
  EXPECT_EQ(WhyNot(call), "lse: want shape [4], got [3]");
}

TEST_F(CrossEntropyRejectTest, ColumnsThatAreNotNeighbours) {
  testing::RawCall raw;
  testing::FillRawCall(forward_, FB_CPU, &raw);
  raw.inputs[0].stride[1] = 2;
  EXPECT_STREQ(Kernel().entries[FB_FORWARD][FB_CPU].reject_reason(&raw.call),
               "logits: want column stride 1, got 2");
}

TEST_F(CrossEntropyRejectTest, GradientsThatOverlapTheLogitsUnlessTheyAreTheLogits) {
  EXPECT_EQ(WhyNotAt(0, 16), "");                             // In place.
  EXPECT_THAT(WhyNotAt(2, 16), HasSubstr("got an overlap"));  // One element on.
  EXPECT_THAT(WhyNotAt(0, 20), HasSubstr("got an overlap"));  // Other rows.
  EXPECT_THAT(WhyNotAt(-32, 16), HasSubstr("got an overlap"));
  EXPECT_EQ(WhyNotAt(-4L * 32, 16), "");
  EXPECT_THAT(WhyNotAt(3 + (1 << 16), 16), StartsWith("dlogits: want memory aligned"));
}

TEST(CrossEntropyRejectInterleavedTest, HalvesOfTheSameRowsAreApart) {
  Case c({4, 16, FB_BF16}, 1, {.row_stride = 32});
  testing::RawCall raw;
  const KernelCall call = c.Forward();
  testing::FillRawCall(call, FB_CPU, &raw);
  FbTensor& dlogits = raw.outputs[kDlogits];
  dlogits.stride[0] = 32;
  const auto why = [&] { return Kernel().entries[FB_FORWARD][FB_CPU].reject_reason(&raw.call); };
  dlogits.data = static_cast<char*>(raw.inputs[0].data) + 16L * 2;
  EXPECT_EQ(why(), nullptr);
  dlogits.data = static_cast<char*>(raw.inputs[0].data) + 15L * 2;
  EXPECT_THAT(why(), HasSubstr("got an overlap"));
}

}  // namespace
}  // namespace fuseboard::cross_entropy
