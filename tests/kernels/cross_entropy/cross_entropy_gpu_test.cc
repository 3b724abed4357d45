// What only a GPU can show: more than 2^31 logits, and replay of a captured graph.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/kernels/cross_entropy/cross_entropy_case.h"
#include "tests/testing/device_memory.h"

namespace fuseboard::cross_entropy {
namespace {

using ::fuseboard::testing::DeviceMemory;

FbTensor Matrix(void* memory, int64_t rows, int64_t cols, int32_t dtype) {
  return {memory, {rows, cols}, {cols, 1}, 2, dtype, FB_CUDA, 0};
}

FbTensor Vector(void* memory, int64_t size, int32_t dtype) {
  return {memory, {size}, {1}, 1, dtype, FB_CUDA, 0};
}

FbTensor Absent() {
  FbTensor tensor = {};
  tensor.ndim = -1;
  return tensor;
}

constexpr FbCrossEntropyParams kPlain = {sizeof(FbCrossEntropyParams), 0, -100, 0, 0, 0, 1};

// Loss and in-place gradient of bf16 logits on a stream; returns what launch did.
int32_t Launch(const DeviceMemory& logits, const DeviceMemory& target, const DeviceMemory* scale,
               const DeviceMemory& loss, int64_t rows, int64_t vocab, cudaStream_t stream) {
  const FbTensor matrix = Matrix(logits.get(), rows, vocab, FB_BF16);
  const FbTensor inputs[] = {matrix, Vector(target.get(), rows, FB_I64), Absent(),
                             scale ? Vector(scale->get(), rows, FB_F32) : Absent()};
  const FbTensor outputs[] = {Vector(loss.get(), rows, FB_F32), Absent(), Absent(), Absent(),
                              matrix};
  FbCall call = {};
  call.struct_size = sizeof(call);
  call.device_type = FB_CUDA;
  testing::DescribeDevice(FB_CUDA, &call);
  call.num_inputs = 4;
  call.num_outputs = 5;
  call.inputs = inputs;
  call.outputs = outputs;
  call.params = &kPlain;
  call.stream = stream;
  const FbEntry& entry = Kernel().entries[FB_FORWARD][FB_CUDA];
  EXPECT_EQ(entry.reject_reason(&call), nullptr);
  return entry.launch(&call, nullptr);
}

float FromBFloat16(uint16_t bits) {
  const uint32_t word = uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

// 8193 x 262144: the last row begins at element 2^31. Logits 0, but 10 at the last row's target;
// only that row has an upstream gradient, so no other may change.
TEST(GpuCrossEntropyTest, RightBeyond2To31Logits) {
  constexpr int64_t kRows = 8193;
  constexpr int64_t kVocab = 262144;
  constexpr int64_t kLast = kRows - 1;
  constexpr int64_t kTarget = 77777;
  DeviceMemory logits(FB_CUDA, size_t{2} * kRows * kVocab);
  logits.Set(0);
  const uint16_t ten = 0x4120;
  logits.CopyFrom(&ten, 2, size_t{2} * (kLast * kVocab + kTarget));
  DeviceMemory target(FB_CUDA, kRows * sizeof(int64_t));
  const std::vector<int64_t> targets(kRows, kTarget);
  target.CopyFrom(targets.data(), target.bytes());
  DeviceMemory scale(FB_CUDA, kRows * sizeof(float));
  std::vector<float> scales(kRows, 0.0F);
  scales[kLast] = 1.0F;
  scale.CopyFrom(scales.data(), scale.bytes());
  DeviceMemory loss(FB_CUDA, kRows * sizeof(float));

  ASSERT_EQ(Launch(logits, target, &scale, loss, kRows, kVocab, nullptr), 0);
  testing::Synchronize(FB_CUDA);

  std::vector<float> losses(kRows);
  loss.CopyTo(losses.data(), loss.bytes());
  const double sum = kVocab - 1 + std::exp(10.0);
  for (int64_t row = 0; row < kLast; ++row) {
    ASSERT_NEAR(losses[row], std::log(double{kVocab}), 2e-5) << row;
  }
  EXPECT_NEAR(losses[kLast], std::log(sum) - 10.0, 2e-5);
  std::vector<uint16_t> row(kVocab);
  for (const int64_t index : {int64_t{0}, kLast / 2, kLast - 1}) {
    logits.CopyTo(row.data(), size_t{2} * kVocab, size_t{2} * index * kVocab);
    for (int64_t i = 0; i < kVocab; ++i) ASSERT_EQ(row[i] & 0x7fff, 0) << index << " " << i;
  }
  logits.CopyTo(row.data(), size_t{2} * kVocab, size_t{2} * kLast * kVocab);
  for (int64_t i = 0; i < kVocab; ++i) {
    const double want = i == kTarget ? std::exp(10.0) / sum - 1 : 1 / sum;
    ASSERT_NEAR(FromBFloat16(row[i]), want, 4e-3 * std::fabs(want)) << i;
  }
}

// The same graph, replayed over targets that change, the last time all ignored.
TEST(GpuCrossEntropyTest, ACapturedLaunchReplaysOverNewTargets) {
  constexpr int64_t kRows = 6;
  for (const int64_t vocab : {64, 4000, 50257, 128256}) {
    DeviceMemory logits(FB_CUDA, size_t{2} * kRows * vocab);
    DeviceMemory target(FB_CUDA, kRows * sizeof(int64_t));
    DeviceMemory loss(FB_CUDA, kRows * sizeof(float));
    ASSERT_EQ(Kernel().prepare(FB_CUDA, 0), 0);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    EXPECT_EQ(Launch(logits, target, nullptr, loss, kRows, vocab, stream), 0);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    cudaGraphExec_t instance = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&instance, graph, 0), cudaSuccess);
    for (const int64_t value : {int64_t{0}, vocab - 1, int64_t{-100}}) {
      logits.Set(0);
      const std::vector<int64_t> targets(kRows, value);
      target.CopyFrom(targets.data(), target.bytes());
      ASSERT_EQ(cudaGraphLaunch(instance, stream), cudaSuccess);
      testing::Synchronize(FB_CUDA);
      std::vector<float> losses(kRows);
      loss.CopyTo(losses.data(), loss.bytes());
      const double want = value == -100 ? 0.0 : std::log(static_cast<double>(vocab));
      for (const float got : losses) EXPECT_NEAR(got, want, 1e-5) << vocab << " " << value;
    }
    EXPECT_EQ(cudaGraphExecDestroy(instance), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }
}

}  // namespace
}  // namespace fuseboard::cross_entropy
