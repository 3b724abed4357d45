// qk_norm_rope on the CPU, compiled once per instruction set. A row is read twice, the second time
// from the cache. Sums run in interleaved parts, so that their order is the same for every
// instruction set and number of threads.

#include "kernels/qk_norm_rope/qk_norm_rope_cpu.h"

#include <cmath>

#include "kernels/common/dispatch.h"
#include "kernels/common/parallel.h"
#include "kernels/qk_norm_rope/head_spans.h"
#include "kernels/qk_norm_rope/qk_norm_rope_call.h"
#include "kernels/rms_norm/rms_norm_cpu_rows.h"

namespace fuseboard::qk_norm_rope::FB_CPU_ISA {
namespace {

using ::fuseboard::FB_CPU_ISA::RoundBlock;
using rms_norm::FB_CPU_ISA::AddProducts;
using rms_norm::FB_CPU_ISA::ReciprocalRoot;
using rms_norm::FB_CPU_ISA::SumLanes;
using rms_norm::FB_CPU_ISA::SumRowBlocks;

constexpr int kLanes = rms_norm::FB_CPU_ISA::kLanes;
constexpr int64_t kGrainElements = 32768;  // Work below this does not pay for another thread.

// The rows of q or k at one position.
struct Position {
  int64_t batch;
  int64_t position;

  template <typename T>
  T* Head(const Heads& heads, int64_t head) const {
    return static_cast<T*>(heads.base) + batch * heads.batch_stride +
           position * heads.position_stride + head * heads.head_stride;
  }
};

// Heads [first, last) of a position.
struct Row {
  int64_t first;
  int64_t last;
};

template <typename Fn>
void ForEachRow(const Call& call, const Side& side, const Fn& fn) {
  const int64_t step = call.norm.all_heads ? side.x.count : 1;
  for (int64_t head = 0; head < side.x.count; head += step) fn(Row{head, head + step});
}

// offset + weight of a span of a head; ones without a weight.
void LoadScale(const Call& call, const Side& side, int64_t head, const Span& span,
               SpanFloats& out) {
  const Rotation& r = call.rotation;
  if (!IsAbsent(side.weight)) {
    DispatchFloat(side.weight.dtype, [&](auto tag) {
      using W = decltype(tag)::type;
      const int64_t begin = call.norm.all_heads ? head * r.dim : 0;
      LoadSpan(r, span, static_cast<const W*>(side.weight.data) + begin, out);
    });
  }
  for (int j = 0; j < span.parts(); ++j) {
    for (int32_t i = 0; i < span.n; ++i) {
      out[j][i] = IsAbsent(side.weight) ? 1.0f : out[j][i] + call.norm.offset;
    }
  }
}

float RstdOf(const Call& call, const Side& side, double squares) {
  return ReciprocalRoot(squares / static_cast<double>(FeaturesOf(call, side)), call.norm.eps);
}

template <typename X, typename Y>
void ForwardHead(const Call& call, const Side& side, const Position& at, int64_t head, float rstd,
                 PositionFactors* factors) {
  const Rotation& r = call.rotation;
  ForEachSpan(r, [&](const Span& span) {
    SpanFloats v;
    SpanFloats scale;
    LoadSpan(r, span, at.Head<const X>(side.x, head), v);
    LoadScale(call, side, head, span, scale);
    for (int j = 0; j < span.parts(); ++j) {
      for (int32_t i = 0; i < span.n; ++i) v[j][i] *= rstd;
      if (call.norm.round_normed) RoundBlock<X>(v[j], span.n);
      for (int32_t i = 0; i < span.n; ++i) v[j][i] *= scale[j][i];
      if (call.norm.round_scaled) RoundBlock<Y>(v[j], span.n);
    }
    factors->Turn<Y>(span, v);
    StoreSpan(r, span, v, at.Head<Y>(side.out, head));
  });
}

template <typename X, typename Y>
void ForwardPosition(const Call& call, const Position& at) {
  const Rotation& r = call.rotation;
  PositionFactors factors(r, at.batch, at.position);
  for (const Side& side : call.side) {
    ForEachRow(call, side, [&](const Row& row) {
      float lanes[kLanes] = {};
      for (int64_t head = row.first; head < row.last; ++head) {
        ForEachSpan(r, [&](const Span& span) {
          SpanFloats x;
          LoadSpan(r, span, at.Head<const X>(side.x, head), x);
          for (int j = 0; j < span.parts(); ++j) AddProducts(x[j], x[j], span.n, lanes);
        });
      }
      const float rstd = RstdOf(call, side, SumLanes(lanes));
      for (int64_t head = row.first; head < row.last; ++head) {
        ForwardHead<X, Y>(call, side, at, head, rstd, &factors);
      }
    });
  }
}

// A span of a head as the backward needs it.
struct Loaded {
  SpanFloats x;
  SpanFloats dv;
  SpanFloats scale;
};

template <typename X, typename Y>
void LoadBackward(const Call& call, const Side& side, const Position& at, int64_t head,
                  const Span& span, PositionFactors* factors, Loaded* out) {
  const Rotation& r = call.rotation;
  LoadSpan(r, span, at.Head<const X>(side.x, head), out->x);
  LoadSpan(r, span, at.Head<const Y>(side.upstream, head), out->dv);
  LoadScale(call, side, head, span, out->scale);
  factors->Turn<Y>(span, out->dv);
  for (int j = 0; j < span.parts(); ++j) RoundBlock<Y>(out->dv[j], span.n);
}

// Makes in->x the gradient of x, and adds dv * n to `dweight` of the head unless that is NULL.
template <typename X>
void BackwardSpan(const Call& call, const Span& span, float rstd, float mean, float* dweight,
                  Loaded* in) {
  SpanFloats sum;
  if (dweight != nullptr) LoadSpan(call.rotation, span, dweight, sum);
  for (int j = 0; j < span.parts(); ++j) {
    float* x = in->x[j];
    const float* dv = in->dv[j];
    float n[kPairBlock];
    for (int32_t i = 0; i < span.n; ++i) n[i] = x[i] * rstd;
    for (int32_t i = 0; i < span.n; ++i) x[i] = rstd * (dv[i] * in->scale[j][i] - n[i] * mean);
    if (dweight == nullptr) continue;
    if (call.norm.round_normed) RoundBlock<X>(n, span.n);
    for (int32_t i = 0; i < span.n; ++i) sum[j][i] += dv[i] * n[i];
  }
  if (dweight != nullptr) StoreSpan(call.rotation, span, sum, dweight);
}

// `sums`: of the features, or NULL.
template <typename X, typename Y>
void BackwardRow(const Call& call, const Side& side, const Position& at, const Row& row,
                 PositionFactors* factors, float* sums) {
  const Rotation& r = call.rotation;
  Loaded in;
  float squares[kLanes] = {};
  float products[kLanes] = {};
  for (int64_t head = row.first; head < row.last; ++head) {
    ForEachSpan(r, [&](const Span& span) {
      LoadBackward<X, Y>(call, side, at, head, span, factors, &in);
      for (int j = 0; j < span.parts(); ++j) {
        AddProducts(in.x[j], in.x[j], span.n, squares);
        for (int32_t i = 0; i < span.n; ++i) in.dv[j][i] *= in.scale[j][i];
        AddProducts(in.dv[j], in.x[j], span.n, products);
      }
    });
  }
  const float rstd = RstdOf(call, side, SumLanes(squares));
  const auto mean = static_cast<float>(SumLanes(products) * static_cast<double>(rstd) /
                                       static_cast<double>(FeaturesOf(call, side)));
  for (int64_t head = row.first; head < row.last; ++head) {
    float* dweight = sums;
    if (sums != nullptr && call.norm.all_heads) dweight += head * r.dim;
    ForEachSpan(r, [&](const Span& span) {
      LoadBackward<X, Y>(call, side, at, head, span, factors, &in);
      BackwardSpan<X>(call, span, rstd, mean, dweight, &in);
      if (side.out.base != nullptr) StoreSpan(r, span, in.x, at.Head<X>(side.out, head));
    });
  }
}

// `sums`: of each side, of the features, or NULL.
template <typename X, typename Y>
void BackwardPosition(const Call& call, const Position& at, float* const (&sums)[2]) {
  PositionFactors factors(call.rotation, at.batch, at.position);
  for (int i = 0; i < 2; ++i) {
    const Side& side = call.side[i];
    ForEachRow(call, side,
               [&](const Row& row) { BackwardRow<X, Y>(call, side, at, row, &factors, sums[i]); });
  }
}

// The positions of one block, and their sums from 0.
template <typename X, typename Y>
void BackwardBlock(const Call& call, int64_t block, float* const (&sums)[2]) {
  const Rotation& r = call.rotation;
  const rms_norm::RowBlocks blocks = PositionBlocksOf(call);
  float* block_sums[2] = {};
  for (int i = 0; i < 2; ++i) {
    if (sums[i] == nullptr) continue;
    const int64_t features = FeaturesOf(call, call.side[i]);
    block_sums[i] = sums[i] + block * features;
    __builtin_memset(block_sums[i], 0, sizeof(float) * features);
  }
  const int64_t first = block * blocks.rows_per_block;
  const int64_t last = first + blocks.rows_per_block;
  for (int64_t at = first; at < last && at < r.batch * r.positions; ++at) {
    BackwardPosition<X, Y>(call, {at / r.positions, at % r.positions}, block_sums);
  }
}

// Elements of q and k at a position, at least 1.
int64_t ElementsOf(const Call& call) {
  return (call.side[0].x.count + call.side[1].x.count) * call.rotation.dim + 1;
}

// Calls fn(TypeTag<X>{}, TypeTag<Y>{}): results have the dtype of x or f32.
template <typename Fn>
void DispatchTypes(const Call& call, const Fn& fn) {
  DispatchFloat(call.dtype, [&](auto tag) {
    if (call.result_dtype == call.dtype) {
      fn(tag, tag);
    } else {
      fn(tag, TypeTag<float>{});
    }
  });
}

}  // namespace

int32_t ForwardCpu(const FbCall* raw, void* /*workspace*/) {
  const Call call = ForwardOf(*raw);
  const int64_t positions = call.rotation.positions;
  DispatchTypes(call, [&](auto x_tag, auto y_tag) {
    using X = decltype(x_tag)::type;
    using Y = decltype(y_tag)::type;
    ParallelFor(*raw, call.rotation.batch * positions, kGrainElements / ElementsOf(call) + 1,
                [&](int64_t begin, int64_t end) {
                  for (int64_t i = begin; i < end; ++i) {
                    ForwardPosition<X, Y>(call, {i / positions, i % positions});
                  }
                });
  });
  return 0;
}

int32_t BackwardCpu(const FbCall* raw, void* workspace) {
  const Call call = BackwardOf(*raw);
  const rms_norm::RowBlocks blocks = PositionBlocksOf(call);
  float* sums[2] = {};
  auto* next = static_cast<float*>(workspace);
  for (int i = 0; i < 2; ++i) {
    if (!IsAbsent(call.side[i].dweight)) sums[i] = next;
    if (next != nullptr) next += SumsOf(call, call.side[i]);
  }
  const int64_t grain = kGrainElements / ElementsOf(call) / blocks.rows_per_block + 1;
  DispatchTypes(call, [&](auto x_tag, auto y_tag) {
    using X = decltype(x_tag)::type;
    using Y = decltype(y_tag)::type;
    ParallelFor(*raw, blocks.count, grain, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) BackwardBlock<X, Y>(call, block, sums);
    });
  });
  for (int i = 0; i < 2; ++i) {
    const Side& side = call.side[i];
    if (IsAbsent(side.dweight)) continue;
    SumRowBlocks(*raw, side.dweight, sums[i], blocks.count, FeaturesOf(call, side));
  }
  return 0;
}

}  // namespace fuseboard::qk_norm_rope::FB_CPU_ISA
