// Rows that begin anywhere, in the kernels of the norms that hold a row in registers: its body is
// in packs of 16 bytes as ever, and the fewer than a pack before and after it go to one thread
// each, an edge, from the row's last thread on: that one has fewer packs, if any has.
//
// REQUIRES: at least kMaxEdges threads per row, and tensors whose rows are aligned alike
// (row_alignment.h).

#ifndef KERNELS_RMS_NORM_ROW_EDGES_CUH_
#define KERNELS_RMS_NORM_ROW_EDGES_CUH_

#include "kernels/common/row_layout.cuh"
#include "kernels/common/vector.cuh"

namespace fuseboard::rms_norm {

inline constexpr int kMaxEdges = 14;    // Of 16-bit floats; of f32 6.
inline constexpr int kMaxEdgeRows = 8;  // Of a block.

// The edge of this thread, from 0, if it is below the number of the row's edges.
__device__ __forceinline__ int EdgeOfThread() {
  return static_cast<int>(blockDim.x - 1 - threadIdx.x);
}

// The first row of a block of a persistent grid whose blocks have rows of kClasses classes (a power
// of two), one each: rows kClasses apart, which begin equally far past a 16-byte boundary, so that
// a thread has the same columns of all of them. Thread y has the row y * kClasses further on. With
// one class a block's rows are neighbours. REQUIRES: a multiple of kClasses blocks.
template <int kClasses>
__device__ __forceinline__ int64_t FirstRowOf(uint32_t block) {
  if constexpr (kClasses == 1) return int64_t{block} * blockDim.y;
  return int64_t{block / kClasses} * (kClasses * blockDim.y) + block % kClasses;
}

// What a thread with an edge keeps of it, in shared memory: registers are those of all threads. In
// a forward kernel, of a row to a block:
struct ForwardEdge {
  int column;
  float x;
};

// In a backward kernel:
struct EdgeSlot {
  int column;
  float weight;
  float x;
  float dy;
  float dsum;
  float dweight;
  float dbias;
  // Of a stage: x, dy, dsum; in 16-bit floats the word with the edge in it.
  uint32_t fetched[3][3];
};

// The slots of a block, of which each thread touches its own until the rows have ended.
template <typename Slot = EdgeSlot, int kRows = kMaxEdgeRows>
struct RowEdges {
  Slot slot[kRows][kMaxEdges];

  __device__ __forceinline__ Slot& Own() { return slot[threadIdx.y][EdgeOfThread()]; }

  // The sums of a block's rows, from the first to the last, where blockDim.y > 1; all threads have
  // stored theirs, and a barrier has passed.
  __device__ __forceinline__ float SumOf(float Slot::*sum) const {
    float total = slot[0][EdgeOfThread()].*sum;
    for (int y = 1; y < static_cast<int>(blockDim.y); ++y) total += slot[y][EdgeOfThread()].*sum;
    return total;
  }
};

// Starts copying one element into a word of a slot: it arrives with the packs that are fetched at
// the same time, and takes no register until then.
template <typename T>
__device__ __forceinline__ void FetchEdge(uint32_t* word, const T* from) {
  const auto past = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from) % 4);
  CopyAsync4(word, reinterpret_cast<const char*>(from) - past, past + sizeof(T));
}

// The element in it, which lies in memory at `from`.
template <typename T>
__device__ __forceinline__ float FetchedEdge(uint32_t word, const T* from) {
  Lanes<T, 1> one;
  one.word[0] = word >> (reinterpret_cast<uintptr_t>(from) % 4 * 8);
  float v[1];
  Unpack<T, 1>(one, v);
  return v[0];
}

template <typename T>
__device__ __forceinline__ float FloatOf(const Lanes<T, 1>& one) {
  float v[1];
  Unpack<T, 1>(one, v);
  return v[0];
}

template <typename T>
__device__ __forceinline__ void StoreFloatAt(T* address, float value) {
  const float v[1] = {value};
  StoreFloats<T, 1>(address, v);
}

// A pack's part of a row of sums.
template <bool kUnaligned, int kLanes>
__device__ __forceinline__ void StorePartialPack(float* to, const float (&sums)[kLanes]) {
  if constexpr (kUnaligned) {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) to[i] = sums[i];
  } else {
    StoreFloats<float, kLanes>(to, sums);
  }
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_ROW_EDGES_CUH_
