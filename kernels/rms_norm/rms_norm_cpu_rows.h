// RMSNorm on the CPU, for the sources of rms_norm, fused_add_rms_norm and modulated_rms_norm that
// are compiled once per instruction set. Rows go through blocks of floats that stay in the L1
// cache; the compiler vectorises the loops over a block. Sums run in kLanes interleaved parts, so
// that their order is the same for every instruction set and number of threads.

#ifndef KERNELS_RMS_NORM_RMS_NORM_CPU_ROWS_H_
#define KERNELS_RMS_NORM_RMS_NORM_CPU_ROWS_H_

#include <cmath>

#include "kernels/common/cpu_float.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/parallel.h"
#include "kernels/rms_norm/rms_norm_call.h"
#include "kernels/rms_norm/rms_norm_cpu.h"

namespace fuseboard::rms_norm::FB_CPU_ISA {

using ::fuseboard::FB_CPU_ISA::LoadBlock;
using ::fuseboard::FB_CPU_ISA::RoundBlock;
using ::fuseboard::FB_CPU_ISA::StoreBlock;
using ::fuseboard::FB_CPU_ISA::ViewBlock;

inline constexpr int64_t kBlock = 1024;  // 4 KiB of floats; up to four such buffers are live.
inline constexpr int kLanes = 32;
inline constexpr int64_t kGrainElements =
    32768;  // Work below this does not pay for another thread.

inline int64_t GrainRows(int64_t hidden) {
  return hidden >= kGrainElements ? 1 : kGrainElements / hidden;
}

inline int64_t BlockLength(int64_t begin, int64_t size) {
  return size - begin < kBlock ? size - begin : kBlock;
}

// Adds a[i] * b[i] into the lane i % kLanes.
inline void AddProducts(const float* a, const float* b, int64_t n, float* lanes) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += a[i] * b[i];
}

// In double: 31 roundings one after the other would be the largest error of an fp32 norm, and one
// that all elements of its row share.
inline double SumLanes(const float* lanes) {
  double sum = 0.0;
  for (int lane = 0; lane < kLanes; ++lane) sum += static_cast<double>(lanes[lane]);
  return sum;
}

inline float ReciprocalRoot(double mean_square, float eps) {
  return static_cast<float>(1.0 / std::sqrt(mean_square + static_cast<double>(eps)));
}

// offset + weight of [begin, begin + n) into `out`; ones without a weight.
inline void LoadWeight(const FbTensor& weight, float offset, int64_t begin, int64_t n, float* out) {
  if (IsAbsent(weight)) {
    for (int64_t i = 0; i < n; ++i) out[i] = 1.0f;
    return;
  }
  DispatchFloat(weight.dtype, [&](auto tag) {
    using W = typename decltype(tag)::type;
    LoadBlock(static_cast<const W*>(weight.data) + begin, out, n);
  });
  for (int64_t i = 0; i < n; ++i) out[i] += offset;
}

template <typename T>
T* Row(const FbTensor& tensor, int64_t row) {
  return static_cast<T*>(tensor.data) + row * tensor.stride[0];
}

// 1 + scale of row `group` and columns [begin, begin + n) into `out`.
inline void LoadOnePlusScale(const FbTensor& scale, int64_t group, int64_t begin, int64_t n,
                             float* out) {
  DispatchFloat(scale.dtype, [&](auto tag) {
    LoadBlock(Row<const typename decltype(tag)::type>(scale, group) + begin, out, n);
  });
  for (int64_t i = 0; i < n; ++i) out[i] += 1.0f;
}

// (1 + scale) * values + shift in place, of a row's columns [begin, begin + n).
inline void Modulate(const ForwardCall& f, int64_t row, int64_t begin, int64_t n, float* values) {
  const int64_t group = row / (f.norm.rows / f.scale->shape[0]);
  float buffer[kBlock];
  LoadOnePlusScale(*f.scale, group, begin, n, buffer);
  for (int64_t i = 0; i < n; ++i) values[i] *= buffer[i];
  DispatchFloat(f.shift->dtype, [&](auto tag) {
    LoadBlock(Row<const typename decltype(tag)::type>(*f.shift, group) + begin, buffer, n);
  });
  for (int64_t i = 0; i < n; ++i) values[i] += buffer[i];
}

// sum = x + residual of a row, rounded to X, which then is what is normalised.
template <typename X>
const X* AddResidual(const ForwardCall& f, int64_t row) {
  const X* x = Row<const X>(f.x, row);
  const X* residual = Row<const X>(*f.residual, row);
  X* sum = Row<X>(*f.sum, row);
  float buffer[kBlock];
  float other[kBlock];
  for (int64_t at = 0; at < f.norm.hidden; at += kBlock) {
    const int64_t n = BlockLength(at, f.norm.hidden);
    const float* a = ViewBlock(x + at, buffer, n);
    const float* b = ViewBlock(residual + at, other, n);
    for (int64_t i = 0; i < n; ++i) buffer[i] = a[i] + b[i];
    StoreBlock(buffer, sum + at, n);
  }
  return sum;
}

template <typename X, typename Y>
void ForwardRow(const ForwardCall& f, int64_t row) {
  const X* x = f.residual == nullptr ? Row<const X>(f.x, row) : AddResidual<X>(f, row);
  Y* y = Row<Y>(f.y, row);
  float buffer[kBlock];
  float lanes[kLanes] = {};
  for (int64_t at = 0; at < f.norm.hidden; at += kBlock) {
    const int64_t n = BlockLength(at, f.norm.hidden);
    const float* values = ViewBlock(x + at, buffer, n);
    AddProducts(values, values, n, lanes);
  }
  const float rstd =
      ReciprocalRoot(SumLanes(lanes) / static_cast<double>(f.norm.hidden), f.norm.eps);
  if (!IsAbsent(f.rstd)) static_cast<float*>(f.rstd.data)[row] = rstd;

  float weight[kBlock];
  for (int64_t at = 0; at < f.norm.hidden; at += kBlock) {
    const int64_t n = BlockLength(at, f.norm.hidden);
    const float* values = ViewBlock(x + at, buffer, n);
    for (int64_t i = 0; i < n; ++i) buffer[i] = values[i] * rstd;
    if (f.norm.round_normed) RoundBlock<X>(buffer, n);
    if (!IsAbsent(f.weight)) {
      LoadWeight(f.weight, f.norm.offset, at, n, weight);
      for (int64_t i = 0; i < n; ++i) buffer[i] *= weight[i];
    }
    if (f.scale != nullptr) Modulate(f, row, at, n, buffer);
    StoreBlock(buffer, y + at, n);
  }
}

// The mean of dy * (offset + weight) * x * rstd over a row.
template <typename X, typename DY>
float MeanProduct(const BackwardCall& b, int64_t row, float rstd) {
  const X* x = Row<const X>(b.x, row);
  const DY* dy = Row<const DY>(b.dy, row);
  float x_buffer[kBlock];
  float dy_buffer[kBlock];
  float product[kBlock];
  float lanes[kLanes] = {};
  for (int64_t at = 0; at < b.norm.hidden; at += kBlock) {
    const int64_t n = BlockLength(at, b.norm.hidden);
    const float* xs = ViewBlock(x + at, x_buffer, n);
    const float* dys = ViewBlock(dy + at, dy_buffer, n);
    LoadWeight(b.weight, b.norm.offset, at, n, product);
    for (int64_t i = 0; i < n; ++i) product[i] *= dys[i];
    for (int64_t i = 0; i < n; ++i) x_buffer[i] = xs[i] * rstd;
    AddProducts(product, x_buffer, n, lanes);
  }
  return static_cast<float>(SumLanes(lanes) / static_cast<double>(b.norm.hidden));
}

// dx of a row if wanted, and its part of dweight added to `dweight` [hidden] unless that is NULL.
template <typename X, typename DY>
void BackwardRow(const BackwardCall& b, int64_t row, float* dweight) {
  const float rstd = static_cast<const float*>(b.rstd.data)[row];
  const bool has_dx = !IsAbsent(b.dx);
  const float mean = has_dx ? MeanProduct<X, DY>(b, row, rstd) : 0.0f;
  const X* x = Row<const X>(b.x, row);
  const DY* dy = Row<const DY>(b.dy, row);
  float normed[kBlock];
  float dy_buffer[kBlock];
  float dx[kBlock];
  for (int64_t at = 0; at < b.norm.hidden; at += kBlock) {
    const int64_t n = BlockLength(at, b.norm.hidden);
    const float* xs = ViewBlock(x + at, normed, n);
    const float* dys = ViewBlock(dy + at, dy_buffer, n);
    for (int64_t i = 0; i < n; ++i) normed[i] = xs[i] * rstd;
    if (has_dx) {
      LoadWeight(b.weight, b.norm.offset, at, n, dx);
      for (int64_t i = 0; i < n; ++i) dx[i] = rstd * (dys[i] * dx[i] - normed[i] * mean);
      if (b.dsum != nullptr && !IsAbsent(*b.dsum)) {
        float buffer[kBlock];
        const float* dsum = ViewBlock(Row<const X>(*b.dsum, row) + at, buffer, n);
        for (int64_t i = 0; i < n; ++i) dx[i] += dsum[i];
      }
      StoreBlock(dx, Row<X>(b.dx, row) + at, n);
    }
    if (dweight == nullptr) continue;
    if (b.norm.round_normed) RoundBlock<X>(normed, n);
    float* sum = dweight + at;
    for (int64_t i = 0; i < n; ++i) sum[i] += dys[i] * normed[i];
  }
}

// out [hidden] = the sums of all row blocks, added in order.
inline void SumRowBlocks(const FbCall& call, const FbTensor& out, const float* sums, int64_t count,
                         int64_t hidden) {
  ParallelFor(call, (hidden + kBlock - 1) / kBlock, 4, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin * kBlock; at < end * kBlock && at < hidden; at += kBlock) {
      const int64_t n = BlockLength(at, hidden);
      float total[kBlock] = {};
      for (int64_t block = 0; block < count; ++block) {
        const float* sum = sums + block * hidden + at;
        for (int64_t i = 0; i < n; ++i) total[i] += sum[i];
      }
      DispatchFloat(out.dtype, [&](auto tag) {
        using W = decltype(tag)::type;
        StoreBlock(total, static_cast<W*>(out.data) + at, n);
      });
    }
  });
}

template <typename X, typename DY>
void BackwardRows(const FbCall& call, const BackwardCall& b, float* sums) {
  const RowBlocks blocks = RowBlocksOf(b.norm.rows);
  const int64_t grain = GrainRows(b.norm.hidden) / blocks.rows_per_block + 1;
  ParallelFor(call, blocks.count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      float* sum = sums != nullptr ? sums + block * b.norm.hidden : nullptr;
      if (sum != nullptr) __builtin_memset(sum, 0, sizeof(float) * b.norm.hidden);
      const int64_t first = block * blocks.rows_per_block;
      const int64_t last = first + blocks.rows_per_block;
      for (int64_t row = first; row < last && row < b.norm.rows; ++row) {
        BackwardRow<X, DY>(b, row, sum);
      }
    }
  });
  // Over no rows too, where there is no workspace: the sum of nothing is 0.
  if (!IsAbsent(b.dweight)) SumRowBlocks(call, b.dweight, sums, blocks.count, b.norm.hidden);
}

// Both phases for any dtypes. `workspace` as BackwardWorkspaceBytes says.
inline int32_t RunForward(const FbCall& call, const ForwardCall& f) {
  DispatchFloat2(f.x.dtype, f.y.dtype, [&](auto x_tag, auto y_tag) {
    using X = typename decltype(x_tag)::type;
    using Y = typename decltype(y_tag)::type;
    ParallelFor(call, f.norm.rows, GrainRows(f.norm.hidden), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) ForwardRow<X, Y>(f, row);
    });
  });
  return 0;
}

inline int32_t RunBackward(const FbCall& call, const BackwardCall& b, void* workspace) {
  DispatchFloat2(b.x.dtype, b.dy.dtype, [&](auto x_tag, auto dy_tag) {
    using X = typename decltype(x_tag)::type;
    using DY = typename decltype(dy_tag)::type;
    BackwardRows<X, DY>(call, b, IsAbsent(b.dweight) ? nullptr : static_cast<float*>(workspace));
  });
  return 0;
}

}  // namespace fuseboard::rms_norm::FB_CPU_ISA

#endif  // KERNELS_RMS_NORM_RMS_NORM_CPU_ROWS_H_
