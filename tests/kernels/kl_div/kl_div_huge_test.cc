// More than 2^31 elements in one matrix: only a GPU has the memory and the speed for it. All rows
// are alike but the last, which is compared with the same row alone. jsd and tvd share the code.

#include <gtest/gtest.h>

#include "kernels/abi/kl_div.h"
#include "tests/testing/device_memory.h"
#include "tests/testing/kernel_harness.h"

namespace fuseboard::kl_div {
namespace {

using testing::DeviceMemory;
using testing::TestTensor;

constexpr int64_t kCols = 4096;
constexpr size_t kRowBytes = kCols * 2;

struct Last {
  std::vector<uint8_t> gradient[2];  // Of the last two rows.
  float loss[2];

  friend bool operator==(const Last&, const Last&) = default;
};

Last LastRows(int64_t rows) {
  const size_t last = static_cast<size_t>(rows - 1) * kRowBytes;
  TestTensor row = TestTensor(FB_BF16, {kCols}).FillNormal(1, 2.0, -9.0);
  DeviceMemory input(FB_CUDA, rows * kRowBytes);
  input.Set(0);
  input.CopyFrom(row.View(row.image().data(), FB_CPU).data, kRowBytes, last);
  row.FillNormal(2, 2.0, -9.0);
  DeviceMemory target(FB_CUDA, rows * kRowBytes);
  target.Set(0);
  target.CopyFrom(row.View(row.image().data(), FB_CPU).data, kRowBytes, last);
  const DeviceMemory dinput(FB_CUDA, rows * kRowBytes);
  const DeviceMemory loss(FB_CUDA, rows * sizeof(float));

  const auto matrix = [&](const DeviceMemory& memory) -> FbTensor {
    return {memory.get(), {rows, kCols}, {kCols, 1}, 2, FB_BF16, FB_CUDA, 0};
  };
  FbTensor absent = {};
  absent.ndim = -1;
  const FbTensor inputs[] = {matrix(input), matrix(target), absent, absent};
  const FbTensor outputs[] = {
      {loss.get(), {rows}, {1}, 1, FB_F32, FB_CUDA, 0}, absent, matrix(dinput)};
  const FbKlDivParams params = {sizeof(FbKlDivParams), 1, 0.0, 0};
  FbCall call = {};
  call.struct_size = sizeof(FbCall);
  testing::DescribeDevice(FB_CUDA, &call);
  call.num_inputs = 4;
  call.num_outputs = 3;
  call.inputs = inputs;
  call.outputs = outputs;
  call.params = &params;
  const FbEntry& entry = testing::OpenKernel("kl_div").entries[FB_FORWARD][FB_CUDA];
  EXPECT_EQ(entry.reject_reason(&call), nullptr);
  EXPECT_EQ(entry.launch(&call, nullptr), 0);
  testing::Synchronize(FB_CUDA);

  Last result = {{std::vector<uint8_t>(kRowBytes), std::vector<uint8_t>(kRowBytes)}, {}};
  dinput.CopyTo(result.gradient[0].data(), kRowBytes, last - kRowBytes);
  dinput.CopyTo(result.gradient[1].data(), kRowBytes, last);
  loss.CopyTo(reinterpret_cast<uint8_t*>(result.loss), sizeof(result.loss),
              static_cast<size_t>(rows - 2) * sizeof(float));
  return result;
}

TEST(GpuKlDivHugeTest, RowsPastTwoToThe31ElementsAreLikeRowsAlone) {
  const Last alone = LastRows(2);
  // 2^31 - 4096, 2^31 and 2^31 + 4096 elements; 2^32 + 4096.
  for (const int64_t rows : {524287, 524288, 524289, 1048577}) {
    EXPECT_TRUE(LastRows(rows) == alone) << rows << " rows";
  }
}

}  // namespace
}  // namespace fuseboard::kl_div
