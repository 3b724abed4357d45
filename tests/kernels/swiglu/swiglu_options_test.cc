// The options of FbSwigluParams against double, and calls whose gate and up alternate.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "tests/kernels/swiglu/swiglu_case.h"
#include "tests/testing/device_memory.h"

namespace fuseboard::swiglu {
namespace {

using testing::DeviceMemory;
using testing::ExpectClose;
using testing::KernelCall;
using testing::OpenKernel;
using testing::TestTensor;

constexpr int32_t kDTypes[] = {FB_F32, FB_F16, FB_BF16};

// Each option alone, and those of GPT-OSS and DeepSeek V4. Limits that many values are beyond.
std::vector<Case> OptionCases() {
  std::vector<Case> cases;
  for (const int32_t dtype : kDTypes) {
    for (const int32_t round : {0, 1}) {
      const Case plain = {.rows = 3, .cols = 1032, .dtype = dtype, .round_activation = round};
      for (const auto& set :
           {+[](Case* c) { c->gate_multiplier = 0.375; },
            +[](Case* c) { c->out_multiplier = -2.5; }, +[](Case* c) { c->alpha = 1.702; },
            +[](Case* c) { c->limit = 1.5; }, +[](Case* c) { c->up_offset = 1.0; },
            +[](Case* c) {
              c->alpha = 1.702;
              c->limit = 2.0;
              c->up_offset = 1.0;
            },
            +[](Case* c) {
              c->gate_multiplier = -0.5;
              c->out_multiplier = 0.25;
              c->limit = 0.75;
              c->cols = 37;
            }}) {
        cases.push_back(plain);
        set(&cases.back());
      }
    }
  }
  return cases;
}

class SwigluOptionsTest : public ::testing::TestWithParam<int> {
 protected:
  // [rows, cols] of every second column of a packed tensor in `memory`.
  FbTensor Half(const TestTensor& packed, const DeviceMemory& memory, int64_t first) const {
    FbTensor view = packed.View(memory.get(), GetParam());
    view.data = static_cast<char*>(view.data) + first * testing::DTypeBytes(packed.dtype());
    view.shape[1] /= 2;
    view.stride[1] = 2;
    return view;
  }

  // One alternating call over tensors [rows, 2 cols], as `call` is over separate ones; the output
  // is out or the packed dgate and dup.
  TestTensor RunAlternating(const KernelCall& call, const Case& c) const {
    const bool forward = call.phase == FB_FORWARD;
    const TestTensor& gate = call.inputs[forward ? 0 : 1];
    const TestTensor& up = call.inputs[forward ? 1 : 2];
    const TestTensor packed =
        TestTensor(c.dtype, {c.rows, 2 * c.cols}, c.in_layout).Fill([&](auto r, auto i) {
          return (i % 2 == 0 ? gate : up).At(r, i / 2);
        });
    TestTensor out = forward ? c.Out() : TestTensor(c.dtype, {c.rows, 2 * c.cols}, c.out_layout);
    out.Poison(0xff);
    DeviceMemory in_memory(GetParam(), packed.image().size());
    DeviceMemory dout_memory(GetParam(), call.inputs[0].image().size());
    DeviceMemory out_memory(GetParam(), out.image().size());
    Copy(packed, &in_memory);
    Copy(call.inputs[0], &dout_memory);
    Copy(out, &out_memory);

    testing::RawCall raw;
    testing::FillRawCall(call, GetParam(), &raw);
    testing::DescribeDevice(GetParam(), &raw.call);
    raw.inputs = {Half(packed, in_memory, 0), Half(packed, in_memory, 1)};
    raw.outputs = {out.View(out_memory.get(), GetParam())};
    if (!forward) {
      raw.inputs.insert(raw.inputs.begin(), call.inputs[0].View(dout_memory.get(), GetParam()));
      raw.outputs = {Half(out, out_memory, 0), Half(out, out_memory, 1)};
    }
    raw.call.inputs = raw.inputs.data();
    raw.call.outputs = raw.outputs.data();
    const FbEntry& entry = OpenKernel("swiglu").entries[call.phase][GetParam()];
    EXPECT_EQ(entry.reject_reason(&raw.call), nullptr) << entry.reject_reason(&raw.call);
    EXPECT_EQ(entry.launch(&raw.call, nullptr), 0);
    testing::Synchronize(GetParam());
    out_memory.CopyTo(out.image().data(), out.image().size());
    EXPECT_EQ(out.CountTouchedGuards(0xff), 0);
    return out;
  }

  void ExpectAlternating(const Case& c) const {
    SCOPED_TRACE(c.Name());
    const FbSwigluParams params = c.params();
    Case separate = c;
    separate.in_layout = separate.out_layout = {};
    const KernelCall forward = ForwardCall(separate, &params);
    const KernelCall backward = BackwardCall(separate, &params);
    ExpectClose(RunAlternating(forward, c), [&](auto r, auto i) {
      return Out(c, forward.inputs[0].At(r, i), forward.inputs[1].At(r, i));
    });
    const auto& in = backward.inputs;
    ExpectClose(
        RunAlternating(backward, c),
        [&](auto r, auto i) {
          const double dout = in[0].At(r, i / 2);
          const double gate = in[1].At(r, i / 2);
          const double up = in[2].At(r, i / 2);
          return i % 2 == 0 ? DGate(c, dout, gate, up) : DUp(c, dout, gate, up);
        },
        0.05);
  }

 private:
  static void Copy(const TestTensor& from, DeviceMemory* to) {
    if (!from.image().empty()) to->CopyFrom(from.image().data(), from.image().size());
  }
};

TEST_P(SwigluOptionsTest, EachOptionAgreesWithDouble) {
  for (const Case& c : OptionCases()) {
    SCOPED_TRACE(c.Name());
    const FbSwigluParams params = c.params();
    KernelCall forward = ForwardCall(c, &params);
    KernelCall backward = BackwardCall(c, &params);
    testing::Run(OpenKernel("swiglu"), GetParam(), &forward);
    testing::Run(OpenKernel("swiglu"), GetParam(), &backward);
    ExpectClose(forward.outputs[0], [&](auto r, auto i) {
      return Out(c, forward.inputs[0].At(r, i), forward.inputs[1].At(r, i));
    });
    const auto& in = backward.inputs;
    ExpectClose(
        backward.outputs[0],
        [&](auto r, auto i) { return DGate(c, in[0].At(r, i), in[1].At(r, i), in[2].At(r, i)); },
        0.05);
    ExpectClose(backward.outputs[1], [&](auto r, auto i) {
      return DUp(c, in[0].At(r, i), in[1].At(r, i), in[2].At(r, i));
    });
  }
}

TEST_P(SwigluOptionsTest, AStructThatEndsEarlyHasTheDefaults) {
  const Case c = {.dtype = FB_BF16};
  const FbSwigluParams plain = c.params();
  // What lies behind the end must not be looked at.
  const FbSwigluParams first = {8, 0, 9.0, 9.0, 9.0, 9.0, 9.0};
  const FbSwigluParams second = {offsetof(FbSwigluParams, alpha) + 4, 0, 1.0, 1.0, 9.0, 9.0, 9.0};
  KernelCall want = ForwardCall(c, &plain);
  testing::Run(OpenKernel("swiglu"), GetParam(), &want);
  for (const FbSwigluParams* params : {&first, &second}) {
    KernelCall got = ForwardCall(c, params);
    testing::Run(OpenKernel("swiglu"), GetParam(), &got);
    EXPECT_EQ(got.outputs[0].image(), want.outputs[0].image());
  }
}

TEST_P(SwigluOptionsTest, GradientPassesABoundButNoNaN) {
  for (const int32_t dtype : kDTypes) {
    for (const double limit : {2.0, 0.0}) {
      const Case c = {.rows = 1, .cols = 8, .dtype = dtype, .limit = limit, .up_offset = 1.0};
      const FbSwigluParams params = c.params();
      KernelCall call = BackwardCall(c, &params);
      const double nan = std::nan("");
      const double gate[] = {nan, 2.0, 2.5, -9.0, 1.0, 1.0, 1.0, 1.0};
      const double up[] = {1.0, 1.0, 1.0, 1.0, nan, 2.0, -2.0, -2.5};
      call.inputs[0].Fill([](auto, auto) { return 1.0; });
      call.inputs[1].Fill([&](auto, auto i) { return gate[i]; });
      call.inputs[2].Fill([&](auto, auto i) { return up[i]; });
      testing::Run(OpenKernel("swiglu"), GetParam(), &call);
      const TestTensor& dgate = call.outputs[0];
      const TestTensor& dup = call.outputs[1];
      EXPECT_NE(dgate.At(0, 1), 0.0);
      EXPECT_NE(dgate.At(0, 3), 0.0);
      EXPECT_TRUE(std::isnan(dup.At(0, 0)));
      EXPECT_TRUE(std::isnan(dgate.At(0, 4)));
      EXPECT_NE(dup.At(0, 5), 0.0);
      EXPECT_NE(dup.At(0, 6), 0.0);
      if (limit == 0.0) {
        EXPECT_TRUE(std::isnan(dgate.At(0, 0)));
        EXPECT_NE(dgate.At(0, 2), 0.0);
        EXPECT_NE(dup.At(0, 4), 0.0);
        EXPECT_NE(dup.At(0, 7), 0.0);
      } else {
        EXPECT_EQ(dgate.At(0, 0), 0.0);
        EXPECT_EQ(dgate.At(0, 2), 0.0);
        EXPECT_EQ(dup.At(0, 4), 0.0);
        EXPECT_EQ(dup.At(0, 7), 0.0);
      }
    }
  }
}

TEST_P(SwigluOptionsTest, NaNAndInfinitiesGoThroughTheLimits) {
  const Case c = {.rows = 1, .cols = 8, .alpha = 1.702, .limit = 7.0, .up_offset = 1.0};
  const FbSwigluParams params = c.params();
  KernelCall call = ForwardCall(c, &params);
  const double gate[] = {std::nan(""), 1.0, HUGE_VAL, -HUGE_VAL, 1.0, 1.0, 9.0, -9.0};
  const double up[] = {1.0, std::nan(""), 1.0, 1.0, HUGE_VAL, -HUGE_VAL, 9.0, -9.0};
  call.inputs[0].Fill([&](auto, auto i) { return gate[i]; });
  call.inputs[1].Fill([&](auto, auto i) { return up[i]; });
  testing::Run(OpenKernel("swiglu"), GetParam(), &call);
  for (const int64_t i : {0, 1, 3}) EXPECT_TRUE(std::isnan(call.outputs[0].At(0, i))) << i;
  for (const int64_t i : {2, 4, 5, 6, 7}) {
    EXPECT_NEAR(call.outputs[0].At(0, i), Out(c, gate[i], up[i]), 1e-4) << i;
  }
}

// Whole runs and none; rows joined and apart, unaligned; one column, where nothing alternates.
TEST_P(SwigluOptionsTest, GateAndUpMayAlternate) {
  for (const int32_t dtype : kDTypes) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1},
                                     {5, 1},
                                     {1, 2},
                                     {5, 7},
                                     {4, 8},
                                     {3, 1025},
                                     {2, 2880},
                                     {0, 16}}) {
      for (const bool gpt_oss : {false, true}) {
        Case c = {.rows = rows, .cols = cols, .dtype = dtype, .round_activation = 1};
        if (gpt_oss) {
          c.alpha = 1.702;
          c.limit = 3.0;
          c.up_offset = 1.0;
        }
        ExpectAlternating(c);
      }
    }
    for (const int64_t offset : {0, 1, 2, 8}) {
      const int64_t row_stride = offset == 8 ? 2 * 64 + 8 : 2 * 64 + 3;
      ExpectAlternating({.rows = 6,
                         .cols = 64,
                         .dtype = dtype,
                         .in_layout = {.row_stride = row_stride, .offset = offset},
                         .out_layout = {.row_stride = row_stride + 16, .offset = offset}});
    }
  }
}

FB_INSTANTIATE_PER_DEVICE(SwigluOptionsTest);

}  // namespace
}  // namespace fuseboard::swiglu
