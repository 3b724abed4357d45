// A head cut into spans that fit blocks of floats: pairs, and then the elements that are not
// rotated. For CPU kernel sources only (kernels/common/cpu_isa.h).

#ifndef KERNELS_QK_NORM_ROPE_HEAD_SPANS_H_
#define KERNELS_QK_NORM_ROPE_HEAD_SPANS_H_

#include "kernels/common/rotary_cpu.h"

namespace fuseboard::qk_norm_rope::FB_CPU_ISA {

using ::fuseboard::FB_CPU_ISA::kPairBlock;
using ::fuseboard::FB_CPU_ISA::LoadBlock;
using ::fuseboard::FB_CPU_ISA::LoadPairFactors;
using ::fuseboard::FB_CPU_ISA::LoadPairs;
using ::fuseboard::FB_CPU_ISA::PairFactors;
using ::fuseboard::FB_CPU_ISA::StoreBlock;
using ::fuseboard::FB_CPU_ISA::StorePairs;
using ::fuseboard::FB_CPU_ISA::TurnPairs;

using SpanFloats = float[2][kPairBlock];

struct Span {
  int32_t begin;  // A pair if rotated, else a column.
  int32_t n;
  bool rotated;

  // Rows of SpanFloats that are used.
  int parts() const { return rotated ? 2 : 1; }
};

template <typename Fn>
static inline void ForEachSpan(const Rotation& r, const Fn& fn) {
  const auto length = [](int32_t left) { return left < kPairBlock ? left : kPairBlock; };
  for (int32_t at = 0; at < r.pairs; at += kPairBlock) fn(Span{at, length(r.pairs - at), true});
  for (int32_t at = 2 * r.pairs; at < r.dim; at += kPairBlock) {
    fn(Span{at, length(r.dim - at), false});
  }
}

template <typename T>
static inline void LoadSpan(const Rotation& r, const Span& span, const T* head, SpanFloats& out) {
  if (span.rotated) {
    LoadPairs(r, head, span.begin, span.n, out);
  } else {
    LoadBlock(head + span.begin, out[0], span.n);
  }
}

template <typename T>
static inline void StoreSpan(const Rotation& r, const Span& span, const SpanFloats& values,
                             T* head) {
  if (span.rotated) {
    StorePairs(r, values, span.begin, span.n, head);
  } else {
    StoreBlock(values[0], head + span.begin, span.n);
  }
}

// The factors of the heads of one position: those of a span are converted once for all heads if a
// head has one span of pairs.
class PositionFactors {
 public:
  PositionFactors(const Rotation& r, int64_t batch, int64_t position)
      : r_(r), batch_(batch), position_(position) {}

  // Rotates a span in place. T: what products are rounded to.
  template <typename T>
  void Turn(const Span& span, SpanFloats& values) {
    if (!span.rotated) return;
    if (loaded_ != span.begin) {
      LoadPairFactors(r_, batch_, position_, span.begin, span.n, &factors_);
      loaded_ = span.begin;
    }
    SpanFloats turned;
    TurnPairs<T>(r_, factors_, values, span.n, turned);
    for (int j = 0; j < 2; ++j) {
      // NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign): TurnPairs fills all n.
      for (int32_t i = 0; i < span.n; ++i) values[j][i] = turned[j][i];
    }
  }

 private:
  const Rotation& r_;
  int64_t batch_;
  int64_t position_;
  int32_t loaded_ = -1;
  PairFactors factors_;
};

}  // namespace fuseboard::qk_norm_rope::FB_CPU_ISA

#endif  // KERNELS_QK_NORM_ROPE_HEAD_SPANS_H_
