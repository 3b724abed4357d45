// The ring in shared memory that the backward kernels of the norms fetch their rows into.

#ifndef KERNELS_RMS_NORM_BACKWARD_RING_CUH_
#define KERNELS_RMS_NORM_BACKWARD_RING_CUH_

#include "kernels/common/vector.cuh"

namespace fuseboard::rms_norm {

// The shared memory of a block: a ring of `stages` rows of x and dy, then one row of f32. Each
// thread has its own 16-byte slots, side by side with its neighbours' (no bank conflicts), and
// touches no other's, so that the ring needs no barrier.
template <typename X, typename DY, bool kAdd, int kPacks>
struct BackwardRing {
  static constexpr int kLanes = kPackLanes<X>;
  static constexpr int kDyChunks = static_cast<int>(sizeof(DY) / sizeof(X));
  static constexpr int kStageSlots = kPacks * (1 + kDyChunks + (kAdd ? 1 : 0));
  static constexpr int kFloatChunks = kLanes / 4;

  uint4* base;
  int threads;
  int thread;

  __device__ uint4* XSlot(int stage, int p) const {
    return base + (stage * kStageSlots + p) * threads + thread;
  }
  __device__ uint4* DySlot(int stage, int p, int chunk) const {
    return base + (stage * kStageSlots + kPacks + p * kDyChunks + chunk) * threads + thread;
  }
  __device__ uint4* DsumSlot(int stage, int p) const {
    return base + (stage * kStageSlots + kPacks * (1 + kDyChunks) + p) * threads + thread;
  }
  // Of thread `of` in the block.
  __device__ float4* FloatSlot(int stages, int p, int chunk, int of) const {
    return reinterpret_cast<float4*>(
        base + (stages * kStageSlots + p * kFloatChunks + chunk) * threads + of);
  }

  __device__ Lanes<X, kLanes> RowX(int stage, int p) const {
    return LoadLanes<X, kLanes>(reinterpret_cast<const X*>(XSlot(stage, p)));
  }
  __device__ Lanes<X, kLanes> RowDsum(int stage, int p) const {
    return LoadLanes<X, kLanes>(reinterpret_cast<const X*>(DsumSlot(stage, p)));
  }
  __device__ Lanes<DY, kLanes> RowDy(int stage, int p) const {
    Lanes<DY, kLanes> lanes;
#pragma unroll
    for (int c = 0; c < kDyChunks; ++c) {
      const uint4 v = *DySlot(stage, p, c);
      lanes.word[4 * c] = v.x, lanes.word[4 * c + 1] = v.y;
      lanes.word[4 * c + 2] = v.z, lanes.word[4 * c + 3] = v.w;
    }
    return lanes;
  }
  __device__ void LoadFloatRow(int stages, int p, int of, float (&out)[kLanes]) const {
#pragma unroll
    for (int c = 0; c < kFloatChunks; ++c) {
      const float4 v = *FloatSlot(stages, p, c, of);
      out[4 * c] = v.x, out[4 * c + 1] = v.y, out[4 * c + 2] = v.z, out[4 * c + 3] = v.w;
    }
  }
  __device__ void StoreFloatRow(int stages, int p, const float (&in)[kLanes]) const {
#pragma unroll
    for (int c = 0; c < kFloatChunks; ++c) {
      *FloatSlot(stages, p, c, thread) =
          make_float4(in[4 * c], in[4 * c + 1], in[4 * c + 2], in[4 * c + 3]);
    }
  }
  // Starts copying pack `p` of a row, whose pack in the row is `pack`.
  __device__ void Fetch(int stage, int p, const X* x, const DY* dy, const X* dsum, int pack) const {
    CopyAsync16(XSlot(stage, p), x + pack * kLanes);
    if (kAdd && dsum != nullptr) CopyAsync16(DsumSlot(stage, p), dsum + pack * kLanes);
#pragma unroll
    for (int c = 0; c < kDyChunks; ++c) {
      CopyAsync16(DySlot(stage, p, c), reinterpret_cast<const uint4*>(dy + pack * kLanes) + c);
    }
  }
};

// Waits until the oldest of `stages` committed rows is in shared memory.
__device__ __forceinline__ void WaitForStage(int stages) {
  if (stages == 1) {
    CopyAsyncWait<0>();
  } else if (stages == 2) {
    CopyAsyncWait<1>();
  } else {
    CopyAsyncWait<2>();
  }
}

// A thread's packs of one row, taken out of the ring before the row's sum is known: the next row
// can be fetched into their slots while the threads wait for each other. Without kHolds, for want
// of registers, they are taken from their slots twice.
template <typename X, typename DY, bool kAdd, int kPacks, bool kHolds>
struct HeldRow {
  using Ring = BackwardRing<X, DY, kAdd, kPacks>;
  static constexpr int kLanes = Ring::kLanes;
  static constexpr int kHeld = kHolds ? kPacks : 1;

  Lanes<X, kLanes> x[kHeld];
  Lanes<DY, kLanes> dy[kHeld];
  Lanes<X, kLanes> dsum[kAdd ? kHeld : 1];

  __device__ __forceinline__ void Take(const Ring& ring, int stage, int p, bool has_dsum) {
    const int at = kHolds ? p : 0;
    x[at] = ring.RowX(stage, p);
    dy[at] = ring.RowDy(stage, p);
    if (kAdd && has_dsum) dsum[at] = ring.RowDsum(stage, p);
  }
  __device__ __forceinline__ void LoadX(int p, float (&out)[kLanes]) const {
    Unpack<X, kLanes>(x[kHolds ? p : 0], out);
  }
  __device__ __forceinline__ void LoadDy(int p, float (&out)[kLanes]) const {
    Unpack<DY, kLanes>(dy[kHolds ? p : 0], out);
  }
  __device__ __forceinline__ void LoadDsum(int p, float (&out)[kLanes]) const {
    Unpack<X, kLanes>(dsum[kAdd && kHolds ? p : 0], out);
  }
};

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_BACKWARD_RING_CUH_
