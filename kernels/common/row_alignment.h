// Whether the rows of several matrices can be taken in the same 16-byte units (row_layout.cuh):
// then each row of one starts as far past a 16-byte boundary as the same row of every other. Host
// code; looks at metadata only.

#ifndef KERNELS_COMMON_ROW_ALIGNMENT_H_
#define KERNELS_COMMON_ROW_ALIGNMENT_H_

#include <stdint.h>

#include "kernels/abi/kernel_abi.h"

namespace fuseboard {

class RowAlignment {
 public:
  // REQUIRES: a matrix of f32, f16 or bf16 with as many rows as the others.
  void Add(const FbTensor& matrix) {
    const int64_t bytes = matrix.dtype == FB_F32 ? 4 : 2;
    const auto base = static_cast<int64_t>(reinterpret_cast<uintptr_t>(matrix.data) % 16);
    // With one row (or none) the row stride is never used.
    const int64_t step = matrix.shape[0] <= 1 ? 0 : matrix.stride[0] * bytes % 16;
    if (base != 0 || step != 0) whole_ = false;
    if (base % bytes != 0) alike_ = false;
    if (has_first_ && (base != base_ || step != step_ || bytes != bytes_)) alike_ = false;
    has_first_ = true;
    base_ = base;
    step_ = step;
    bytes_ = bytes;
  }

  // Rows may be taken in units of 16 bytes and up to 15 bytes before and after them.
  bool alike() const { return alike_ || whole_; }
  // Every row starts on a boundary.
  bool whole() const { return whole_; }

 private:
  bool has_first_ = false;
  bool alike_ = true;
  bool whole_ = true;
  int64_t base_ = 0;
  int64_t step_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace fuseboard

#endif  // KERNELS_COMMON_ROW_ALIGNMENT_H_
