// GroupNorm on the CPU, compiled once per instruction set, in blocks of floats that stay in the L1
// cache. Sums run in 32 interleaved parts within a block and in double over blocks, so that their
// order is the same for every instruction set and number of threads.

#include "kernels/group_norm/group_norm_cpu.h"

#include <cmath>

#include "kernels/common/cpu_sum.h"
#include "kernels/rms_norm/rms_norm_cpu_rows.h"

namespace fuseboard::group_norm::FB_CPU_ISA {
namespace {

using namespace fuseboard::FB_CPU_ISA;            // NOLINT(google-build-using-namespace): blocks.
using namespace fuseboard::rms_norm::FB_CPU_ISA;  // NOLINT(google-build-using-namespace): blocks.

// An element of a vector that may be absent.
float ValueOr(float other, const FbTensor& vector, int64_t index) {
  if (IsAbsent(vector)) return other;
  float value = 0.0f;
  DispatchFloat(vector.dtype, [&](auto tag) {
    using W = decltype(tag)::type;
    LoadBlock(static_cast<const W*>(vector.data) + index, &value, 1);
  });
  return value;
}

template <typename X>
X* GroupOf(const FbTensor& tensor, const Shape& shape, int64_t group) {
  return static_cast<X*>(tensor.data) + group * shape.group_elements();
}

struct Statistics {
  float mean;
  float shift;  // To be taken from x - mean: what a mean in f32 is off by.
  float rstd;
};

template <typename X>
Statistics StatisticsOf(const X* x, int64_t elements, float eps) {
  float buffer[kBlock];
  const auto count = static_cast<double>(elements);
  double sum = 0.0;
  for (int64_t at = 0; at < elements; at += kBlock) {
    const int64_t n = BlockLength(at, elements);
    sum += SumBlock(ViewBlock(x + at, buffer, n), n);
  }
  const auto mean = static_cast<float>(sum / count);

  double left = 0.0;
  double squares = 0.0;
  for (int64_t at = 0; at < elements; at += kBlock) {
    const int64_t n = BlockLength(at, elements);
    const float* values = ViewBlock(x + at, buffer, n);
    for (int64_t i = 0; i < n; ++i) buffer[i] = values[i] - mean;
    left += SumBlock(buffer, n);
    for (int64_t i = 0; i < n; ++i) buffer[i] *= buffer[i];
    squares += SumBlock(buffer, n);
  }
  const double shift = left / count;
  const double variance = squares / count - shift * shift;
  const double rstd = 1.0 / std::sqrt((variance < 0.0 ? 0.0 : variance) + static_cast<double>(eps));
  return {mean, static_cast<float>(shift), static_cast<float>(rstd)};
}

template <typename X>
void ForwardGroup(const ForwardCall& f, int64_t group) {
  const X* x = GroupOf<const X>(f.x, f.shape, group);
  X* y = GroupOf<X>(f.y, f.shape, group);
  const auto [mean, shift, rstd] = StatisticsOf(x, f.shape.group_elements(), f.eps);
  if (!IsAbsent(f.mean)) static_cast<float*>(f.mean.data)[group] = mean + shift;
  if (!IsAbsent(f.rstd)) static_cast<float*>(f.rstd.data)[group] = rstd;

  const int64_t first = group % f.shape.groups * f.shape.group_channels();
  float buffer[kBlock];
  for (int64_t c = 0; c < f.shape.group_channels(); ++c) {
    const float scale = rstd * ValueOr(1.0f, f.weight, first + c);
    const float offset = ValueOr(0.0f, f.bias, first + c) - shift * scale;
    for (int64_t at = 0; at < f.shape.elements; at += kBlock) {
      const int64_t n = BlockLength(at, f.shape.elements);
      const int64_t begin = c * f.shape.elements + at;
      const float* values = ViewBlock(x + begin, buffer, n);
      for (int64_t i = 0; i < n; ++i) buffer[i] = (values[i] - mean) * scale + offset;
      StoreBlock(buffer, y + begin, n);
    }
  }
}

struct ChannelSums {
  double dy;
  double product;  // Of dy and x - mean.
};

template <typename X>
ChannelSums SumsOf(const X* dy, const X* x, int64_t elements, float mean) {
  float dy_buffer[kBlock];
  float x_buffer[kBlock];
  ChannelSums sums = {};
  for (int64_t at = 0; at < elements; at += kBlock) {
    const int64_t n = BlockLength(at, elements);
    const float* dys = ViewBlock(dy + at, dy_buffer, n);
    const float* xs = ViewBlock(x + at, x_buffer, n);
    sums.dy += SumBlock(dys, n);
    for (int64_t i = 0; i < n; ++i) x_buffer[i] = dys[i] * (xs[i] - mean);
    sums.product += SumBlock(x_buffer, n);
  }
  return sums;
}

// dx = dy * scale + (x - mean) * slope + offset of one channel.
struct Line {
  float scale;
  float mean;
  float slope;
  float offset;
};

template <typename X>
void WriteGradient(const X* dy, const X* x, X* dx, int64_t elements, const Line& line) {
  float dy_buffer[kBlock];
  float x_buffer[kBlock];
  for (int64_t at = 0; at < elements; at += kBlock) {
    const int64_t n = BlockLength(at, elements);
    const float* dys = ViewBlock(dy + at, dy_buffer, n);
    const float* xs = ViewBlock(x + at, x_buffer, n);
    for (int64_t i = 0; i < n; ++i) {
      x_buffer[i] = dys[i] * line.scale + ((xs[i] - line.mean) * line.slope + line.offset);
    }
    StoreBlock(x_buffer, dx + at, n);
  }
}

// dx of a group if wanted, and its channels' sums into [examples, channels] unless NULL.
template <typename X>
void BackwardGroup(const BackwardCall& b, int64_t group, float* dweight, float* dbias) {
  const int64_t elements = b.shape.elements;
  const X* dy = GroupOf<const X>(b.dy, b.shape, group);
  const X* x = GroupOf<const X>(b.x, b.shape, group);
  const float mean = static_cast<const float*>(b.mean.data)[group];
  const float rstd = static_cast<const float*>(b.rstd.data)[group];
  const int64_t first = group % b.shape.groups * b.shape.group_channels();
  double g_sum = 0.0;
  double product_sum = 0.0;
  for (int64_t c = 0; c < b.shape.group_channels(); ++c) {
    const ChannelSums sums = SumsOf(dy + c * elements, x + c * elements, elements, mean);
    const double product = sums.product * static_cast<double>(rstd);
    // All groups before this one, of all examples, are as many channels before.
    const int64_t at = group * b.shape.group_channels() + c;
    if (dweight != nullptr) dweight[at] = static_cast<float>(product);
    if (dbias != nullptr) dbias[at] = static_cast<float>(sums.dy);
    const auto weight = static_cast<double>(ValueOr(1.0f, b.weight, first + c));
    g_sum += weight * sums.dy;
    product_sum += weight * product;
  }
  if (IsAbsent(b.dx)) return;
  const auto count = static_cast<double>(b.shape.group_elements());
  const auto offset = static_cast<float>(-static_cast<double>(rstd) * g_sum / count);
  const auto slope = -rstd * rstd * static_cast<float>(product_sum / count);
  X* dx = GroupOf<X>(b.dx, b.shape, group);
  for (int64_t c = 0; c < b.shape.group_channels(); ++c) {
    const float scale = rstd * ValueOr(1.0f, b.weight, first + c);
    const int64_t at = c * elements;
    WriteGradient(dy + at, x + at, dx + at, elements, {scale, mean, slope, offset});
  }
}

}  // namespace

int32_t ForwardCpu(const FbCall* call, void* /*workspace*/) {
  const ForwardCall f = ForwardOf(*call);
  DispatchFloat(f.x.dtype, [&](auto tag) {
    using X = decltype(tag)::type;
    const int64_t grain = GrainRows(f.shape.group_elements());
    ParallelFor(*call, f.shape.all_groups(), grain, [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; ++group) ForwardGroup<X>(f, group);
    });
  });
  return 0;
}

int32_t BackwardCpu(const FbCall* call, void* workspace) {
  const BackwardCall b = BackwardOf(*call);
  if (IsAbsent(b.dx) && !b.has_parameters()) return 0;
  auto* const sums = static_cast<float*>(workspace);
  const int64_t of_one = b.shape.examples * b.shape.channels;
  float* const of_weight = IsAbsent(b.dweight) || sums == nullptr ? nullptr : sums;
  float* const of_bias =
      IsAbsent(b.dbias) || sums == nullptr ? nullptr : sums + (IsAbsent(b.dweight) ? 0 : of_one);
  DispatchFloat(b.x.dtype, [&](auto tag) {
    using X = decltype(tag)::type;
    const int64_t grain = GrainRows(b.shape.group_elements());
    ParallelFor(*call, b.shape.all_groups(), grain, [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; ++group) {
        BackwardGroup<X>(b, group, of_weight, of_bias);
      }
    });
  });
  // Over no examples too, where there is no workspace: the sum of nothing is 0.
  const int64_t examples = b.shape.examples;
  const int64_t channels = b.shape.channels;
  if (!IsAbsent(b.dweight)) SumRowBlocks(*call, b.dweight, of_weight, examples, channels);
  if (!IsAbsent(b.dbias)) SumRowBlocks(*call, b.dbias, of_bias, examples, channels);
  return 0;
}

}  // namespace fuseboard::group_norm::FB_CPU_ISA
