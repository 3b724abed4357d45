// More than 2^31 and 2^32 elements in q: only a GPU has the memory and the speed for it. All is
// zero but the last position, which is compared with the same position alone.

#include <gtest/gtest.h>

#include <utility>

#include "kernels/abi/qk_norm_rope.h"
#include "tests/testing/device_memory.h"
#include "tests/testing/kernel_harness.h"

namespace fuseboard::qk_norm_rope {
namespace {

using testing::DeviceMemory;
using testing::TestTensor;

constexpr int64_t kHeads = 32;
constexpr int64_t kDim = 128;
constexpr size_t kRowBytes = kHeads * kDim * 2;

FbTensor HeadsAt(const DeviceMemory& memory, int64_t positions) {
  return {memory.get(),
          {1, kHeads, positions, kDim},
          {0, kDim, kHeads * kDim, 1},
          4,
          FB_BF16,
          FB_CUDA,
          0};
}

void Launch(FbPhase phase, const std::vector<FbTensor>& inputs,
            const std::vector<FbTensor>& outputs, bool all_heads) {
  FbQkNormRopeParams params = {};
  params.struct_size = sizeof(params);
  params.eps = 1e-6;
  params.all_heads = all_heads ? 1 : 0;
  params.rope.struct_size = sizeof(params.rope);
  params.rope.rotary_dim = kDim;
  FbCall call = {};
  call.struct_size = sizeof(FbCall);
  testing::DescribeDevice(FB_CUDA, &call);
  call.num_inputs = static_cast<int32_t>(inputs.size());
  call.num_outputs = static_cast<int32_t>(outputs.size());
  call.inputs = inputs.data();
  call.outputs = outputs.data();
  call.params = &params;
  const FbEntry& entry = testing::OpenKernel("qk_norm_rope").entries[phase][FB_CUDA];
  ASSERT_EQ(entry.reject_reason(&call), nullptr);
  const DeviceMemory workspace(FB_CUDA, entry.workspace_bytes(&call));
  ASSERT_EQ(entry.launch(&call, workspace.get()), 0);
  testing::Synchronize(FB_CUDA);
}

struct Results {
  std::vector<uint8_t> last[2];  // Of y and dx.
  std::vector<uint8_t> before_last[2];
  std::vector<float> dweight;

  friend bool operator==(const Results&, const Results&) = default;
};

// The table has one row; q is its own upstream gradient.
Results RunLast(int64_t positions, bool all_heads) {
  TestTensor tail = TestTensor(FB_BF16, {kHeads * kDim}).FillNormal(1);
  TestTensor table = TestTensor(FB_F32, {kDim}).FillNormal(2);
  const size_t last = static_cast<size_t>(positions - 1) * kRowBytes;
  DeviceMemory x(FB_CUDA, last + kRowBytes);
  x.Set(0);
  x.CopyFrom(tail.View(tail.image().data(), FB_CPU).data, kRowBytes, last);
  const DeviceMemory y(FB_CUDA, last + kRowBytes);
  DeviceMemory factors(FB_CUDA, kDim * sizeof(float));
  factors.CopyFrom(table.View(table.image().data(), FB_CPU).data, kDim * sizeof(float));
  const int64_t features = all_heads ? kHeads * kDim : kDim;
  DeviceMemory weight(FB_CUDA, static_cast<size_t>(features) * 2);
  weight.Set(0x3f);  // bf16 0.746: any weight but zero.
  const DeviceMemory dweight(FB_CUDA, static_cast<size_t>(features) * 2);

  FbTensor absent = {};
  absent.ndim = -1;
  const FbTensor factor = {
      factors.get(), {1, 1, positions, kDim}, {0, 0, 0, 1}, 4, FB_F32, FB_CUDA, 0};
  const auto vector = [&](const DeviceMemory& memory) -> FbTensor {
    return {memory.get(), {features}, {1}, 1, FB_BF16, FB_CUDA, 0};
  };
  const FbTensor q = HeadsAt(x, positions);
  const FbTensor out = HeadsAt(y, positions);
  Results results;
  for (const FbPhase phase : {FB_FORWARD, FB_BACKWARD}) {
    if (phase == FB_FORWARD) {
      Launch(phase, {q, absent, factor, factor, vector(weight), absent}, {out, absent}, all_heads);
    } else {
      Launch(phase, {q, absent, q, absent, factor, factor, vector(weight), absent},
             {out, absent, vector(dweight), absent}, all_heads);
    }
    results.last[phase].resize(kRowBytes);
    results.before_last[phase].resize(kRowBytes);
    y.CopyTo(results.last[phase].data(), kRowBytes, last);
    y.CopyTo(results.before_last[phase].data(), kRowBytes, last - kRowBytes);
  }
  std::vector<uint8_t> bytes(static_cast<size_t>(features) * 2);
  dweight.CopyTo(bytes.data(), bytes.size(), 0);
  for (size_t i = 0; i < bytes.size(); i += 2) {
    const uint32_t bits = static_cast<uint32_t>(bytes[i] | bytes[i + 1] << 8) << 16;
    results.dweight.push_back(__builtin_bit_cast(float, bits));
  }
  return results;
}

TEST(GpuQkNormRopeHugeTest, ElementsPastTwoToThe31AreLikeElementsAlone) {
  for (const bool all_heads : {false, true}) {
    const Results alone = RunLast(2, all_heads);
    // 2^31 + 4096 and 2^32 + 4096 elements.
    for (const int64_t positions : {524289, 1048577}) {
      EXPECT_TRUE(RunLast(positions, all_heads) == alone)
          << positions << " positions, all heads " << all_heads;
    }
  }
}

}  // namespace
}  // namespace fuseboard::qk_norm_rope
