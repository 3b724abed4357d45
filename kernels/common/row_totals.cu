#include <cinttypes>

#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/reject.h"
#include "kernels/common/row_totals.h"

namespace fuseboard {
namespace {

constexpr int kThreads = 1024;

struct Targets {
  const void* target;
  int64_t stride;
  int64_t ignore_index;
  const float* class_weight;  // Or NULL: each counts 1.
  int64_t classes;
  int32_t rows;
};

// One block. A thread adds up to 32 rows in f32, the block in double.
template <typename Index>
__global__ void __launch_bounds__(kThreads)
    InverseDivisorKernel(const __grid_constant__ Targets of, float* inverse) {
  __shared__ double shared[kMaxWarps];
  WaitForPredecessor();
  const auto* const target = static_cast<const Index*>(of.target);
  float sum = 0.0f;
#pragma unroll 4
  for (int row = static_cast<int>(threadIdx.x); row < of.rows; row += kThreads) {
    const auto at = static_cast<int64_t>(target[row * of.stride]);
    if (at == of.ignore_index) continue;
    // An out-of-range target makes its row NaN; here it must only not be read.
    const int64_t column = at < 0 ? 0 : at < of.classes ? at : of.classes - 1;
    sum += of.class_weight == nullptr ? 1.0f : of.class_weight[column];
  }
  const double total = BlockReduce(static_cast<double>(sum), Sum(), 0.0, shared);
  if (threadIdx.x == 0) *inverse = total == 0.0 ? 0.0f : static_cast<float>(1.0 / total);
}

struct RowValues {
  const float* loss;
  const float* z_loss;  // Or NULL: its total is 0.
  const float* factor;  // Or NULL: 1.
  int32_t rows;
};

// One block.
static __global__ void __launch_bounds__(kThreads)
    TotalKernel(const __grid_constant__ RowValues of, float* total, float* z_total) {
  __shared__ double shared[2][kMaxWarps];
  WaitForPredecessor();
  const double factor = of.factor == nullptr ? 1.0 : static_cast<double>(*of.factor);
  float loss = 0.0f;
  float z_loss = 0.0f;
#pragma unroll 4
  for (int row = static_cast<int>(threadIdx.x); row < of.rows; row += kThreads) {
    loss += of.loss[row];
    if (of.z_loss != nullptr) z_loss += of.z_loss[row];
  }
  const double loss_sum = BlockReduce(static_cast<double>(loss), Sum(), 0.0, shared[0]);
  const double z_sum = BlockReduce(static_cast<double>(z_loss), Sum(), 0.0, shared[1]);
  if (threadIdx.x > 0) return;
  *total = static_cast<float>(loss_sum * factor);
  if (z_total != nullptr) *z_total = static_cast<float>(z_sum * factor);
}

// As many as there are, whatever else is wrong with the tensor.
const char* CheckRows(const char* name, const FbTensor& tensor) {
  if (tensor.ndim == 1 && tensor.shape[0] > kMaxTotalRows) {
    return Reject("%s: want at most %" PRId64 " rows, got %" PRId64, name, kMaxTotalRows,
                  tensor.shape[0]);
  }
  return nullptr;
}

// Of f32, with stride 1.
const char* CheckValues(const FbCall& call, const char* name, const FbTensor& tensor,
                        int64_t size) {
  if (const char* why = CheckVector(call, name, tensor, size, VectorStride::kOne)) return why;
  return CheckDType(name, tensor, FB_F32);
}

LaunchShape OneBlock(const FbCall& call) {
  return {.blocks = 1,
          .threads = kThreads,
          .dependent = call.sm >= 90,
          .stream = static_cast<cudaStream_t>(call.stream)};
}

float* ValuesOf(const FbTensor& tensor) {
  return IsAbsent(tensor) ? nullptr : static_cast<float*>(tensor.data);
}

}  // namespace

const char* RejectInverseDivisorCuda(const FbCall* call) {
  if (const char* why = CheckBareCall(call, FB_CUDA, 2, 1)) return why;
  if (call->params == nullptr) return Reject("params: want an ignore_index, got NULL");
  const FbTensor& target = call->inputs[0];
  if (const char* why = CheckRows("target", target)) return why;
  if (const char* why = CheckVector(*call, "target", target, target.shape[0], VectorStride::kAny)) {
    return why;
  }
  if (target.dtype != FB_I64 && target.dtype != FB_I32) {
    return Reject("target: want i64 or i32, got %s", DTypeName(target.dtype));
  }
  const FbTensor& weight = call->inputs[1];
  if (!IsAbsent(weight)) {
    if (const char* why = CheckValues(*call, "class_weight", weight, weight.shape[0])) return why;
    if (weight.shape[0] == 0) return Reject("class_weight: want at least 1 class, got 0");
  }
  return CheckValues(*call, "inverse", call->outputs[0], 1);
}

int32_t InverseDivisorCuda(const FbCall* call, void* /*workspace*/) {
  const FbTensor& target = call->inputs[0];
  const FbTensor& weight = call->inputs[1];
  const Targets targets = {.target = target.data,
                           .stride = target.stride[0],
                           .ignore_index = *static_cast<const int64_t*>(call->params),
                           .class_weight = ValuesOf(weight),
                           .classes = IsAbsent(weight) ? 0 : weight.shape[0],
                           .rows = static_cast<int32_t>(target.shape[0])};
  const auto kernel =
      target.dtype == FB_I64 ? InverseDivisorKernel<int64_t> : InverseDivisorKernel<int32_t>;
  return LaunchKernel(kernel, OneBlock(*call), targets, ValuesOf(call->outputs[0]));
}

const char* RejectTotalCuda(const FbCall* call) {
  if (const char* why = CheckBareCall(call, FB_CUDA, 3, 2)) return why;
  const FbTensor& loss = call->inputs[0];
  if (const char* why = CheckRows("loss", loss)) return why;
  if (const char* why = CheckValues(*call, "loss", loss, loss.shape[0])) return why;
  const FbTensor& z_loss = call->inputs[1];
  if (!IsAbsent(z_loss)) {
    if (const char* why = CheckValues(*call, "z_loss", z_loss, loss.shape[0])) return why;
  }
  const FbTensor& factor = call->inputs[2];
  if (!IsAbsent(factor)) {
    if (const char* why = CheckValues(*call, "factor", factor, 1)) return why;
  }
  if (const char* why = CheckValues(*call, "total", call->outputs[0], 1)) return why;
  const FbTensor& z_total = call->outputs[1];
  return IsAbsent(z_total) ? nullptr : CheckValues(*call, "z_total", z_total, 1);
}

int32_t TotalCuda(const FbCall* call, void* /*workspace*/) {
  const RowValues values = {.loss = ValuesOf(call->inputs[0]),
                            .z_loss = ValuesOf(call->inputs[1]),
                            .factor = ValuesOf(call->inputs[2]),
                            .rows = static_cast<int32_t>(call->inputs[0].shape[0])};
  return LaunchKernel(TotalKernel, OneBlock(*call), values, ValuesOf(call->outputs[0]),
                      ValuesOf(call->outputs[1]));
}

int32_t LoadRowTotalsKernels() {
  for (const cudaError_t error :
       {LoadKernel(InverseDivisorKernel<int64_t>), LoadKernel(InverseDivisorKernel<int32_t>),
        LoadKernel(TotalKernel)}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace fuseboard
