// More than 2^31 elements: only a GPU has the memory and the speed for it.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/abi/group_norm.h"
#include "tests/testing/device_memory.h"
#include "tests/testing/kernel_harness.h"

namespace fuseboard::group_norm {
namespace {

using testing::DeviceMemory;
using testing::TestTensor;

constexpr FbTensor kAbsent = {nullptr, {}, {}, -1, FB_F32, FB_CUDA, 0};

FbTensor Flat(const DeviceMemory& memory, int64_t size, int32_t dtype) {
  return {memory.get(), {size}, {1}, 1, dtype, FB_CUDA, 0};
}

// [examples, channels, elements] in bf16, zeros but for the last `normal` elements.
class LastOnly {
 public:
  LastOnly(std::vector<int64_t> shape, int64_t normal, uint32_t seed)
      : shape_(std::move(shape)), memory_(FB_CUDA, static_cast<size_t>(elements()) * 2) {
    const TestTensor last = TestTensor(FB_BF16, {normal}).FillNormal(seed, 2.0);
    std::vector<uint8_t> image = last.image();
    memory_.Set(0);
    memory_.CopyFrom(last.View(image.data(), FB_CPU).data, static_cast<size_t>(normal) * 2,
                     static_cast<size_t>(elements() - normal) * 2);
  }

  int64_t elements() const { return shape_[0] * shape_[1] * shape_[2]; }
  FbTensor View() const {
    const int64_t example = shape_[1] * shape_[2];
    return {memory_.get(),
            {shape_[0], shape_[1], shape_[2]},
            {example, shape_[2], 1},
            3,
            FB_BF16,
            FB_CUDA,
            0};
  }
  std::vector<uint16_t> Last(int64_t count) const {
    std::vector<uint16_t> bits(static_cast<size_t>(count));
    memory_.CopyTo(bits.data(), bits.size() * 2, static_cast<size_t>(elements() - count) * 2);
    return bits;
  }

 private:
  std::vector<int64_t> shape_;
  DeviceMemory memory_;
};

void Launch(FbPhase phase, const FbGroupNormParams& params, const std::vector<FbTensor>& inputs,
            const std::vector<FbTensor>& outputs) {
  FbCall call = {};
  call.struct_size = sizeof(FbCall);
  testing::DescribeDevice(FB_CUDA, &call);
  call.num_inputs = static_cast<int32_t>(inputs.size());
  call.num_outputs = static_cast<int32_t>(outputs.size());
  call.inputs = inputs.data();
  call.outputs = outputs.data();
  call.params = &params;
  const FbEntry& entry = testing::OpenKernel("group_norm").entries[phase][FB_CUDA];
  ASSERT_EQ(entry.reject_reason(&call), nullptr);
  const DeviceMemory workspace(FB_CUDA, entry.workspace_bytes(&call) + 1);
  ASSERT_EQ(entry.launch(&call, workspace.get()), 0);
  testing::Synchronize(FB_CUDA);
}

// The bits of y and dx of the last two examples, of dweight and of dbias. All examples but the last
// are zeros.
std::vector<std::vector<uint16_t>> LastExamples(int64_t examples, int64_t elements) {
  constexpr int64_t kChannels = 8;
  constexpr int64_t kGroups = 2;
  const FbGroupNormParams params = {sizeof(FbGroupNormParams), kGroups, 1e-5};
  const std::vector<int64_t> shape = {examples, kChannels, elements};
  const int64_t normal = kChannels * elements;
  const LastOnly x(shape, normal, 1);
  const LastOnly weight({1, 1, kChannels}, kChannels, 4);
  const DeviceMemory mean(FB_CUDA, static_cast<size_t>(examples * kGroups) * 4);
  const DeviceMemory rstd(FB_CUDA, static_cast<size_t>(examples * kGroups) * 4);
  const FbTensor statistics[] = {Flat(mean, examples * kGroups, FB_F32),
                                 Flat(rstd, examples * kGroups, FB_F32)};
  const auto vector = [](const LastOnly& tensor) {
    return FbTensor{tensor.View().data, {kChannels}, {1}, 1, FB_BF16, FB_CUDA, 0};
  };
  std::vector<std::vector<uint16_t>> result;
  {
    const LastOnly y(shape, 8, 3);
    Launch(FB_FORWARD, params, {x.View(), vector(weight), kAbsent},
           {y.View(), statistics[0], statistics[1]});
    result.push_back(y.Last(2 * normal));
  }
  const LastOnly dy(shape, normal, 2);
  const LastOnly dx(shape, 8, 3);
  const LastOnly dweight({1, 1, kChannels}, kChannels, 5);
  const LastOnly dbias({1, 1, kChannels}, kChannels, 5);
  Launch(FB_BACKWARD, params, {dy.View(), x.View(), vector(weight), statistics[0], statistics[1]},
         {dx.View(), vector(dweight), vector(dbias)});
  result.push_back(dx.Last(2 * normal));
  result.push_back(dweight.Last(kChannels));
  result.push_back(dbias.Last(kChannels));
  return result;
}

TEST(GpuGroupNormHugeTest, ExamplesPastTwoToThe31ElementsAreLikeExamplesAlone) {
  // Of blocks that hold a group, and of groups that are split.
  for (const int64_t elements : {512, 511}) {
    const auto alone = LastExamples(2, elements);
    // About 2^31 elements; past 2^32.
    for (const int64_t examples : {524287, 524289, 1050625}) {
      EXPECT_TRUE(LastExamples(examples, elements) == alone) << examples << " x " << elements;
    }
  }
}

TEST(GpuGroupNormHugeTest, AGroupMayHaveMoreThanTwoToThe31Elements) {
  const FbGroupNormParams params = {sizeof(FbGroupNormParams), 1, 1e-5};
  const std::vector<int64_t> shape = {1, 2, (int64_t{1} << 30) + 1};
  const LastOnly x(shape, 1, 1);
  const LastOnly y(shape, 8, 3);
  Launch(FB_FORWARD, params, {x.View(), kAbsent, kAbsent}, {y.View(), kAbsent, kAbsent});
  const auto value_of = [](const LastOnly& tensor) {
    const uint32_t bits = uint32_t{tensor.Last(1)[0]} << 16;
    float value = 0.0f;
    std::memcpy(&value, &bits, sizeof(value));
    return static_cast<double>(value);
  };
  const double last = value_of(x);
  const double count = std::pow(2.0, 31) + 2.0;
  const double want = last / std::sqrt(last * last / count + 1e-5);
  EXPECT_NEAR(value_of(y), want, std::abs(want) * 4e-3);
  // The others are the mean, of which 0 is a little off.
  const uint32_t before = uint32_t{y.Last(2)[0]} << 16;
  float value = 0.0f;
  std::memcpy(&value, &before, sizeof(value));
  EXPECT_NEAR(value, -want / count, std::abs(want / count) * 1e-2);
}

}  // namespace
}  // namespace fuseboard::group_norm
