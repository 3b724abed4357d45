// An elementwise call as its kernels see it: matrices of one shape and dtype, checked once. Shared
// by the libraries of elementwise operations, each of which links its own copy.

#ifndef KERNELS_ELEMENTWISE_ELEMENTWISE_CALL_H_
#define KERNELS_ELEMENTWISE_ELEMENTWISE_CALL_H_

#include <span>

#include "kernels/abi/kernel_abi.h"
#include "kernels/common/reject.h"

namespace fuseboard::elementwise {

inline constexpr int kMaxInputs = 3;
inline constexpr int kMaxOutputs = 2;

// A matrix whose rows lie `stride` elements apart, and whose columns `step`: 1, or 2 where it has
// every second column of a wider one.
struct Matrix {
  void* base;  // NULL: absent.
  int64_t stride;
  int64_t step;
};

// Inputs and outputs in the order of the operation's own header; the rest is absent.
struct Call {
  Matrix in[kMaxInputs];
  Matrix out[kMaxOutputs];
  int64_t rows;
  int64_t cols;
  int32_t dtype;
};

// Whether a call is alternating: its last two inputs are the even and the odd columns of one
// matrix, and its outputs, where there are two, of another.
bool IsAlternating(const FbCall& call);

// Whether outputs may be absent. Those of an alternating call may not.
enum class Outputs { kRequired, kOptional };

// All tensors are matrices of the first input's shape and dtype, f32, f16 or bf16, with column
// stride 1. REQUIRES: the call has as many inputs and outputs as there are names.
const char* CheckTensors(const FbCall& call, std::span<const char* const> input_names,
                         std::span<const char* const> output_names, Outputs outputs);

// The same for an alternating call with two inputs or three.
const char* CheckAlternatingTensors(const FbCall& call, std::span<const char* const> input_names,
                                    std::span<const char* const> output_names);

// Rows that lie one after the other in all tensors become one row.
// REQUIRES: the call was not rejected.
Call CallOf(const FbCall& call);

}  // namespace fuseboard::elementwise

#endif  // KERNELS_ELEMENTWISE_ELEMENTWISE_CALL_H_
