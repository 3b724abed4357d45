// The `inverse_divisor` and `total` entries, as cross_entropy.so has them.

#include "kernels/common/row_totals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/testing/device_memory.h"
#include "tests/testing/kernel_harness.h"

namespace fuseboard {
namespace {

const FbKernel& Library() { return testing::OpenKernel("cross_entropy"); }
const FbEntry& InverseEntry() { return Library().inverse_divisor[FB_CUDA]; }
const FbEntry& TotalEntry() { return Library().total[FB_CUDA]; }

constexpr FbTensor kAbsent = [] {
  FbTensor absent{};
  absent.ndim = -1;
  return absent;
}();

FbTensor Vector(void* memory, int64_t size, int32_t dtype, int64_t stride = 1) {
  return {memory, {size}, {stride}, 1, dtype, FB_CUDA, 0};
}

// A call of an entry, which holds its tensors.
struct EntryCall {
  std::vector<FbTensor> inputs;
  std::vector<FbTensor> outputs;
  FbCall call = {};

  EntryCall(const EntryCall&) = delete;
  EntryCall& operator=(const EntryCall&) = delete;
  EntryCall(std::vector<FbTensor> in, std::vector<FbTensor> out, const void* params = nullptr)
      : inputs(std::move(in)), outputs(std::move(out)) {
    call.struct_size = sizeof(call);
    call.device_type = FB_CUDA;
    call.num_inputs = static_cast<int32_t>(inputs.size());
    call.num_outputs = static_cast<int32_t>(outputs.size());
    call.inputs = inputs.data();
    call.outputs = outputs.data();
    call.params = params;
  }
};

#if defined(FB_HAVE_CUDA)

using testing::DeviceMemory;

struct OnDevice : DeviceMemory {
  template <typename T>
  explicit OnDevice(const std::vector<T>& values)
      : DeviceMemory(FB_CUDA, values.size() * sizeof(T) + 1) {
    CopyFrom(values.data(), values.size() * sizeof(T));
  }
};

float FloatIn(const DeviceMemory& memory) {
  float value = 0.0f;
  memory.CopyTo(&value, sizeof(value));
  return value;
}

void Launch(const FbEntry& entry, EntryCall&& call) {
  testing::DescribeDevice(FB_CUDA, &call.call);
  ASSERT_EQ(entry.reject_reason(&call.call), nullptr);
  ASSERT_EQ(entry.workspace_bytes(&call.call), 0u);
  ASSERT_EQ(entry.launch(&call.call, nullptr), 0);
  testing::Synchronize(FB_CUDA);
}

// None, one, a part of the block, more than the block, and the most.
constexpr int64_t kRows[] = {0, 1, 37, 1024, 1025, kMaxTotalRows};
constexpr int64_t kIgnored = -100;

// Every third row is ignored, and one is out of range.
template <typename Index>
std::vector<Index> TargetsOf(int64_t rows, int64_t classes, int64_t stride) {
  std::vector<Index> targets(static_cast<size_t>(rows * stride + 1), Index{1});
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t target = row % 3 == 2 ? kIgnored : row % classes;
    targets[static_cast<size_t>(row * stride)] = static_cast<Index>(row == 4 ? 100 : target);
  }
  return targets;
}

template <typename Index>
void ExpectInverse(int64_t rows, int64_t stride, bool weighted) {
  constexpr int64_t kClasses = 11;
  std::vector<float> weight(kClasses);
  for (size_t i = 0; i < kClasses; ++i) weight[i] = 0.25f * static_cast<float>(i);
  const std::vector<Index> targets = TargetsOf<Index>(rows, kClasses, stride);
  double want = 0.0;
  for (int64_t row = 0; row < rows; ++row) {
    const auto target = static_cast<int64_t>(targets[static_cast<size_t>(row * stride)]);
    if (target == kIgnored) continue;
    want += weighted ? weight[static_cast<size_t>(std::min(target, kClasses - 1))] : 1.0;
  }
  const OnDevice on_device(targets);
  const OnDevice weights(weight);
  const DeviceMemory inverse(FB_CUDA, sizeof(float));
  const int32_t dtype = sizeof(Index) == 8 ? FB_I64 : FB_I32;
  Launch(InverseEntry(), {{Vector(on_device.get(), rows, dtype, stride),
                           weighted ? Vector(weights.get(), kClasses, FB_F32) : kAbsent},
                          {Vector(inverse.get(), 1, FB_F32)},
                          &kIgnored});
  // Sums of quarters are exact.
  EXPECT_EQ(FloatIn(inverse), want == 0.0 ? 0.0f : 1.0f / static_cast<float>(want))
      << rows << " rows, stride " << stride << (weighted ? ", weighted" : "");
}

TEST(GpuRowTotalsTest, TheInverseDivisorCountsWhatIsNotIgnored) {
  for (const int64_t rows : kRows) {
    for (const bool weighted : {false, true}) {
      ExpectInverse<int64_t>(rows, 1, weighted);
      ExpectInverse<int32_t>(rows, 3, weighted);
    }
  }
}

TEST(GpuRowTotalsTest, TotalsAgreeWithDoubleAndAreTheSameTwice) {
  for (const int64_t rows : kRows) {
    std::vector<float> loss;
    std::vector<float> z_loss;
    double sum = 0.0;
    double z_sum = 0.0;
    for (int64_t row = 0; row < rows; ++row) {
      loss.push_back(1.0f + std::sin(static_cast<float>(row)));
      z_loss.push_back(0.1f * loss.back());
      sum += loss.back();
      z_sum += z_loss.back();
    }
    const float factor = 1.0f / 3.0f;
    const OnDevice losses(loss);
    const OnDevice z_losses(z_loss);
    const OnDevice factors(std::vector<float>{factor});
    const auto run = [&](bool has_z, bool has_factor) {
      const OnDevice totals(std::vector<float>{-1.0f, -1.0f});
      auto* const at = static_cast<float*>(totals.get());
      Launch(TotalEntry(), {{Vector(losses.get(), rows, FB_F32),
                             has_z ? Vector(z_losses.get(), rows, FB_F32) : kAbsent,
                             has_factor ? Vector(factors.get(), 1, FB_F32) : kAbsent},
                            {Vector(at, 1, FB_F32), Vector(at + 1, 1, FB_F32)}});
      std::vector<float> got(2);
      totals.CopyTo(got.data(), 2 * sizeof(float));
      return got;
    };
    const std::vector<float> got = run(true, true);
    EXPECT_NEAR(got[0], sum * factor, 1e-6 * sum);
    EXPECT_NEAR(got[1], z_sum * factor, 1e-6 * z_sum);
    EXPECT_EQ(got, run(true, true));
    const std::vector<float> plain = run(false, false);
    EXPECT_NEAR(plain[0], sum, 1e-6 * sum);
    EXPECT_EQ(plain[1], 0.0f);
  }
}

TEST(GpuRowTotalsTest, TheOtherTotalMayBeAbsent) {
  const OnDevice losses(std::vector<float>{2.0f, 3.0f});
  const DeviceMemory total(FB_CUDA, sizeof(float));
  Launch(TotalEntry(), {{Vector(losses.get(), 2, FB_F32), kAbsent, kAbsent},
                        {Vector(total.get(), 1, FB_F32), kAbsent}});
  EXPECT_EQ(FloatIn(total), 5.0f);
}

#endif

TEST(RowTotalsTest, ManyRowsAndOtherDTypesAreRefusedWithBothValues) {
  if (TotalEntry().launch == nullptr) GTEST_SKIP() << "a build without CUDA";
  alignas(16) uint8_t memory[64] = {};
  const int64_t ignore_index = -100;
  const auto inverse_reason = [&](const FbTensor& target, const FbTensor& weight) {
    const EntryCall call({target, weight}, {Vector(memory, 1, FB_F32)}, &ignore_index);
    const char* why = InverseEntry().reject_reason(&call.call);
    return std::string(why != nullptr ? why : "");
  };
  EXPECT_EQ(inverse_reason(Vector(memory, 4, FB_I64, 0), kAbsent), "");
  EXPECT_EQ(inverse_reason(Vector(memory, 4, FB_F32), kAbsent), "target: want i64 or i32, got f32");
  EXPECT_EQ(inverse_reason(Vector(memory, 32769, FB_I64), kAbsent),
            "target: want at most 32768 rows, got 32769");
  EXPECT_EQ(inverse_reason(Vector(memory, 4, FB_I64), Vector(memory, 4, FB_F64)),
            "class_weight: want f32, got f64");
  EXPECT_EQ(inverse_reason(Vector(memory, 4, FB_I64), Vector(memory, 0, FB_F32)),
            "class_weight: want at least 1 class, got 0");

  const auto total_reason = [&](const FbTensor& loss, const FbTensor& z_loss,
                                const FbTensor& factor) {
    const EntryCall call({loss, z_loss, factor},
                         {Vector(memory, 1, FB_F32), Vector(memory, 1, FB_F32)});
    const char* why = TotalEntry().reject_reason(&call.call);
    return std::string(why != nullptr ? why : "");
  };
  const FbTensor loss = Vector(memory, 4, FB_F32);
  EXPECT_EQ(total_reason(loss, kAbsent, kAbsent), "");
  EXPECT_EQ(total_reason(Vector(memory, 4, FB_F32, 2), kAbsent, kAbsent),
            "loss: want stride 1, got 2");
  EXPECT_EQ(total_reason(Vector(memory, 32769, FB_F32), kAbsent, kAbsent),
            "loss: want at most 32768 rows, got 32769");
  EXPECT_EQ(total_reason(loss, Vector(memory, 3, FB_F32), kAbsent),
            "z_loss: want shape [4], got [3]");
  EXPECT_EQ(total_reason(loss, kAbsent, Vector(memory, 2, FB_F32)),
            "factor: want shape [1], got [2]");
}

}  // namespace
}  // namespace fuseboard
