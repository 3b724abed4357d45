// Rotary position embedding as the kernels of rope and qk_norm_rope see it: tensors of heads, the
// tables of factors and which factor belongs to which element, and the checks of all that.

#ifndef KERNELS_COMMON_ROTARY_H_
#define KERNELS_COMMON_ROTARY_H_

#include "kernels/abi/kernel_abi.h"
#include "kernels/abi/rope.h"

namespace fuseboard {

// Streams of positions that a pair may take its factors from.
inline constexpr int64_t kRotaryStreams = 3;

// q, k or a gradient of theirs: [batch, heads, positions, dim] with stride 1 in dim.
struct Heads {
  void* base;  // NULL: absent, or without elements.
  int64_t count;
  int64_t batch_stride;
  int64_t head_stride;
  int64_t position_stride;
};

// cos or sin: [streams, 1 or batch, positions, width].
struct FactorTable {
  const void* base;
  int64_t stream_stride;
  int64_t batch_stride;  // 0 for a batch of 1.
  int64_t position_stride;
  int64_t column_stride;
};

// What is done to every head, whoever does it.
struct Rotation {
  FactorTable cos;
  FactorTable sin;
  int64_t batch;
  int64_t positions;
  int32_t dim;
  int32_t pairs;           // The first 2 * pairs elements of a head are rotated, the rest is not.
  int32_t section_end[2];  // Pairs from here on take stream 1, stream 2; `pairs` if there is none.
  int32_t table_dtype;
  bool interleaved;
  bool per_pair;        // Tables have one column per pair, not per element.
  bool inverse;         // The transposed map: a gradient's.
  bool round_products;  // To the dtype of the heads.
};

// REQUIRES: the tensor was not rejected.
Heads HeadsOf(const FbTensor& tensor);
Rotation RotationOf(const FbTensor& heads, const FbTensor& cos, const FbTensor& sin,
                    const FbRopeParams& params, bool inverse);

// Each returns NULL or the sentence, like the checks of reject.h.

// `tensor` is [batch, any number of heads, positions, dim], as `like` has these three and its
// dtype and device.
const char* CheckHeads(const FbCall& call, const char* name, const FbTensor& tensor,
                       const FbTensor& like);

// `tensor` is what a kernel may write for `input`: of the same shape and dtype, without two
// elements in one place; absent if and only if `input` is.
const char* CheckOutputHeads(const FbCall& call, const char* name, const FbTensor& tensor,
                             const char* input_name, const FbTensor& input);

// The parameters, cos and sin, for heads like `heads`.
const char* CheckRotation(const FbCall& call, const FbRopeParams& params, const FbTensor& heads,
                          const FbTensor& cos, const FbTensor& sin);

}  // namespace fuseboard

#endif  // KERNELS_COMMON_ROTARY_H_
