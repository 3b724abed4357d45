// The `inverse_divisor` and `total` entries of FbKernel (kernels/abi/kernel_abi.h): what a mean
// over the rows of a loss needs before and after them, in one launch each. With few rows a launch
// is longer than the work, and made of elementwise operations they would be ten.

#ifndef KERNELS_COMMON_ROW_TOTALS_H_
#define KERNELS_COMMON_ROW_TOTALS_H_

#include <stdint.h>

#include "kernels/abi/kernel_abi.h"

namespace fuseboard {

// One block does it; this many rows take it a few microseconds.
inline constexpr int64_t kMaxTotalRows = 32768;

// FbEntry::reject_reason and FbEntry::launch on CUDA. Determinism: sums in an order fixed by the
// number of rows.
const char* RejectInverseDivisorCuda(const FbCall* call);
int32_t InverseDivisorCuda(const FbCall* call, void* workspace);
const char* RejectTotalCuda(const FbCall* call);
int32_t TotalCuda(const FbCall* call, void* workspace);

// Loads every kernel of this file on the current device.
int32_t LoadRowTotalsKernels();

}  // namespace fuseboard

#endif  // KERNELS_COMMON_ROW_TOTALS_H_
