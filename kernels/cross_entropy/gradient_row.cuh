// Where a row's gradient goes, in the pieces of RowLayout.

#ifndef KERNELS_CROSS_ENTROPY_GRADIENT_ROW_CUH_
#define KERNELS_CROSS_ENTROPY_GRADIENT_ROW_CUH_

#include <stdint.h>

#include "kernels/common/row_layout.cuh"
#include "kernels/cross_entropy/row_math.cuh"

namespace fuseboard::cross_entropy {

// Stores a unit; element by element unless its place is aligned like the unit.
template <bool kAligned, typename T>
__device__ __forceinline__ void StoreUnit(T* address, const Lanes<T, kPackLanes<T>>& unit) {
  if constexpr (kAligned) {
    StoreLanes<T, kPackLanes<T>>(address, unit);
  } else {
    float x[kPackLanes<T>];
    Unpack<T, kPackLanes<T>>(unit, x);
#pragma unroll
    for (int i = 0; i < kPackLanes<T>; ++i) {
      const float one[1] = {x[i]};
      StoreFloats<T, 1>(address + i, one);
    }
  }
}

// Where a row's gradient goes. Whole units are stored if they are aligned there as they are in the
// logits, which is so in place and for like tensors.
template <typename T>
struct GradientRow {
  T* row;
  bool aligned;

  __device__ __forceinline__ GradientRow(const Problem& p, int64_t index, const T* logits_row)
      : row(static_cast<T*>(p.dlogits) + index * p.dlogits_stride),
        aligned((reinterpret_cast<uintptr_t>(row) - reinterpret_cast<uintptr_t>(logits_row)) % 16 ==
                0) {}

  __device__ __forceinline__ void Store(int column, const Lanes<T, kPackLanes<T>>& unit) const {
    if (aligned) {
      StoreUnit<true>(row + column, unit);
    } else {
      StoreUnit<false>(row + column, unit);
    }
  }
};

template <typename T>
__device__ __forceinline__ Lanes<T, kPackLanes<T>> ZeroUnit() {
  Lanes<T, kPackLanes<T>> unit;
#pragma unroll
  for (int i = 0; i < 4; ++i) unit.word[i] = 0;
  return unit;
}

// Fills units [first, end) of the gradient in steps of `step`, and the edge this thread has.
template <typename T>
__device__ __forceinline__ void StoreZeros(const RowLayout<T>& layout, const GradientRow<T>& out,
                                           int first, int end, int step, int edge) {
  for (int unit = first; unit < end; unit += step) {
    out.Store(layout.ColumnOfUnit(unit), ZeroUnit<T>());
  }
  const float zero[1] = {0.0f};
  if (edge < layout.edges) StoreFloats<T, 1>(out.row + layout.ColumnOfEdge(edge), zero);
}

}  // namespace fuseboard::cross_entropy

#endif  // KERNELS_CROSS_ENTROPY_GRADIENT_ROW_CUH_
