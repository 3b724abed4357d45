// The norms and their gradients in f64 on the GPU, of bf16 in memory, and how far results are from
// them.

#ifndef TESTS_KERNELS_TUNING_NORM_REFERENCE_CUH_
#define TESTS_KERNELS_TUNING_NORM_REFERENCE_CUH_

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/common/vector.cuh"
#include "tests/kernels/tuning/device_timer.h"

namespace fuseboard::tuning {

struct NormProblem {
  const BFloat16* x;
  const BFloat16* residual;  // kAdd: added to x in the forward, to dx in the backward.
  const BFloat16* dy;
  const BFloat16* weight;
  const BFloat16* bias;
  int64_t rows;
  int64_t hidden;
  bool center;
  bool add;
  bool forward;
  bool rounds;  // x * rstd to bf16: in the forward, and for the sums of a modulated backward.
  // Of modulated_rms_norm, a row each per example_rows rows.
  const BFloat16* scale = nullptr;
  const BFloat16* shift = nullptr;
  int64_t example_rows = 0;
};

struct NormOutputs {
  const BFloat16* out;  // y or dx
  const BFloat16* sum;  // add, forward
  const BFloat16* dweight;
  const BFloat16* dbias;  // center
  const BFloat16* dscale = nullptr;
  const BFloat16* dshift = nullptr;
};

// Around `mean`, as of a normal distribution.
static __global__ void FillBf16Kernel(BFloat16* to, int64_t count, float mean, float deviation,
                                      uint32_t seed) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    float sum = -6.0f;
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u + seed;
    for (int k = 0; k < 12; ++k) {
      h ^= h >> 16, h *= 0x85ebca6bu, h ^= h >> 13, h *= 0xc2b2ae35u, h ^= h >> 16;
      sum += static_cast<float>(h) * 0x1p-32f;
    }
    const float v[1] = {mean + deviation * sum};
    StoreFloats<BFloat16, 1>(to + i, v);
  }
}

inline void FillBf16(BFloat16* to, int64_t count, float mean, float deviation, uint32_t seed) {
  FillBf16Kernel<<<2048, 256>>>(to, count, mean, deviation, seed);
  Check(cudaGetLastError());
}

static __device__ __forceinline__ double ValueAt(const BFloat16* from, int64_t at) {
  float v[1];
  LoadFloats<BFloat16, 1>(from + at, v);
  return v[0];
}

// x, or x + residual rounded to bf16.
static __device__ __forceinline__ double InputAt(const NormProblem& p, int64_t at) {
  if (!p.forward || !p.add) return ValueAt(p.x, at);
  float v[1] = {static_cast<float>(ValueAt(p.x, at)) + static_cast<float>(ValueAt(p.residual, at))};
  RoundFloats<BFloat16>(v);
  return v[0];
}

// What column i of a row is multiplied with.
static __device__ __forceinline__ double FactorAt(const NormProblem& p, int64_t row, int64_t i) {
  const double weight = p.weight == nullptr ? 1.0 : ValueAt(p.weight, i);
  if (p.scale == nullptr) return weight;
  return weight * (1.0 + ValueAt(p.scale, row / p.example_rows * p.hidden + i));
}

struct RowMeans {
  double mean;
  double rstd;
  double g;
  double gn;  // Of g * n.
};

// Of a row, by a block of 256.
static __global__ void RowReferenceKernel(const __grid_constant__ NormProblem p, RowMeans* out) {
  __shared__ double shared[256];
  const auto total = [&](auto value) {
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < p.hidden; i += 256)
      sum += value(blockIdx.x * p.hidden + i, i);
    __syncthreads();
    shared[threadIdx.x] = sum;
    __syncthreads();
    sum = 0.0;
    for (int i = 0; i < 256; ++i) sum += shared[i];
    return sum / static_cast<double>(p.hidden);
  };
  double mean = 0.0;
  if (p.center) mean = total([&](int64_t at, int64_t) { return InputAt(p, at); });
  const double square = total([&](int64_t at, int64_t) {
    const double d = InputAt(p, at) - mean;
    return d * d;
  });
  const double rstd = 1.0 / sqrt(square + 1e-5);
  const auto g = [&](int64_t at, int64_t i) {
    return ValueAt(p.dy, at) * FactorAt(p, blockIdx.x, i);
  };
  const double mean_g = p.forward || !p.center ? 0.0 : total(g);
  const double mean_gn = p.forward ? 0.0 : total([&](int64_t at, int64_t i) {
    return g(at, i) * (InputAt(p, at) - mean) * rstd;
  });
  if (threadIdx.x == 0) out[blockIdx.x] = {mean, rstd, mean_g, mean_gn};
}

static __device__ __forceinline__ void Note(int* worst, double got, double want) {
  const double apart = fabs(got - want) / (1.0 + fabs(want));
  atomicMax(worst, apart <= 1e3 ? static_cast<int>(apart * 1e6) : 1 << 30);  // NaN is far.
}

// A thread per column.
static __global__ void ApartKernel(const __grid_constant__ NormProblem p, const RowMeans* row,
                                   const __grid_constant__ NormOutputs of, int* worst) {
  const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (i >= p.hidden) return;
  double of_weight = 0.0;
  double of_bias = 0.0;
  double of_scale = 0.0;
  double of_shift = 0.0;
  for (int64_t r = 0; r < p.rows; ++r) {
    const int64_t at = r * p.hidden + i;
    const auto [mean, rstd, mean_g, mean_gn] = row[r];
    const double n = (InputAt(p, at) - mean) * rstd;
    double rounded = n;
    if (p.rounds) {
      float v[1] = {static_cast<float>(n)};
      RoundFloats<BFloat16>(v);
      rounded = v[0];
    }
    const int64_t example = p.scale == nullptr ? 0 : r / p.example_rows;
    if (p.forward) {
      double bias = p.center ? ValueAt(p.bias, i) : 0.0;
      if (p.scale != nullptr) bias = ValueAt(p.shift, example * p.hidden + i);
      Note(worst, ValueAt(of.out, at), rounded * FactorAt(p, r, i) + bias);
      if (p.add) Note(worst, ValueAt(of.sum, at), InputAt(p, at));
      continue;
    }
    const double dy = ValueAt(p.dy, at);
    const double dx = rstd * (dy * FactorAt(p, r, i) - mean_g - n * mean_gn);
    Note(worst, ValueAt(of.out, at), p.add ? dx + ValueAt(p.residual, at) : dx);
    of_bias += dy;
    if (p.scale == nullptr) {
      of_weight += dy * n;
      continue;
    }
    of_weight += dy * rounded * (1.0 + ValueAt(p.scale, example * p.hidden + i));
    of_scale += dy * rounded;
    of_shift += dy;
    if ((r + 1) % p.example_rows != 0) continue;
    const double weight = p.weight == nullptr ? 1.0 : ValueAt(p.weight, i);
    Note(worst, ValueAt(of.dscale, example * p.hidden + i), weight * of_scale);
    Note(worst, ValueAt(of.dshift, example * p.hidden + i), of_shift);
    of_scale = of_shift = 0.0;
  }
  if (p.forward) return;
  if (p.weight != nullptr) Note(worst, ValueAt(of.dweight, i), of_weight);
  if (p.center) Note(worst, ValueAt(of.dbias, i), of_bias);
}

// What a problem should give. In the backward it leaves mean and rstd of the rows where they are
// read; in the forward it compares them with what was written there.
class NormReference {
 public:
  NormReference(const NormProblem& problem, float* mean, float* rstd)
      : problem_(problem), mean_(mean), rstd_(rstd) {
    const auto rows = static_cast<size_t>(problem.rows);
    void* memory = nullptr;
    Check(cudaMalloc(&memory, rows * sizeof(RowMeans) + sizeof(int)));
    row_ = static_cast<RowMeans*>(memory);
    worst_ = reinterpret_cast<int*>(row_ + rows);
    RowReferenceKernel<<<static_cast<unsigned>(rows), 256>>>(problem, row_);
    std::vector<RowMeans> of(rows);
    Check(cudaMemcpy(of.data(), row_, rows * sizeof(RowMeans), cudaMemcpyDeviceToHost));
    for (const RowMeans& row : of) {
      want_mean_.push_back(static_cast<float>(row.mean));
      want_rstd_.push_back(static_cast<float>(row.rstd));
    }
    if (problem.forward) return;
    Check(cudaMemcpy(mean, want_mean_.data(), rows * 4, cudaMemcpyHostToDevice));
    Check(cudaMemcpy(rstd, want_rstd_.data(), rows * 4, cudaMemcpyHostToDevice));
  }
  ~NormReference() { Check(cudaFree(row_)); }
  NormReference(const NormReference&) = delete;
  NormReference& operator=(const NormReference&) = delete;

  // The largest distance over 1 + |want|: bf16 rounds by 2^-9 = 0.002.
  double Apart(const NormOutputs& of) const {
    Check(cudaMemset(worst_, 0, sizeof(int)));
    ApartKernel<<<static_cast<unsigned>((problem_.hidden + 255) / 256), 256>>>(problem_, row_, of,
                                                                               worst_);
    int worst = 0;
    Check(cudaMemcpy(&worst, worst_, sizeof(int), cudaMemcpyDeviceToHost));
    double apart = worst * 1e-6;
    if (problem_.center) apart = std::max(apart, FarFrom(want_mean_, mean_));
    return std::max(apart, FarFrom(want_rstd_, rstd_));
  }

 private:
  // In f32: a thousand times as strict.
  static double FarFrom(const std::vector<float>& want, const float* memory) {
    std::vector<float> got(want.size());
    Check(cudaMemcpy(got.data(), memory, got.size() * 4, cudaMemcpyDeviceToHost));
    double most = 0.0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double apart = std::abs(got[i] - want[i]) / (1.0 + std::abs(want[i]));
      most = apart * 1e3 <= most ? most : apart * 1e3;  // NaN wins.
    }
    return most;
  }

  NormProblem problem_;
  float* mean_;
  float* rstd_;
  RowMeans* row_;
  int* worst_;
  std::vector<float> want_mean_;
  std::vector<float> want_rstd_;
};

inline uint64_t BitsOf(const void* memory, int64_t bytes) {
  std::vector<uint64_t> words(static_cast<size_t>(bytes / 8));
  Check(cudaMemcpy(words.data(), memory, words.size() * 8, cudaMemcpyDeviceToHost));
  uint64_t hash = 0;
  for (const uint64_t word : words) hash = hash * 1099511628211u + word;
  return hash;
}

}  // namespace fuseboard::tuning

#endif  // TESTS_KERNELS_TUNING_NORM_REFERENCE_CUH_
