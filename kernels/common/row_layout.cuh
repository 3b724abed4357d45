// How a row of any base and length is cut: `units` aligned pieces of 16 bytes, and the `edges`
// fewer than 16 bytes before and after them, which are taken element by element.

#ifndef KERNELS_COMMON_ROW_LAYOUT_CUH_
#define KERNELS_COMMON_ROW_LAYOUT_CUH_

#include <stdint.h>

#include "kernels/common/vector.cuh"

namespace fuseboard {

// With kLanes_ = 1 every element is a unit: for rows that are not aligned like one another.
template <typename T, int kLanes_ = kPackLanes<T>>
struct RowLayout {
  static constexpr int kLanes = kLanes_;
  static_assert(kLanes == 1 || kLanes == kPackLanes<T>);

  int head;   // Elements before the first unit.
  int units;  // Fit an int: a row has at most 2^30 elements.
  int edges;  // Elements in no unit, before and after: at most 2 * (kLanes - 1).

  __device__ __forceinline__ RowLayout(const T* row, int cols) {
    const auto past = static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16);
    head = kLanes == 1 || past == 0 ? 0 : min((16 - past) / static_cast<int>(sizeof(T)), cols);
    units = (cols - head) / kLanes;
    edges = cols - units * kLanes;
  }

  __device__ __forceinline__ int ColumnOfUnit(int unit) const { return head + unit * kLanes; }
  __device__ __forceinline__ int ColumnOfEdge(int edge) const {
    return edge < head ? edge : units * kLanes + edge;
  }
};

}  // namespace fuseboard

#endif  // KERNELS_COMMON_ROW_LAYOUT_CUH_
