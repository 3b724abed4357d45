// Rotation of one head on the CPU, in blocks of floats that stay in the L1 cache. For CPU kernel
// sources only: everything lives in the namespace of the instruction set it is compiled for
// (cpu_isa.h).

#ifndef KERNELS_COMMON_ROTARY_CPU_H_
#define KERNELS_COMMON_ROTARY_CPU_H_

#include "kernels/common/cpu_float.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/rotary.h"

namespace fuseboard::FB_CPU_ISA {

inline constexpr int32_t kPairBlock = 256;  // 1 KiB of floats; a dozen such buffers are live.

// The factors of up to kPairBlock pairs at one position, for the two elements of each:
// out[j] = x[j] * cos[j] + x[1 - j] * sin[j]. The sign of the rotation is in `sin`.
struct PairFactors {
  float cos[2][kPairBlock];
  float sin[2][kPairBlock];
};

template <typename T>
static inline void LoadFactorColumn(const Rotation& r, const FactorTable& table, int64_t row,
                                    int32_t begin, int32_t n, int element, float* out) {
  const T* base = static_cast<const T*>(table.base) + row;
  // The column of pair i is step * i + first.
  const int64_t step = r.interleaved && !r.per_pair ? 2 : 1;
  const int64_t first = r.per_pair ? 0 : (r.interleaved ? element : element * int64_t{r.pairs});
  for (int32_t i = 0; i < n; ++i) {
    const int32_t pair = begin + i;
    const int stream = (pair >= r.section_end[0] ? 1 : 0) + (pair >= r.section_end[1] ? 1 : 0);
    out[i] =
        ToFloat(base[stream * table.stream_stride + (step * pair + first) * table.column_stride]);
  }
}

// The factors of the pairs [begin, begin + n).
static inline void LoadPairFactors(const Rotation& r, int64_t batch, int64_t position,
                                   int32_t begin, int32_t n, PairFactors* out) {
  const auto row = [&](const FactorTable& table) {
    return batch * table.batch_stride + position * table.position_stride;
  };
  DispatchFloat(r.table_dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int element = 0; element < 2; ++element) {
      // A gradient's map is the transposed one: each element takes the other's sine.
      const int of = r.inverse ? 1 - element : element;
      LoadFactorColumn<T>(r, r.cos, row(r.cos), begin, n, element, out->cos[element]);
      LoadFactorColumn<T>(r, r.sin, row(r.sin), begin, n, of, out->sin[element]);
    }
  });
  float* negative = out->sin[r.inverse ? 1 : 0];
  for (int32_t i = 0; i < n; ++i) negative[i] = -negative[i];
}

// out = self * cos + other * sin, in the order and roundings of separate operators. The products
// are rounded to T with `round`.
template <typename T>
[[gnu::always_inline]] inline void RotateBlock(const float* self, const float* other,
                                               const float* cos, const float* sin, bool round,
                                               int32_t n, float* __restrict__ out) {
  float product[kPairBlock];
  for (int32_t i = 0; i < n; ++i) product[i] = other[i] * sin[i];
  for (int32_t i = 0; i < n; ++i) out[i] = self[i] * cos[i];
  if (round) {
    RoundBlock<T>(product, n);
    RoundBlock<T>(out, n);
  }
  for (int32_t i = 0; i < n; ++i) out[i] += product[i];
}

// The pairs [begin, begin + n) of a head: x[j] gets the element j of each.
template <typename T>
static inline void LoadPairs(const Rotation& r, const T* head, int32_t begin, int32_t n,
                             float (&x)[2][kPairBlock]) {
  if (!r.interleaved) {
    LoadBlock(head + begin, x[0], n);
    LoadBlock(head + r.pairs + begin, x[1], n);
    return;
  }
  float both[2 * kPairBlock];
  LoadBlock(head + 2 * begin, both, 2 * n);
  // NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign): LoadBlock fills all 2 * n.
  for (int32_t i = 0; i < n; ++i) x[0][i] = both[2 * i], x[1][i] = both[2 * i + 1];
}

template <typename T>
static inline void StorePairs(const Rotation& r, const float (&y)[2][kPairBlock], int32_t begin,
                              int32_t n, T* head) {
  if (!r.interleaved) {
    StoreBlock(y[0], head + begin, n);
    StoreBlock(y[1], head + r.pairs + begin, n);
    return;
  }
  float both[2 * kPairBlock];
  for (int32_t i = 0; i < n; ++i) both[2 * i] = y[0][i], both[2 * i + 1] = y[1][i];
  StoreBlock(both, head + 2 * begin, 2 * n);
}

// T: what products are rounded to.
template <typename T>
static inline void TurnPairs(const Rotation& r, const PairFactors& factors,
                             const float (&x)[2][kPairBlock], int32_t n,
                             float (&y)[2][kPairBlock]) {
  for (int j = 0; j < 2; ++j) {
    RotateBlock<T>(x[j], x[1 - j], factors.cos[j], factors.sin[j], r.round_products, n, y[j]);
  }
}

// Rotates the pairs [begin, begin + n) of a head from `in` to `out`.
template <typename T>
static inline void RotatePairs(const Rotation& r, const PairFactors& factors, const T* in,
                               int32_t begin, int32_t n, T* out) {
  float x[2][kPairBlock];
  float y[2][kPairBlock];
  LoadPairs(r, in, begin, n, x);
  TurnPairs<T>(r, factors, x, n, y);
  StorePairs(r, y, begin, n, out);
}

}  // namespace fuseboard::FB_CPU_ISA

#endif  // KERNELS_COMMON_ROTARY_CPU_H_
