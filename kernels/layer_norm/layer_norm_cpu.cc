// LayerNorm on the CPU, compiled once per instruction set, in blocks of floats that stay in the L1
// cache. Sums run in interleaved parts, so that their order is the same for every instruction set
// and number of threads.

#include "kernels/layer_norm/layer_norm_cpu.h"

#include <cmath>

#include "kernels/rms_norm/rms_norm_cpu_rows.h"

namespace fuseboard::layer_norm::FB_CPU_ISA {
namespace {

using namespace fuseboard::FB_CPU_ISA;            // NOLINT(google-build-using-namespace): blocks.
using namespace fuseboard::rms_norm::FB_CPU_ISA;  // NOLINT(google-build-using-namespace): rows.

// Adds a[i] into the lane i % kLanes.
void AddValues(const float* a, int64_t n, float* lanes) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane];
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += a[i];
}

template <typename X>
void ForwardRow(const ForwardCall& f, int64_t row) {
  const X* x = Row<const X>(f.x, row);
  X* y = Row<X>(f.y, row);
  float buffer[kBlock];
  float lanes[kLanes] = {};
  for (int64_t at = 0; at < f.hidden; at += kBlock) {
    const int64_t n = BlockLength(at, f.hidden);
    AddValues(ViewBlock(x + at, buffer, n), n, lanes);
  }
  const auto hidden = static_cast<double>(f.hidden);
  const auto mean = static_cast<float>(SumLanes(lanes) / hidden);

  // The first mean is off where values are many and large; what is left over it is its error.
  float left[kLanes] = {};
  float squares[kLanes] = {};
  for (int64_t at = 0; at < f.hidden; at += kBlock) {
    const int64_t n = BlockLength(at, f.hidden);
    const float* values = ViewBlock(x + at, buffer, n);
    for (int64_t i = 0; i < n; ++i) buffer[i] = values[i] - mean;
    AddValues(buffer, n, left);
    AddProducts(buffer, buffer, n, squares);
  }
  const double exact_shift = SumLanes(left) / hidden;
  const auto shift = static_cast<float>(exact_shift);
  const double variance = SumLanes(squares) / hidden - exact_shift * exact_shift;
  const float rstd = ReciprocalRoot(variance > 0.0 ? variance : 0.0, f.eps);
  if (!IsAbsent(f.mean)) static_cast<float*>(f.mean.data)[row] = mean + shift;
  if (!IsAbsent(f.rstd)) static_cast<float*>(f.rstd.data)[row] = rstd;

  float parameter[kBlock];
  for (int64_t at = 0; at < f.hidden; at += kBlock) {
    const int64_t n = BlockLength(at, f.hidden);
    const float* values = ViewBlock(x + at, buffer, n);
    for (int64_t i = 0; i < n; ++i) buffer[i] = (values[i] - mean - shift) * rstd;
    if (!IsAbsent(f.weight)) {
      LoadWeight(f.weight, 0.0f, at, n, parameter);
      for (int64_t i = 0; i < n; ++i) buffer[i] *= parameter[i];
    }
    if (!IsAbsent(f.bias)) {
      LoadWeight(f.bias, 0.0f, at, n, parameter);
      for (int64_t i = 0; i < n; ++i) buffer[i] += parameter[i];
    }
    StoreBlock(buffer, y + at, n);
  }
}

struct RowMeans {
  float g;            // mean of dy * weight
  float g_by_normed;  // mean of dy * weight * n
};

template <typename X>
RowMeans MeansOf(const BackwardCall& b, int64_t row, float mean, float rstd) {
  const X* x = Row<const X>(b.x, row);
  const X* dy = Row<const X>(b.dy, row);
  float x_buffer[kBlock];
  float dy_buffer[kBlock];
  float g[kBlock];
  float sums[kLanes] = {};
  float products[kLanes] = {};
  for (int64_t at = 0; at < b.hidden; at += kBlock) {
    const int64_t n = BlockLength(at, b.hidden);
    const float* xs = ViewBlock(x + at, x_buffer, n);
    const float* dys = ViewBlock(dy + at, dy_buffer, n);
    LoadWeight(b.weight, 0.0f, at, n, g);
    for (int64_t i = 0; i < n; ++i) g[i] *= dys[i];
    for (int64_t i = 0; i < n; ++i) x_buffer[i] = (xs[i] - mean) * rstd;
    AddValues(g, n, sums);
    AddProducts(g, x_buffer, n, products);
  }
  const auto hidden = static_cast<double>(b.hidden);
  return {static_cast<float>(SumLanes(sums) / hidden),
          static_cast<float>(SumLanes(products) / hidden)};
}

// dx of a row if wanted, and its parts of dweight and dbias added to [hidden] unless NULL.
template <typename X>
void BackwardRow(const BackwardCall& b, int64_t row, float* dweight, float* dbias) {
  const float mean = static_cast<const float*>(b.mean.data)[row];
  const float rstd = static_cast<const float*>(b.rstd.data)[row];
  const bool has_dx = !IsAbsent(b.dx);
  const RowMeans means = has_dx ? MeansOf<X>(b, row, mean, rstd) : RowMeans{};
  const X* x = Row<const X>(b.x, row);
  const X* dy = Row<const X>(b.dy, row);
  float normed[kBlock];
  float dy_buffer[kBlock];
  float dx[kBlock];
  for (int64_t at = 0; at < b.hidden; at += kBlock) {
    const int64_t n = BlockLength(at, b.hidden);
    const float* xs = ViewBlock(x + at, normed, n);
    const float* dys = ViewBlock(dy + at, dy_buffer, n);
    for (int64_t i = 0; i < n; ++i) normed[i] = (xs[i] - mean) * rstd;
    if (has_dx) {
      LoadWeight(b.weight, 0.0f, at, n, dx);
      for (int64_t i = 0; i < n; ++i) {
        dx[i] = rstd * (dys[i] * dx[i] - means.g - normed[i] * means.g_by_normed);
      }
      StoreBlock(dx, Row<X>(b.dx, row) + at, n);
    }
    if (dweight != nullptr) {
      for (int64_t i = 0; i < n; ++i) dweight[at + i] += dys[i] * normed[i];
    }
    if (dbias != nullptr) {
      for (int64_t i = 0; i < n; ++i) dbias[at + i] += dys[i];
    }
  }
}

template <typename X>
void BackwardRows(const FbCall& call, const BackwardCall& b, float* weight_sums, float* bias_sums) {
  const rms_norm::RowBlocks blocks = rms_norm::RowBlocksOf(b.rows);
  const int64_t grain = GrainRows(b.hidden) / blocks.rows_per_block + 1;
  ParallelFor(call, blocks.count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const auto cleared = [&](float* sums) -> float* {
        if (sums == nullptr) return nullptr;
        float* sum = sums + block * b.hidden;
        __builtin_memset(sum, 0, sizeof(float) * static_cast<size_t>(b.hidden));
        return sum;
      };
      float* dweight = cleared(weight_sums);
      float* dbias = cleared(bias_sums);
      const int64_t first = block * blocks.rows_per_block;
      const int64_t last = first + blocks.rows_per_block;
      for (int64_t row = first; row < last && row < b.rows; ++row) {
        BackwardRow<X>(b, row, dweight, dbias);
      }
    }
  });
  // Over no rows too, where there is no workspace: the sum of nothing is 0.
  if (!IsAbsent(b.dweight)) SumRowBlocks(call, b.dweight, weight_sums, blocks.count, b.hidden);
  if (!IsAbsent(b.dbias)) SumRowBlocks(call, b.dbias, bias_sums, blocks.count, b.hidden);
}

}  // namespace

int32_t ForwardCpu(const FbCall* call, void* /*workspace*/) {
  const ForwardCall f = ForwardOf(*call);
  DispatchFloat(f.x.dtype, [&](auto tag) {
    using X = decltype(tag)::type;
    ParallelFor(*call, f.rows, GrainRows(f.hidden), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) ForwardRow<X>(f, row);
    });
  });
  return 0;
}

int32_t BackwardCpu(const FbCall* call, void* workspace) {
  const BackwardCall b = BackwardOf(*call);
  auto* const sums = static_cast<float*>(workspace);
  const int64_t of_one = rms_norm::RowBlocksOf(b.rows).count * b.hidden;
  float* const weight_sums = IsAbsent(b.dweight) || sums == nullptr ? nullptr : sums;
  float* const bias_sums =
      IsAbsent(b.dbias) || sums == nullptr ? nullptr : sums + (IsAbsent(b.dweight) ? 0 : of_one);
  DispatchFloat(b.x.dtype, [&](auto tag) {
    BackwardRows<typename decltype(tag)::type>(*call, b, weight_sums, bias_sums);
  });
  return 0;
}

}  // namespace fuseboard::layer_norm::FB_CPU_ISA
