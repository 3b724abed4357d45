// A checked call of cross_entropy, unpacked: what the CUDA and the CPU version both start from, and
// what the kernels get by value. Knows nothing of how it is solved.

#ifndef KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_PROBLEM_H_
#define KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_PROBLEM_H_

#include <cstdint>

#include "kernels/abi/kernel_abi.h"

namespace fuseboard::cross_entropy {

// Strides count elements. Pointers that the call leaves out are null.
struct Problem {
  const void* logits;
  void* dlogits;
  const void* target;
  const float* class_weight;
  const float* scale;      // Upstream gradient of a row's loss; null means 1.
  const void* lse_in;      // Backward only. double or float, as all statistics.
  const void* entropy_in;  // Backward only, with dentropy.
  const float* dentropy;   // Upstream gradient of a row's entropy; null: there is none.
  float* loss;
  float* z_loss;
  void* lse;
  void* entropy;
  std::int64_t* argmax;
  std::int64_t rows;
  std::int64_t logits_stride;
  std::int64_t dlogits_stride;
  std::int64_t target_stride;
  std::int64_t scale_stride;
  std::int64_t dentropy_stride;
  std::int64_t ignore_index;
  std::int32_t vocab;
  std::int32_t dtype;  // Of logits and dlogits, an FbDType.
  float logit_scale;
  float softcap;  // 0: none.
  float label_smoothing;
  float z_loss_scale;
  bool target_is_i64;
  bool wide_statistics;  // lse and entropy are double.
  bool z_loss_in_loss;
};

// REQUIRES: the call has passed RejectReason of its phase.
Problem UnpackForward(const FbCall& call);
Problem UnpackBackward(const FbCall& call);

// Whether z = logits * a positive number and every class counts alike, which needs less work per
// logit: the common case.
constexpr bool IsPlain(const Problem& p) {
  return p.softcap == 0 && p.label_smoothing == 0 && p.class_weight == nullptr && p.logit_scale > 0;
}

constexpr int ElementBytes(const Problem& p) { return p.dtype == FB_F32 ? 4 : 2; }

}  // namespace fuseboard::cross_entropy

#endif  // KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_PROBLEM_H_
