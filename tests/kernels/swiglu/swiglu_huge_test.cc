// More than 2^31 elements in one matrix: only a GPU has the memory and the speed for it. All is
// zero but the last elements, which are compared with the same elements alone.

#include <gtest/gtest.h>

#include "tests/kernels/swiglu/swiglu_case.h"
#include "tests/testing/device_memory.h"

namespace fuseboard::swiglu {
namespace {

using testing::DeviceMemory;
using testing::TestTensor;

constexpr int64_t kTail = 4096;

// silu(gate) * up of `rows` x kTail elements, whose last row is not zero: that row's bytes, and
// those of the row before it.
std::pair<std::vector<uint8_t>, std::vector<uint8_t>> LastRows(int64_t rows, int64_t out_stride) {
  constexpr size_t kRowBytes = kTail * 2;
  TestTensor tail = TestTensor(FB_BF16, {kTail}).FillNormal(1, 2.0);
  DeviceMemory gate(FB_CUDA, static_cast<size_t>(rows) * kRowBytes);
  gate.Set(0);
  gate.CopyFrom(tail.View(tail.image().data(), FB_CPU).data, kRowBytes,
                static_cast<size_t>(rows - 1) * kRowBytes);
  const size_t row_step = static_cast<size_t>(out_stride) * 2;
  const DeviceMemory out(FB_CUDA, static_cast<size_t>(rows) * row_step);

  const FbTensor in = {gate.get(), {rows, kTail}, {kTail, 1}, 2, FB_BF16, FB_CUDA, 0};
  const FbTensor result = {out.get(), {rows, kTail}, {out_stride, 1}, 2, FB_BF16, FB_CUDA, 0};
  const FbTensor inputs[] = {in, in};
  const FbSwigluParams params = Case{.round_activation = 1}.params();
  FbCall call = {};
  call.struct_size = sizeof(FbCall);
  testing::DescribeDevice(FB_CUDA, &call);
  call.num_inputs = 2;
  call.num_outputs = 1;
  call.inputs = inputs;
  call.outputs = &result;
  call.params = &params;
  const FbEntry& entry = testing::OpenKernel("swiglu").entries[FB_FORWARD][FB_CUDA];
  EXPECT_EQ(entry.reject_reason(&call), nullptr);
  EXPECT_EQ(entry.launch(&call, nullptr), 0);
  testing::Synchronize(FB_CUDA);

  std::pair<std::vector<uint8_t>, std::vector<uint8_t>> rows_of_out = {
      std::vector<uint8_t>(kRowBytes), std::vector<uint8_t>(kRowBytes)};
  out.CopyTo(rows_of_out.first.data(), kRowBytes, static_cast<size_t>(rows - 1) * row_step);
  out.CopyTo(rows_of_out.second.data(), kRowBytes, static_cast<size_t>(rows - 2) * row_step);
  return rows_of_out;
}

TEST(GpuSwigluHugeTest, ElementsPastTwoToThe31AreLikeElementsAlone) {
  const auto alone = LastRows(2, kTail);
  // 2^31 + 4096 and 2^32 + 4096 elements, rows joined into one and apart.
  for (const int64_t rows : {524289, 1048577}) {
    for (const int64_t stride : {kTail, kTail + 8}) {
      EXPECT_EQ(LastRows(rows, stride), alone) << rows << " rows, stride " << stride;
    }
  }
}

}  // namespace
}  // namespace fuseboard::swiglu
