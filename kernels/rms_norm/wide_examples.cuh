// The rows of modulated_rms_norm for the kernels for wide rows: those of examples one after the
// other, whose columns are multiplied with (1 + scale) * (offset + weight), a row of scale per
// example. What a cluster keeps of an example serves many rows: those of the backward follow one
// another, so that few sums are left. The factors are kept in f32, which takes no arithmetic per
// row.

#ifndef KERNELS_RMS_NORM_WIDE_EXAMPLES_CUH_
#define KERNELS_RMS_NORM_WIDE_EXAMPLES_CUH_

#include "kernels/rms_norm/wide_ring.cuh"

namespace fuseboard::rms_norm {

// REQUIRES: fewer than 2^31 rows.
struct WideExamples {
  const void* scale;
  int64_t scale_stride;
  int32_t rows;          // Of each example.
  int32_t cluster_rows;  // Of each cluster; the first `rest` have one more.
  int32_t rest;
  int32_t step;  // From a cluster's row to its next: 1, or the number of clusters.
};

// The rows of a cluster, and the example of the first of them.
struct WideSpan {
  int32_t begin;
  int32_t rows;
  int32_t example;

  __device__ __forceinline__ static WideSpan Of(const WideExamples& of, int32_t cluster) {
    const int32_t begin = cluster * of.cluster_rows + min(cluster, of.rest);
    return {begin, of.cluster_rows + (cluster < of.rest ? 1 : 0), begin / of.rows};
  }
};

// The example that a role is at. What else it knows of them is in shared memory (WideSpan): beside
// its sums a thread has few registers left.
struct WideExample {
  int32_t number = 0;  // Of the cluster's.
  int32_t next = 0;    // The turn of the next example's first row.

  __device__ __forceinline__ void Start(const WideExamples& of, const WideSpan& span) {
    next = (span.example + 1) * of.rows - span.begin;
  }
  // Whether the row is the first of an example other than the cluster's first.
  __device__ __forceinline__ bool IsFirst(const WideExamples& of, const WideTurn& at) const {
    return number > 0 && static_cast<int32_t>(at.turn) == next - of.rows;
  }
  __device__ __forceinline__ bool Ends(const WideTurn& at) const {
    return static_cast<int32_t>(at.turn) + 1 == next;
  }
  // Whether the row is of the next example.
  __device__ __forceinline__ bool IsNext(const WideTurn& at) const {
    return static_cast<int32_t>(at.turn) == next;
  }
  __device__ __forceinline__ void GoOn(const WideExamples& of) {
    ++number;
    next += of.rows;
  }
  // Whether all of its rows are the cluster's.
  __device__ __forceinline__ bool IsWhole(const WideExamples& of, const WideSpan& span) const {
    return next >= of.rows && next <= span.rows;
  }
};

// The packs first, first + kStep, ... of a piece that a thread has, as many as are below `packs`;
// zeros beyond.
template <typename X, int kPacks, int kStep>
__device__ __forceinline__ void LoadStrided(const void* base, int64_t column, int first, int packs,
                                            Lanes<X, kPackLanes<X>> (&out)[kPacks]) {
  constexpr int kLanes = kPackLanes<X>;
  const X* from = static_cast<const X*>(base) + column + first * kLanes;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    out[p] = {};
    if (first + p * kStep < packs) out[p] = LoadLanes<X, kLanes>(from + p * kStep * kLanes);
  }
}

// Keeps a thread's packs of a piece of a row, which begins at `column`.
template <typename X, int kPacks, int kStep>
__device__ __forceinline__ void KeepPacks(uint4* to, const void* base, int64_t row, int column,
                                          int first, int packs) {
  constexpr int kLanes = kPackLanes<X>;
  Lanes<X, kLanes> held[kPacks];
  LoadStrided<X, kPacks, kStep>(base, row + column, first, packs, held);
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (first + p * kStep >= packs) break;
    StoreLanes<X, kLanes>(reinterpret_cast<X*>(to + first + p * kStep), held[p]);
  }
}

// Factors in shared memory: the lanes of a pack in runs of 16 bytes, `plane` packs apart, which
// threads side by side read without conflicts.
template <int kLanes>
__device__ __forceinline__ void LoadFactors(const uint4* at, int plane, float (&out)[kLanes]) {
#pragma unroll
  for (int i = 0; i < kLanes; i += 4) {
    float part[4];
    Unpack<float, 4>(LoadLanes<float, 4>(reinterpret_cast<const float*>(at + i / 4 * plane)), part);
#pragma unroll
    for (int j = 0; j < 4; ++j) out[i + j] = part[j];
  }
}

template <int kLanes>
__device__ __forceinline__ void StoreFactors(uint4* at, int plane, const float (&in)[kLanes]) {
#pragma unroll
  for (int i = 0; i < kLanes; i += 4) {
    const float part[4] = {in[i], in[i + 1], in[i + 2], in[i + 3]};
    StoreFloats<float, 4>(reinterpret_cast<float*>(at + i / 4 * plane), part);
  }
}

// Keeps the factors of a thread's packs of a piece of an example likewise, kAtOnce by kAtOnce.
template <typename X, int kStep, int kAtOnce, typename Args>
__device__ __forceinline__ void KeepFactors(uint4* to, int plane, const Args& args, int64_t example,
                                            int column, int first, int packs) {
  constexpr int kLanes = kPackLanes<X>;
  const bool has_weight = args.weight != nullptr;
#pragma unroll 1
  for (int at = first; at < packs; at += kAtOnce * kStep) {
    Lanes<X, kLanes> scale[kAtOnce], weight[kAtOnce];
    LoadStrided<X, kAtOnce, kStep>(args.examples.scale,
                                   example * args.examples.scale_stride + column, at, packs, scale);
    LoadStrided<X, kAtOnce, kStep>(args.weight, column, at, has_weight ? packs : 0, weight);
#pragma unroll
    for (int p = 0; p < kAtOnce; ++p) {
      if (at + p * kStep >= packs) break;
      float factor[kLanes], w[kLanes];
      Unpack<X, kLanes>(scale[p], factor);
      Unpack<X, kLanes>(weight[p], w);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        w[i] = has_weight ? args.offset + w[i] : 1.0f;
        factor[i] = fmaf(w[i], factor[i], w[i]);
      }
      StoreFactors<kLanes>(to + at + p * kStep, plane, factor);
    }
  }
}

// Stores what an example has added up to, [pieces][packs][lanes] of a thread, from `at` on; times
// offset + weight, if there is one.
template <typename X, int kStep, int kPieces, int kPacks, int kLanes>
__device__ __forceinline__ void StoreWhole(void* base, int64_t at, const void* weight, int column,
                                           float offset, int slot_packs, const WideSlice& slice,
                                           int first,
                                           const float (&sums)[kPieces][kPacks][kLanes]) {
#pragma unroll
  for (int i = 0; i < kPieces * kPacks; ++i) {
    const int pack = i % kPacks * kStep + first;
    if (pack >= slice.PacksOf(i / kPacks)) continue;
    const int from = (i / kPacks * slot_packs + pack) * kLanes;
    float v[kLanes];
#pragma unroll
    for (int j = 0; j < kLanes; ++j) v[j] = sums[i / kPacks][i % kPacks][j];
    if (weight != nullptr) {
      float w[kLanes];
      LoadFloats<X, kLanes>(static_cast<const X*>(weight) + column + from, w);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) v[j] *= offset + w[j];
    }
    StoreFloats<X, kLanes>(static_cast<X*>(base) + at + from, v);
  }
}

// Adds what an example has added up to, times 1 + scale, to what the same thread has left at `to`,
// unless it is the first. Two packs at once, where there are registers for them: loads follow the
// stores before them.
template <typename X, int kStep, int kPieces, int kPacks, int kLanes>
__device__ __forceinline__ void AddScaled(float* to, bool is_first, const WideExamples& of,
                                          int64_t example, int column, int slot_packs,
                                          const WideSlice& slice, int first,
                                          const float (&sums)[kPieces][kPacks][kLanes]) {
  constexpr int kAll = kPieces * kPacks;
  constexpr int kAtOnce = kPieces == 1 ? 2 : 1;
  const X* scale = static_cast<const X*>(of.scale) + example * of.scale_stride + column;
  const auto pack_of = [&](int i) { return i % kPacks * kStep + first; };
  const auto has = [&](int i) { return i < kAll && pack_of(i) < slice.PacksOf(i / kPacks); };
  const auto from_of = [&](int i) { return (i / kPacks * slot_packs + pack_of(i)) * kLanes; };
#pragma unroll
  for (int i = 0; i < kAll; i += kAtOnce) {
    float v[kAtOnce][kLanes] = {};
    Lanes<X, kLanes> scales[kAtOnce] = {};
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (!has(i + j)) continue;
      if (!is_first) LoadFloats<float, kLanes>(to + from_of(i + j), v[j]);
      scales[j] = LoadLanes<X, kLanes>(scale + from_of(i + j));
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (!has(i + j)) continue;
      float s[kLanes];
      Unpack<X, kLanes>(scales[j], s);
#pragma unroll
      for (int k = 0; k < kLanes; ++k) {
        v[j][k] += (1.0f + s[k]) * sums[(i + j) % kAll / kPacks][(i + j) % kPacks][k];
      }
      StoreFloats<float, kLanes>(to + from_of(i + j), v[j]);
    }
  }
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_WIDE_EXAMPLES_CUH_
