// The CPU half of rms_norm's table, once per instruction set (kernels/common/cpu_isa.h).

#ifndef KERNELS_RMS_NORM_RMS_NORM_CPU_H_
#define KERNELS_RMS_NORM_RMS_NORM_CPU_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/rms_norm/rms_norm_call.h"

namespace fuseboard::rms_norm {

namespace baseline {
int32_t ForwardCpu(const FbCall* call, void* workspace);
int32_t BackwardCpu(const FbCall* call, void* workspace);
}  // namespace baseline

namespace avx2 {
int32_t ForwardCpu(const FbCall* call, void* workspace);
int32_t BackwardCpu(const FbCall* call, void* workspace);
}  // namespace avx2

namespace avx512 {
int32_t ForwardCpu(const FbCall* call, void* workspace);
int32_t BackwardCpu(const FbCall* call, void* workspace);
}  // namespace avx512

// dweight is summed per block of rows and then over the blocks. The blocks depend on the number of
// rows alone, so that the number of threads does not change a bit.
struct RowBlocks {
  int64_t rows_per_block;
  int64_t count;
};

constexpr RowBlocks RowBlocksOf(int64_t rows) {
  constexpr int64_t kMaxBlocks = 64;  // 64 rows of f32 are the workspace.
  constexpr int64_t kMinRows = 16;
  const int64_t spread = (rows + kMaxBlocks - 1) / kMaxBlocks;
  const int64_t per_block = spread > kMinRows ? spread : kMinRows;
  return {per_block, (rows + per_block - 1) / per_block};
}

// Room for the sums of the row blocks.
inline uint64_t BackwardCpuWorkspaceOf(const BackwardCall& b) {
  if (IsAbsent(b.dweight)) return 0;
  return static_cast<uint64_t>(RowBlocksOf(b.norm.rows).count * b.norm.hidden) * sizeof(float);
}

}  // namespace fuseboard::rms_norm

#endif  // KERNELS_RMS_NORM_RMS_NORM_CPU_H_
