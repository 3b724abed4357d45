// Host code that both phases share: whether a block can hold the groups of a call, and the
// arguments and launches of the kernels that split them.

#ifndef KERNELS_GROUP_NORM_GROUP_NORM_LAUNCH_CUH_
#define KERNELS_GROUP_NORM_GROUP_NORM_LAUNCH_CUH_

#include <algorithm>
#include <initializer_list>

#include "kernels/common/dispatch.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/row_alignment.h"
#include "kernels/group_norm/group_norm_call.h"
#include "kernels/group_norm/group_norm_policy.h"
#include "kernels/group_norm/group_norm_split.cuh"

namespace fuseboard::group_norm {

inline int64_t LanesOf(const FbTensor& x) { return x.dtype == FB_F32 ? 4 : 8; }

inline bool IsAligned(const FbTensor& tensor) {
  return IsAbsent(tensor) || reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0;
}

// Packs of a group of x if a group may be held, else 0. `tensors`: all that have the shape of x.
inline int64_t HeldPacks(const FbTensor& x, const Shape& shape,
                         std::initializer_list<const FbTensor*> tensors) {
  const bool aligned =
      std::all_of(tensors.begin(), tensors.end(), [](auto* tensor) { return IsAligned(*tensor); });
  const int64_t packs = shape.group_elements() / LanesOf(x);
  const bool held = aligned && shape.elements % LanesOf(x) == 0 && packs <= kMaxHeldPacks &&
                    shape.group_channels() <= kMaxHeldChannels &&
                    shape.all_groups() * kMaxCluster <= kMaxBlocks;
  return held ? packs : 0;
}

// Whether all may be read and written in the same 16-byte units.
inline bool AreAlike(std::initializer_list<const FbTensor*> tensors) {
  RowAlignment alignment;
  for (const FbTensor* tensor : tensors) {
    if (IsAbsent(*tensor)) continue;
    FbTensor row = *tensor;
    row.shape[0] = 1;
    alignment.Add(row);
  }
  return alignment.alike();
}

inline SplitArgs SplitArgsOf(const Shape& shape, const Split& split) {
  SplitArgs args = {};
  args.channels = shape.channels;
  args.group_channels = shape.group_channels();
  args.groups = shape.groups;
  args.all_groups = shape.all_groups();
  args.elements = shape.elements;
  args.part = split.part;
  args.parts = split.parts;
  args.pieces = shape.examples * shape.channels * split.parts;
  return args;
}

using SplitKernel = void (*)(SplitArgs);

// A kernel over pieces.
inline cudaError_t LaunchPieces(SplitKernel kernel, const SplitArgs& args, const Split& split,
                                void* stream) {
  const LaunchShape shape = {.blocks = CeilDiv(args.pieces, split.parts_per_block),
                             .threads = dim3(split.threads, split.parts_per_block),
                             .stream = static_cast<cudaStream_t>(stream)};
  return LaunchKernel(kernel, shape, args);
}

// A kernel over groups, of whose pieces each is read by one thread.
inline cudaError_t LaunchGroups(SplitKernel kernel, const SplitArgs& args, void* stream) {
  const int threads = SumThreads(args.group_channels * args.parts);
  const int groups_per_block = 256 / threads;
  const LaunchShape shape = {
      .blocks = std::min(CeilDiv(args.all_groups, groups_per_block), kMaxBlocks),
      .threads = dim3(threads, groups_per_block),
      .stream = static_cast<cudaStream_t>(stream)};
  return LaunchKernel(kernel, shape, args);
}

}  // namespace fuseboard::group_norm

#endif  // KERNELS_GROUP_NORM_GROUP_NORM_LAUNCH_CUH_
