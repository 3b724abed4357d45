// More than 2^31 and 2^32 elements in q: only a GPU has the memory and the speed for it. All is
// zero but the last positions, which are compared with the same positions alone.

#include <gtest/gtest.h>

#include <utility>

#include "kernels/abi/rope.h"
#include "tests/testing/device_memory.h"
#include "tests/testing/kernel_harness.h"

namespace fuseboard::rope {
namespace {

using testing::DeviceMemory;
using testing::TestTensor;

constexpr int64_t kHeads = 32;
constexpr int64_t kDim = 128;
constexpr size_t kRowBytes = kHeads * kDim * 2;

// The rotated last position of `positions`, and the one before it. The table has one row.
std::pair<std::vector<uint8_t>, std::vector<uint8_t>> LastPositions(int64_t positions) {
  TestTensor tail = TestTensor(FB_BF16, {kHeads * kDim}).FillNormal(1);
  TestTensor table = TestTensor(FB_F32, {kDim}).FillNormal(2);
  const size_t last = static_cast<size_t>(positions - 1) * kRowBytes;
  DeviceMemory x(FB_CUDA, last + kRowBytes);
  x.Set(0);
  x.CopyFrom(tail.View(tail.image().data(), FB_CPU).data, kRowBytes, last);
  DeviceMemory y(FB_CUDA, last + kRowBytes);
  DeviceMemory factors(FB_CUDA, kDim * sizeof(float));
  factors.CopyFrom(table.View(table.image().data(), FB_CPU).data, kDim * sizeof(float));

  const auto heads = [&](const DeviceMemory& memory) -> FbTensor {
    return {memory.get(),
            {1, kHeads, positions, kDim},
            {0, kDim, kHeads * kDim, 1},
            4,
            FB_BF16,
            FB_CUDA,
            0};
  };
  const FbTensor factor = {
      factors.get(), {1, 1, positions, kDim}, {0, 0, 0, 1}, 4, FB_F32, FB_CUDA, 0};
  FbTensor absent = {};
  absent.ndim = -1;
  const FbTensor inputs[] = {heads(x), absent, factor, factor};
  const FbTensor outputs[] = {heads(y), absent};
  FbRopeParams params = {};
  params.struct_size = sizeof(params);
  params.rotary_dim = kDim;
  FbCall call = {};
  call.struct_size = sizeof(FbCall);
  testing::DescribeDevice(FB_CUDA, &call);
  call.num_inputs = 4;
  call.num_outputs = 2;
  call.inputs = inputs;
  call.outputs = outputs;
  call.params = &params;
  const FbEntry& entry = testing::OpenKernel("rope").entries[FB_FORWARD][FB_CUDA];
  EXPECT_EQ(entry.reject_reason(&call), nullptr);
  EXPECT_EQ(entry.launch(&call, nullptr), 0);
  testing::Synchronize(FB_CUDA);

  std::pair<std::vector<uint8_t>, std::vector<uint8_t>> rows = {std::vector<uint8_t>(kRowBytes),
                                                                std::vector<uint8_t>(kRowBytes)};
  y.CopyTo(rows.first.data(), kRowBytes, last);
  y.CopyTo(rows.second.data(), kRowBytes, last - kRowBytes);
  return rows;
}

TEST(GpuRopeHugeTest, ElementsPastTwoToThe31AreLikeElementsAlone) {
  const auto alone = LastPositions(2);
  // 2^31 + 4096 and 2^32 + 4096 elements.
  for (const int64_t positions : {524289, 1048577}) {
    EXPECT_EQ(LastPositions(positions), alone) << positions << " positions";
  }
}

}  // namespace
}  // namespace fuseboard::rope
