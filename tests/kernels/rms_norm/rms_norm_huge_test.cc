// Tensors past 2^31 elements: only a GPU has the memory and the speed for them. Everything is zero
// but the first and the last row, which are compared with the same two rows alone.

#include <gtest/gtest.h>

#include "tests/kernels/rms_norm/rms_norm_case.h"
#include "tests/testing/device_memory.h"

namespace fuseboard::rms_norm {
namespace {

using testing::DeviceMemory;
using testing::TestTensor;

constexpr int64_t kHidden = 4096;
constexpr int64_t kRowBytes = kHidden * 2;

// A [rows, kHidden] bf16 matrix of zeros with two rows of `two` at its ends.
class EndsOnly {
 public:
  EndsOnly(int64_t rows, const TestTensor& two)
      : rows_(rows), memory_(FB_CUDA, static_cast<size_t>(rows * kRowBytes)) {
    memory_.Set(0);
    TestTensor copy = two;
    const auto* bytes = static_cast<const uint8_t*>(copy.View(copy.image().data(), FB_CPU).data);
    memory_.CopyFrom(bytes, kRowBytes);
    memory_.CopyFrom(bytes + kRowBytes, kRowBytes, static_cast<size_t>((rows - 1) * kRowBytes));
  }

  FbTensor View() const {
    return {memory_.get(), {rows_, kHidden}, {kHidden, 1}, 2, FB_BF16, FB_CUDA, 0};
  }
  std::vector<uint8_t> Row(int64_t row) const {
    std::vector<uint8_t> bytes(kRowBytes);
    memory_.CopyTo(bytes.data(), bytes.size(), static_cast<size_t>(row * kRowBytes));
    return bytes;
  }

 private:
  int64_t rows_;
  DeviceMemory memory_;
};

FbTensor Vector(const DeviceMemory& memory, int64_t size, int32_t dtype) {
  return {memory.get(), {size}, {1}, 1, dtype, FB_CUDA, 0};
}

void Launch(FbPhase phase, const std::vector<FbTensor>& inputs,
            const std::vector<FbTensor>& outputs, const FbRmsNormParams& params) {
  FbCall call = {};
  call.struct_size = sizeof(FbCall);
  testing::DescribeDevice(FB_CUDA, &call);
  call.num_inputs = static_cast<int32_t>(inputs.size());
  call.num_outputs = static_cast<int32_t>(outputs.size());
  call.inputs = inputs.data();
  call.outputs = outputs.data();
  call.params = &params;
  const FbEntry& entry = testing::OpenKernel("rms_norm").entries[phase][FB_CUDA];
  ASSERT_EQ(entry.reject_reason(&call), nullptr);
  const DeviceMemory workspace(FB_CUDA, entry.workspace_bytes(&call));
  ASSERT_EQ(entry.launch(&call, workspace.get()), 0);
  testing::Synchronize(FB_CUDA);
}

struct Results {
  std::vector<uint8_t> y[2];
  std::vector<uint8_t> dx[2];
  std::vector<uint8_t> middle;  // Of y and dx, which must be zero.
  std::vector<float> dweight;
};

Results RunEnds(int64_t rows) {
  const FbRmsNormParams params = {sizeof(FbRmsNormParams), FB_CASTING_LLAMA, 1e-6, 0.0};
  const EndsOnly x(rows, TestTensor(FB_BF16, {2, kHidden}).FillNormal(1));
  const EndsOnly dy(rows, TestTensor(FB_BF16, {2, kHidden}).FillNormal(2));
  const EndsOnly out(rows, TestTensor(FB_BF16, {2, kHidden}));
  DeviceMemory weight(FB_CUDA, kRowBytes);
  weight.Set(0x3f);  // bf16 0.746: any weight but zero.
  DeviceMemory rstd(FB_CUDA, static_cast<size_t>(rows) * sizeof(float));
  DeviceMemory dweight(FB_CUDA, kRowBytes);
  const FbTensor weights = Vector(weight, kHidden, FB_BF16);
  const FbTensor rstds = Vector(rstd, rows, FB_F32);

  Results results;
  Launch(FB_FORWARD, {x.View(), weights}, {out.View(), rstds}, params);
  results.y[0] = out.Row(0);
  results.y[1] = out.Row(rows - 1);
  results.middle = out.Row(rows / 2);
  Launch(FB_BACKWARD, {dy.View(), x.View(), weights, rstds},
         {out.View(), Vector(dweight, kHidden, FB_BF16)}, params);
  results.dx[0] = out.Row(0);
  results.dx[1] = out.Row(rows - 1);
  const std::vector<uint8_t> middle = out.Row(rows / 2);
  results.middle.insert(results.middle.end(), middle.begin(), middle.end());
  TestTensor host(FB_BF16, {kHidden});
  dweight.CopyTo(host.View(host.image().data(), FB_CPU).data, kRowBytes);
  for (int64_t i = 0; i < kHidden; ++i) {
    results.dweight.push_back(static_cast<float>(host.At(0, i)));
  }
  return results;
}

TEST(GpuRmsNormHugeTest, RowsPastTwoToThe31ElementsAreLikeRowsAlone) {
  const Results alone = RunEnds(2);
  // 2^31 - 4096, 2^31 and 2^31 + 4096 elements; 2^32 + 4096.
  for (const int64_t rows : {524287, 524288, 524289, 1048577}) {
    SCOPED_TRACE(rows);
    const Results all = RunEnds(rows);
    for (const int end : {0, 1}) {
      EXPECT_TRUE(all.y[end] == alone.y[end]) << "y, end " << end;
      EXPECT_TRUE(all.dx[end] == alone.dx[end]) << "dx, end " << end;
    }
    EXPECT_TRUE(all.middle == std::vector<uint8_t>(2 * kRowBytes, 0));
    // The same two terms and zeros, whatever the order: exact.
    EXPECT_EQ(all.dweight, alone.dweight);
  }
}

}  // namespace
}  // namespace fuseboard::rms_norm
