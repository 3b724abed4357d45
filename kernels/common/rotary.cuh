// Rotation of heads on the GPU: which runs of a head a thread takes, their factors, and the
// arithmetic. A run is kLanes consecutive elements; a thread has two of each head, far apart, so
// that neighbouring threads read and write neighbouring runs.
//
// Pairs lie across the two runs (half rotation; also interleaved element by element) or within each
// run (interleaved in runs: kWithin).

#ifndef KERNELS_COMMON_ROTARY_CUH_
#define KERNELS_COMMON_ROTARY_CUH_

#include "kernels/common/rotary.h"
#include "kernels/common/vector.cuh"

namespace fuseboard {

// ---- On the host ----

// Whether runs of `bytes` of every head of `heads` are aligned.
inline bool IsAlignedHeads(const Heads& heads, const Rotation& r, int element_bytes, int bytes) {
  const auto whole = [&](int64_t size, int64_t stride) {
    return size <= 1 || stride * element_bytes % bytes == 0;
  };
  return reinterpret_cast<uintptr_t>(heads.base) % static_cast<uintptr_t>(bytes) == 0 &&
         whole(r.batch, heads.batch_stride) && whole(heads.count, heads.head_stride) &&
         whole(r.positions, heads.position_stride);
}

// Whether heads can be cut into runs of `lanes` elements: none is partly rotated, and half
// rotation's second halves begin with a run.
inline bool HasRuns(const Rotation& r, int lanes) {
  const int rotated = r.interleaved ? 2 * r.pairs : r.pairs;
  return rotated % lanes == 0 && r.dim % lanes == 0;
}

// Whether the factors of a run lie in memory as a run, or as half of one per pair.
inline bool HasTableRuns(const Rotation& r, int lanes) {
  const int width = r.per_pair && r.interleaved ? lanes / 2 : lanes;
  const int element_bytes = r.table_dtype == FB_F32 ? 4 : 2;
  const int bytes = width * element_bytes < 16 ? width * element_bytes : 16;
  const int pairs_per_run = r.interleaved ? lanes / 2 : lanes;
  if (lanes == 1 || r.pairs % pairs_per_run != 0) return false;
  if (r.section_end[0] % pairs_per_run != 0 || r.section_end[1] % pairs_per_run != 0) return false;
  const auto aligned = [&](const FactorTable& table) {
    const auto whole = [&](int64_t stride) { return stride * element_bytes % bytes == 0; };
    return reinterpret_cast<uintptr_t>(table.base) % static_cast<uintptr_t>(bytes) == 0 &&
           table.column_stride == 1 && whole(table.stream_stride) && whole(table.batch_stride) &&
           whole(table.position_stride);
  };
  return aligned(r.cos) && aligned(r.sin);
}

// How many pairs of runs a head has: what its threads share.
inline int SlotsOf(const Rotation& r, int lanes) {
  const int across = r.interleaved && lanes > 1 ? 0 : r.pairs / lanes;
  const int rest = (r.dim - across * 2 * lanes) / lanes;
  return across + (rest + 1) / 2;
}

// ---- On the device ----

// The two runs of a slot. Without a second one, `second` is the first again, so that it may be
// read.
struct RotarySlot {
  int first;  // Columns of the head.
  int second;
  bool has_second;
  bool rotates_first;
  bool rotates_second;  // Only if rotates_first.
};

template <int kLanes, bool kWithin>
__device__ __forceinline__ RotarySlot RotarySlotOf(const Rotation& r, int slot) {
  // Runs from `begin` on are dealt out as two halves, one after the other.
  const auto dealt = [&](int begin, int index) {
    const int runs = (r.dim - begin) / kLanes;
    const int first = begin + index * kLanes;
    const int second = first + (runs + 1) / 2 * kLanes;
    const bool has_second = second < r.dim;
    return RotarySlot{first, has_second ? second : first, has_second, first < 2 * r.pairs,
                      has_second && second < 2 * r.pairs};
  };
  if constexpr (kWithin) {
    return dealt(0, slot);
  } else {
    const int across = r.pairs / kLanes;
    if (slot >= across) return dealt(2 * r.pairs, slot - across);
    const bool adjacent = kLanes == 1 && r.interleaved;
    const int first = adjacent ? 2 * slot : slot * kLanes;
    return {first, adjacent ? first + 1 : first + r.pairs, true, true, true};
  }
}

// The factors of a slot's runs: out = self * cos + other * sin, `other` being the other element of
// the pair. The sign of the rotation is in `sin`.
template <int kLanes>
struct RotaryFactors {
  float cos[2][kLanes];
  float sin[2][kLanes];
};

__device__ __forceinline__ int RotaryStream(const Rotation& r, int pair) {
  return (pair >= r.section_end[0] ? 1 : 0) + (pair >= r.section_end[1] ? 1 : 0);
}

// kCount columns of a table from `column` on. The first belongs to `pair`; kPerPair columns belong
// to each pair. kRuns: HasTableRuns.
template <typename T, int kCount, int kPerPair, bool kRuns>
__device__ __forceinline__ void LoadColumns(const Rotation& r, const FactorTable& table,
                                            int64_t row, int column, int pair,
                                            float (&out)[kCount]) {
  const T* base = static_cast<const T*>(table.base) + row;
  if constexpr (kRuns) {
    LoadFloats<T, kCount>(base + RotaryStream(r, pair) * table.stream_stride + column, out);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int stream = RotaryStream(r, pair + i / kPerPair);
      float value[1];
      LoadFloats<T, 1>(base + stream * table.stream_stride + (column + i) * table.column_stride,
                       value);
      out[i] = value[0];
    }
  }
}

// The factors, one for each element, of the run that begins at a head's column `begin`. `element`
// is which of a pair's elements the run holds; both if kWithin.
template <typename T, int kLanes, bool kWithin, bool kRuns>
__device__ __forceinline__ void LoadRunFactors(const Rotation& r, const FactorTable& table,
                                               int64_t row, int begin, int element,
                                               float (&out)[kLanes]) {
  if constexpr (kWithin) {
    const int pair = begin / 2;
    if (!r.per_pair) {
      LoadColumns<T, kLanes, 2, kRuns>(r, table, row, begin, pair, out);
      return;
    }
    float half[kLanes / 2];
    LoadColumns<T, kLanes / 2, 1, kRuns>(r, table, row, pair, pair, half);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) out[i] = half[i / 2];
  } else {
    const int pair = r.interleaved ? begin / 2 : begin - element * r.pairs;
    LoadColumns<T, kLanes, 1, kRuns>(r, table, row, r.per_pair ? pair : begin, pair, out);
  }
}

// All loads of a slot stand together, so that their latencies overlap.
template <typename T, int kLanes, bool kWithin, bool kRuns>
__device__ __forceinline__ void LoadSlotFactors(const Rotation& r, int64_t cos_row, int64_t sin_row,
                                                const RotarySlot& slot,
                                                RotaryFactors<kLanes>& out) {
  const int columns[] = {slot.first, slot.rotates_second ? slot.second : slot.first};
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    LoadRunFactors<T, kLanes, kWithin, kRuns>(r, r.cos, cos_row, columns[j], j, out.cos[j]);
    LoadRunFactors<T, kLanes, kWithin, kRuns>(r, r.sin, sin_row, columns[j], j, out.sin[j]);
  }
}

// The factors of a slot at a position; of no meaning where it does not rotate. `runs` is
// HasTableRuns, T the dtype of the heads.
template <typename T, int kLanes, bool kWithin>
__device__ __forceinline__ RotaryFactors<kLanes> LoadRotaryFactors(const Rotation& r, bool runs,
                                                                   int64_t batch, int64_t position,
                                                                   const RotarySlot& slot) {
  const int64_t cos_row = batch * r.cos.batch_stride + position * r.cos.position_stride;
  const int64_t sin_row = batch * r.sin.batch_stride + position * r.sin.position_stride;
  RotaryFactors<kLanes> f = {};
  if (!slot.rotates_first) return f;
  if (r.table_dtype == FB_F32) {
    if (runs) {
      LoadSlotFactors<float, kLanes, kWithin, true>(r, cos_row, sin_row, slot, f);
    } else {
      LoadSlotFactors<float, kLanes, kWithin, false>(r, cos_row, sin_row, slot, f);
    }
  } else if (runs) {
    LoadSlotFactors<T, kLanes, kWithin, true>(r, cos_row, sin_row, slot, f);
  } else {
    LoadSlotFactors<T, kLanes, kWithin, false>(r, cos_row, sin_row, slot, f);
  }
  // The transposed map takes the other element's sine, with the other sign.
  const auto sign = [&](float& a, float& b) {
    const float first = r.inverse ? b : -a;
    const float second = r.inverse ? -a : b;
    a = first, b = second;
  };
  if constexpr (kWithin) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < kLanes; i += 2) sign(f.sin[j][i], f.sin[j][i + 1]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) sign(f.sin[0][i], f.sin[1][i]);
  }
  return f;
}

// out = self * cos + other * sin. With kRound each operation is rounded to T, the last one by
// whoever stores `out`.
template <typename T, bool kRound, int kLanes>
__device__ __forceinline__ void RotateRun(const float (&self)[kLanes], const float (&other)[kLanes],
                                          const float (&cos)[kLanes], const float (&sin)[kLanes],
                                          float (&out)[kLanes]) {
  if constexpr (kRound) {
    float product[kLanes];
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      out[i] = __fmul_rn(self[i], cos[i]);
      product[i] = __fmul_rn(other[i], sin[i]);
    }
    RoundFloats<T, kLanes>(out);
    RoundFloats<T, kLanes>(product);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) out[i] = __fadd_rn(out[i], product[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) out[i] = fmaf(self[i], cos[i], other[i] * sin[i]);
  }
}

// Both runs of a slot.
template <typename T, bool kWithin, bool kRound, int kLanes>
__device__ __forceinline__ void RotateSlot(const RotaryFactors<kLanes>& f,
                                           const float (&x)[2][kLanes], float (&y)[2][kLanes]) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    if constexpr (kWithin) {
      float partner[kLanes];
#pragma unroll
      for (int i = 0; i < kLanes; ++i) partner[i] = x[j][i ^ 1];
      RotateRun<T, kRound>(x[j], partner, f.cos[j], f.sin[j], y[j]);
    } else {
      RotateRun<T, kRound>(x[j], x[1 - j], f.cos[j], f.sin[j], y[j]);
    }
  }
}

}  // namespace fuseboard

#endif  // KERNELS_COMMON_ROTARY_CUH_
