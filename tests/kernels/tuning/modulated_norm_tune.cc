// Times modulated_rms_norm in bf16 on device 0, with a row of scale and shift per 1,024 rows and
// per row, as shares of the copy rate of the same run by least traffic; and compares its results
// with sums in f64.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/abi/modulated_rms_norm.h"
#include "kernels/modulated_rms_norm/modulated_rms_norm_cuda.h"
#include "tests/kernels/tuning/device_timer.h"

namespace fuseboard {
namespace {

using tuning::Check;

constexpr int64_t kBytes = int64_t{512} << 20;
constexpr FbModulatedRmsNormParams kParams = {sizeof(kParams), FB_CASTING_GEMMA, 1e-6, 0.0};

FbTensor Vector(char* base, int64_t size, int32_t dtype) {
  return {base, {size}, {1}, 1, dtype, FB_CUDA, 0};
}

FbTensor Absent() {
  FbTensor tensor = {};
  tensor.ndim = -1;
  return tensor;
}

struct Bench {
  tuning::Rotating x{kBytes};
  tuning::Rotating dy{kBytes};
  tuning::Rotating y{kBytes};
  tuning::Rotating scale{kBytes};
  tuning::Rotating shift{kBytes};
  tuning::Rotating dscale{kBytes};
  tuning::Rotating dshift{kBytes};
  tuning::Rotating weight{int64_t{4} << 20};
  tuning::Rotating dweight{int64_t{4} << 20};
  tuning::Rotating rstd{int64_t{4} << 20};
  tuning::Rotating workspace{int64_t{1} << 30};
  FbCall call = tuning::NewCall();
  double copy_rate = tuning::CopyRate(y, x, kBytes);
};

struct Shape {
  int64_t groups;
  int64_t group_rows;
  int64_t hidden;
};

int Run(const Bench& b, FbPhase phase, Shape s, bool has_weight, int turn) {
  const int64_t rows = s.groups * s.group_rows;
  FbCall call = b.call;
  call.params = &kParams;
  const FbTensor x = b.x.Matrix(rows, s.hidden, FB_BF16, turn);
  const FbTensor y = b.y.Matrix(rows, s.hidden, FB_BF16, turn);
  const FbTensor scale = b.scale.Matrix(s.groups, s.hidden, FB_BF16, turn);
  const FbTensor shift = b.shift.Matrix(s.groups, s.hidden, FB_BF16, turn);
  const FbTensor weight = has_weight ? Vector(b.weight.base(), s.hidden, FB_BF16) : Absent();
  const FbTensor rstd = Vector(b.rstd.base(), rows, FB_F32);
  if (phase == FB_FORWARD) {
    const FbTensor inputs[] = {x, weight, scale, shift};
    const FbTensor outputs[] = {y, rstd};
    call.inputs = inputs, call.outputs = outputs;
    return modulated_rms_norm::ForwardCuda(&call, nullptr);
  }
  const FbTensor inputs[] = {b.dy.Matrix(rows, s.hidden, FB_BF16, turn), x, weight, scale, rstd};
  const FbTensor outputs[] = {y,
                              has_weight ? Vector(b.dweight.base(), s.hidden, FB_BF16) : Absent(),
                              b.dscale.Matrix(s.groups, s.hidden, FB_BF16, turn),
                              b.dshift.Matrix(s.groups, s.hidden, FB_BF16, turn)};
  call.inputs = inputs, call.outputs = outputs;
  return modulated_rms_norm::BackwardCuda(&call, b.workspace.base());
}

void Time(const Bench& b, Shape s, bool has_weight) {
  for (const FbPhase phase : {FB_FORWARD, FB_BACKWARD}) {
    const double us =
        tuning::MedianUs([&](int turn) { return Run(b, phase, s, has_weight, turn); }, 12);
    const bool many = s.group_rows == 1;
    const int per_element = phase == FB_FORWARD ? (many ? 8 : 4) : (many ? 12 : 6);
    const auto bytes = static_cast<double>(s.groups * s.group_rows * s.hidden * per_element);
    std::printf("modulated_rms_norm %-8s %5lld x %5lld x %-6lld weight %d %8.1f us %5.1f %%\n",
                phase == FB_FORWARD ? "forward" : "backward", static_cast<long long>(s.groups),
                static_cast<long long>(s.group_rows), static_cast<long long>(s.hidden), has_weight,
                us, 100.0 * bytes / us / b.copy_rate);
  }
}

// ---- What the results should be ----

std::vector<float> ToBf16(char* to, int64_t count, float mean, float deviation, uint32_t seed) {
  std::vector<uint16_t> bits(static_cast<size_t>(count));
  std::vector<float> values(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) {
    float sum = -2.0f;
    for (int k = 0; k < 4; ++k) {
      seed = seed * 1664525u + 1013904223u;
      sum += static_cast<float>(seed >> 8) * 0x1p-24f;
    }
    const float value = mean + 1.7f * deviation * sum;
    uint32_t word;
    std::memcpy(&word, &value, 4);
    word &= 0xffff0000u;
    std::memcpy(&values[i], &word, 4);
    bits[i] = static_cast<uint16_t>(word >> 16);
  }
  Check(cudaMemcpy(to, bits.data(), bits.size() * 2, cudaMemcpyHostToDevice));
  return values;
}

double Apart(const char* from, const std::vector<double>& want, uint32_t* hash) {
  std::vector<uint16_t> bits(want.size());
  Check(cudaMemcpy(bits.data(), from, bits.size() * 2, cudaMemcpyDeviceToHost));
  double most = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const uint32_t word = uint32_t{bits[i]} << 16;
    float got;
    std::memcpy(&got, &word, 4);
    *hash = *hash * 31 + bits[i];
    const double apart = std::abs(got - want[i]) / (1.0 + std::abs(want[i]));
    most = apart <= most ? most : apart;  // NaN wins.
  }
  return most;
}

void CheckOne(const Bench& b, Shape s, bool has_weight) {
  const auto h = static_cast<size_t>(s.hidden);
  const int64_t rows = s.groups * s.group_rows;
  const auto x = ToBf16(b.x.base(), rows * s.hidden, 0.2f, 1.0f, 1);
  const auto dy = ToBf16(b.dy.base(), rows * s.hidden, 0.0f, 1.0f, 2);
  const auto scale = ToBf16(b.scale.base(), s.groups * s.hidden, 0.0f, 0.3f, 3);
  const auto shift = ToBf16(b.shift.base(), s.groups * s.hidden, 0.0f, 0.3f, 4);
  const auto weight = ToBf16(b.weight.base(), s.hidden, 1.0f, 0.2f, 5);
  std::vector<double> y(x.size()), dx(x.size()), dscale(scale.size()), dshift(scale.size()),
      dweight(has_weight ? h : 0);
  const auto hidden = static_cast<double>(s.hidden);
  for (int64_t row = 0; row < rows; ++row) {
    const size_t at = static_cast<size_t>(row) * h;
    const size_t of = static_cast<size_t>(row / s.group_rows) * h;
    double square = 0.0, mean = 0.0;
    for (size_t i = 0; i < h; ++i) square += double{x[at + i]} * x[at + i] / hidden;
    const double rstd = 1.0 / std::sqrt(square + 1e-6);
    const auto factor = [&](size_t i) {
      return (1.0 + scale[of + i]) * (has_weight ? weight[i] : 1.0f);
    };
    for (size_t i = 0; i < h; ++i) mean += dy[at + i] * factor(i) * x[at + i] * rstd / hidden;
    for (size_t i = 0; i < h; ++i) {
      const double n = x[at + i] * rstd;
      const double w = has_weight ? weight[i] : 1.0;
      y[at + i] = factor(i) * n + shift[of + i];
      dx[at + i] = rstd * (dy[at + i] * factor(i) - n * mean);
      dscale[of + i] += w * dy[at + i] * n;
      dshift[of + i] += dy[at + i];
      if (has_weight) dweight[i] += (1.0 + scale[of + i]) * dy[at + i] * n;
    }
  }
  double apart[5] = {};
  uint32_t hash[2] = {};
  for (uint32_t& run : hash) {
    for (const auto* memory : {&b.y, &b.dscale, &b.dshift, &b.dweight}) {
      Check(cudaMemset(memory->base(), 0xff, 4 << 20));
    }
    Check(Run(b, FB_FORWARD, s, has_weight, 0));
    Check(cudaDeviceSynchronize());
    apart[0] = Apart(b.y.base(), y, &run);
    Check(Run(b, FB_BACKWARD, s, has_weight, 0));
    Check(cudaDeviceSynchronize());
    apart[1] = Apart(b.y.base(), dx, &run);
    apart[2] = Apart(b.dscale.base(), dscale, &run);
    apart[3] = Apart(b.dshift.base(), dshift, &run);
    apart[4] = Apart(b.dweight.base(), dweight, &run);
  }
  const bool good = *std::max_element(apart, apart + 5) < 0.006 && hash[0] == hash[1];
  std::printf("%s %lld x %lld x %lld: y %.4f dx %.4f dscale %.4f dshift %.4f dweight %.4f %s\n",
              good ? "ok  " : "FAIL", static_cast<long long>(s.groups),
              static_cast<long long>(s.group_rows), static_cast<long long>(s.hidden), apart[0],
              apart[1], apart[2], apart[3], apart[4], hash[0] == hash[1] ? "" : "BITS DIFFER");
}

int Main() {
  Check(modulated_rms_norm::LoadForwardKernels());
  Check(modulated_rms_norm::LoadBackwardKernels());
  const Bench b;
  for (const bool has_weight : {true, false}) {
    for (const Shape s : {Shape{3, 100, 1024},
                          {2, 67, 4096},
                          {2, 3000, 128},
                          {5, 1, 4096},
                          {1, 90, 5120},
                          {2, 33, 16384},
                          {2, 100, 1000},
                          {1, 40, 32768}}) {
      CheckOne(b, s, has_weight);
    }
  }
  for (const Shape s : {Shape{16, 1024, 4096},
                        {16, 4, 4096},
                        {64, 1024, 1024},
                        {16, 2048, 2048},
                        {16, 800, 5120},
                        {16, 512, 8192},
                        {4, 1024, 16384}}) {
    Time(b, s, true);
    Time(b, s, false);
  }
  Time(b, {16384, 1, 4096}, false);
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace fuseboard

int main() { return fuseboard::Main(); }
