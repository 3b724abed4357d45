// More than 2^31 elements in one matrix: only a GPU has the memory and the speed for it. All rows
// are alike but the last, which is compared with the same row alone.

#include <gtest/gtest.h>

#include "kernels/abi/softmax.h"
#include "tests/testing/device_memory.h"
#include "tests/testing/kernel_harness.h"

namespace fuseboard::softmax {
namespace {

using testing::DeviceMemory;
using testing::TestTensor;

constexpr int64_t kCols = 4096;
constexpr size_t kRowBytes = kCols * 2;

// A [rows, kCols] bf16 matrix of zeros but for its last row.
class LastOnly {
 public:
  LastOnly(int64_t rows, uint32_t seed) : rows_(rows), memory_(FB_CUDA, rows * kRowBytes) {
    TestTensor last = TestTensor(FB_BF16, {kCols}).FillNormal(seed, 2.0);
    memory_.Set(0);
    memory_.CopyFrom(last.View(last.image().data(), FB_CPU).data, kRowBytes,
                     static_cast<size_t>(rows - 1) * kRowBytes);
  }

  FbTensor View() const {
    return {memory_.get(), {rows_, kCols}, {kCols, 1}, 2, FB_BF16, FB_CUDA, 0};
  }
  std::vector<uint8_t> Row(int64_t row) const {
    std::vector<uint8_t> bytes(kRowBytes);
    memory_.CopyTo(bytes.data(), kRowBytes, static_cast<size_t>(row) * kRowBytes);
    return bytes;
  }

 private:
  int64_t rows_;
  DeviceMemory memory_;
};

void Launch(FbPhase phase, const std::vector<FbTensor>& inputs, const FbTensor& output) {
  FbCall call = {};
  call.struct_size = sizeof(FbCall);
  testing::DescribeDevice(FB_CUDA, &call);
  call.num_inputs = static_cast<int32_t>(inputs.size());
  call.num_outputs = 1;
  call.inputs = inputs.data();
  call.outputs = &output;
  const FbEntry& entry = testing::OpenKernel("softmax").entries[phase][FB_CUDA];
  ASSERT_EQ(entry.reject_reason(&call), nullptr);
  ASSERT_EQ(entry.launch(&call, nullptr), 0);
  testing::Synchronize(FB_CUDA);
}

// The last two rows of y and of dx.
std::vector<std::vector<uint8_t>> LastRows(int64_t rows) {
  const LastOnly x(rows, 1);
  const LastOnly dy(rows, 2);
  const LastOnly y(rows, 3);
  Launch(FB_FORWARD, {x.View()}, y.View());
  std::vector<std::vector<uint8_t>> result = {y.Row(rows - 2), y.Row(rows - 1)};
  Launch(FB_BACKWARD, {dy.View(), y.View()}, x.View());
  result.push_back(x.Row(rows - 2));
  result.push_back(x.Row(rows - 1));
  return result;
}

TEST(GpuSoftmaxHugeTest, RowsPastTwoToThe31ElementsAreLikeRowsAlone) {
  const auto alone = LastRows(2);
  // 2^31 - 4096, 2^31 and 2^31 + 4096 elements; 2^32 + 4096.
  for (const int64_t rows : {524287, 524288, 524289, 1048577}) {
    EXPECT_TRUE(LastRows(rows) == alone) << rows << " rows";
  }
}

}  // namespace
}  // namespace fuseboard::softmax
