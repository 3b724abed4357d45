// Which calls of cross_entropy can run: the reject_reason of each phase. Reads metadata only.

#ifndef KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_CHECK_H_
#define KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_CHECK_H_

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::cross_entropy {

// NULL, or the sentence that says why not; the contract is kernels/abi/cross_entropy.h.
const char* ForwardRejectReason(const FbCall* call, int32_t device_type);
const char* BackwardRejectReason(const FbCall* call, int32_t device_type);

}  // namespace fuseboard::cross_entropy

#endif  // KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_CHECK_H_
