// The CPU half of qk_norm_rope's table, once per instruction set (kernels/common/cpu_isa.h).

#ifndef KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_CPU_H_
#define KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_CPU_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/qk_norm_rope/qk_norm_rope_call.h"
#include "kernels/rms_norm/rms_norm_cpu.h"

namespace fuseboard::qk_norm_rope {

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

// A weight's gradient is summed per block of positions and then over the blocks, which depend on
// the number of positions alone.
inline rms_norm::RowBlocks PositionBlocksOf(const Call& call) {
  return rms_norm::RowBlocksOf(call.rotation.batch * call.rotation.positions);
}

// Floats for the sums of a side; those of q come first.
inline int64_t SumsOf(const Call& call, const Side& side) {
  return IsAbsent(side.dweight) ? 0 : PositionBlocksOf(call).count * FeaturesOf(call, side);
}

inline uint64_t BackwardCpuWorkspace(const FbCall* raw) {
  const Call call = BackwardOf(*raw);
  return static_cast<uint64_t>(SumsOf(call, call.side[0]) + SumsOf(call, call.side[1])) *
         sizeof(float);
}

}  // namespace fuseboard::qk_norm_rope

#endif  // KERNELS_QK_NORM_ROPE_QK_NORM_ROPE_CPU_H_
