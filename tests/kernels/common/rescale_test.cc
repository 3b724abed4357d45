// The `rescale` entry, as cross_entropy.so has it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/testing/device_memory.h"
#include "tests/testing/kernel_harness.h"
#include "tests/testing/test_tensor.h"

namespace fuseboard {
namespace {

using testing::DeviceMemory;
using ::testing::StartsWith;
using testing::TestTensor;

const FbEntry& Entry() { return testing::OpenKernel("cross_entropy").rescale[FB_CUDA]; }

struct RescaleCall {
  FbTensor factor;
  FbTensor gradient;
  FbCall call;

  RescaleCall(FbTensor factor_view, FbTensor gradient_view)
      : factor(factor_view), gradient(gradient_view), call{} {
    call.struct_size = sizeof(call);
    call.device_type = FB_CUDA;
    call.num_inputs = 1;
    call.num_outputs = 1;
    call.inputs = &factor;
    call.outputs = &gradient;
  }
};

#if defined(FB_HAVE_CUDA)

struct Case {
  int32_t dtype;
  int64_t size;
  int64_t offset;
  float factor;
  int32_t sm_count = 0;  // If not 0: as if the device were so small, and the size large to it.
};

// Sizes: none, one, no run of 16 bytes, an odd tail, whole runs, several tiles. Offsets but 0 are
// unaligned.
std::vector<Case> Cases() {
  constexpr float kThird = 1.0f / 3.0f;
  std::vector<Case> cases;
  for (const int32_t dtype : {FB_F32, FB_F16, FB_BF16}) {
    for (const int64_t size : {0, 1, 3, 1027, 4096, 3'000'000}) {
      for (const int64_t offset : {0, 1}) {
        for (const float factor : {1.0f, kThird, 0.0f, std::numeric_limits<float>::quiet_NaN()}) {
          cases.push_back({dtype, size, offset, factor});
        }
      }
      for (const int64_t offset : {2, 3, 7}) cases.push_back({dtype, size, offset, kThird});
    }
    // 1 multiprocessor draws the tiles of all dtypes, 3 those of f32, 6 none: eight rounds there.
    for (const int32_t sm_count : {1, 3, 6}) {
      for (const int64_t offset : {0, 3}) {
        for (const float factor : {1.0f, kThird}) {
          cases.push_back({dtype, 3'000'000, offset, factor, sm_count});
        }
      }
    }
  }
  return cases;
}

TEST(GpuRescaleTest, MultipliesInFloatWithOneRoundingAndTouchesNothingElse) {
  for (const Case& c : Cases()) {
    TestTensor gradient(c.dtype, {c.size}, {.row_stride = 1, .offset = c.offset});
    gradient.Poison(0x5a);
    gradient.FillNormal(17);
    const TestTensor before = gradient;
    DeviceMemory memory(FB_CUDA, gradient.image().size());
    memory.CopyFrom(gradient.image().data(), gradient.image().size());
    DeviceMemory factor(FB_CUDA, sizeof(float));
    factor.CopyFrom(&c.factor, sizeof(float));
    RescaleCall call({factor.get(), {1}, {1}, 1, FB_F32, FB_CUDA, 0},
                     gradient.View(memory.get(), FB_CUDA));
    testing::DescribeDevice(FB_CUDA, &call.call);
    if (c.sm_count != 0) call.call.sm_count = c.sm_count;
    ASSERT_EQ(Entry().reject_reason(&call.call), nullptr);
    DeviceMemory workspace(FB_CUDA, Entry().workspace_bytes(&call.call));
    workspace.Set(0x5a);
    ASSERT_EQ(Entry().launch(&call.call, workspace.get()), 0);
    testing::Synchronize(FB_CUDA);
    memory.CopyTo(gradient.image().data(), gradient.image().size());
    int64_t wrong = 0;
    for (int64_t i = 0; i < c.size; ++i) {
      const auto product = static_cast<double>(static_cast<float>(before.At(0, i)) * c.factor);
      const double want = testing::RoundToDType(c.dtype, product);
      const double got = gradient.At(0, i);
      wrong += std::isnan(want) ? !std::isnan(got) : got != want;
    }
    EXPECT_EQ(wrong, 0) << "dtype " << c.dtype << " size " << c.size << " offset " << c.offset
                        << " factor " << c.factor << " multiprocessors " << c.sm_count;
    EXPECT_EQ(gradient.CountTouchedGuards(0x5a), 0);
  }
}

#endif

TEST(RescaleTest, RefusesWhatItCannotScaleWithBothValues) {
  if (Entry().launch == nullptr) GTEST_SKIP() << "a build without CUDA";
  alignas(16) uint8_t memory[64] = {};
  const FbTensor factor = {memory, {1}, {1}, 1, FB_F32, FB_CUDA, 0};
  const FbTensor gradient = {memory, {4}, {1}, 1, FB_BF16, FB_CUDA, 0};
  const auto reason = [](const FbTensor& f, const FbTensor& g) {
    const RescaleCall call(f, g);
    const char* why = Entry().reject_reason(&call.call);
    return std::string(why != nullptr ? why : "");
  };
  EXPECT_EQ(reason(factor, gradient), "");
  FbTensor wrong = factor;
  wrong.dtype = FB_F64;
  EXPECT_EQ(reason(wrong, gradient), "factor: want f32, got f64");
  wrong = factor;
  wrong.shape[0] = 2;
  EXPECT_EQ(reason(wrong, gradient), "factor: want shape [1], got [2]");
  wrong = gradient;
  wrong.stride[0] = 2;
  EXPECT_EQ(reason(factor, wrong), "gradient: want stride 1, got 2");
  wrong = gradient;
  wrong.dtype = FB_F64;
  EXPECT_THAT(reason(factor, wrong), StartsWith("gradient: want f32, f16 or bf16, got f64"));
  wrong = gradient;
  wrong.device_index = 1;
  EXPECT_EQ(reason(factor, wrong), "gradient: want device 1:0, got 1:1");
}

}  // namespace
}  // namespace fuseboard
