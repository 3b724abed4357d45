// The `rescale` entry of FbKernel (kernels/abi/kernel_abi.h): a gradient that a forward made, times
// the upstream gradient. For every library whose forward makes gradients.

#ifndef KERNELS_COMMON_RESCALE_H_
#define KERNELS_COMMON_RESCALE_H_

#include <stdint.h>

#include "kernels/abi/kernel_abi.h"

namespace fuseboard {

// FbEntry::reject_reason on CUDA.
const char* RejectRescaleCuda(const FbCall* call);

// FbEntry::workspace_bytes on CUDA: a counter for a large gradient, more than about 2 MB to each
// multiprocessor.
uint64_t RescaleWorkspaceBytes(const FbCall* call);

// FbEntry::launch on CUDA.
//
// Traffic: one read and one write of the gradient; with factor 1, 4 bytes. Determinism:
// elementwise; of a large gradient the counter decides which block takes what, not what becomes of
// it.
int32_t RescaleCuda(const FbCall* call, void* workspace);

// Loads every kernel of this file on the current device.
int32_t LoadRescaleKernels();

}  // namespace fuseboard

#endif  // KERNELS_COMMON_RESCALE_H_
