// The operators that the binding registers under torch.ops.fuseboard: the contract with Python.
//
// `kernel` is a handle from load_kernel, or -1: run the ATen composite of the same mathematics
// within the same autograd node. A call that the kernel library rejects, and a launch that fails
// recoverably, run the composite too and are counted by reason (`counters`). Handles are never
// reused, and a library stays mapped, so a plan may change the handle between any two steps.
//
// Every differentiable operator has its autograd in C++ and a second, non-differentiable pair
// (*_forward, *_backward) below it, with fake (Meta) functions, which is what torch.compile traces.
// A second derivative raises an error that names the operator.
//
// Operations that came later declare their schemas at the top of their own <operation>_op.cc.

#ifndef KERNELS_TORCH_SCHEMAS_H_
#define KERNELS_TORCH_SCHEMAS_H_

namespace fuseboard::torch_binding {

// ---- Libraries and counters. No tensors; callable from any thread. ----

// Maps the kernel library at `path` (often /proc/self/fd/N) and returns its handle; the same file
// (device and inode) gives the same handle. Errors: RuntimeError if it cannot be mapped, lacks the
// symbol, or has another ABI; the message says which and both values.
inline constexpr char kLoadKernel[] = "load_kernel(str path) -> int";
// Loads all device code of `kernel` on `device`. Errors: RuntimeError with CUDA's message.
inline constexpr char kPrepareKernel[] = "prepare_kernel(int kernel, Device device) -> ()";
// [operation, version] of a handle.
inline constexpr char kDescribeKernel[] = "describe_kernel(int kernel) -> str[]";
// JSON: {"<operation>": {"fused": n, "fallback": {"<reason>": n, ...}}, ...}; cumulative.
inline constexpr char kCounters[] = "counters() -> str";
// The operations this binding implements, e.g. "rms_norm", "fused_linear_cross_entropy".
inline constexpr char kOperations[] = "operations() -> str[]";

// ---- rms_norm (kernels/abi/rms_norm.h). x [..., hidden], any strides; weight [hidden] or None.
// ----
inline constexpr char kRmsNorm[] =
    "rms_norm(Tensor x, Tensor? weight, float eps, float offset, int casting, int kernel) -> "
    "Tensor";

// ---- cross_entropy (kernels/abi/cross_entropy.h). logits [rows, vocab], target [rows]. ----
// reduction: 0 none, 1 mean, 2 sum. Mean divides by the number (with class_weight: the weight) of
// rows that are not ignored; if that is 0 the loss is 0 and so are all gradients.
// divisor: a number as a 0-dim tensor on any device; with it, mean divides by it instead (0 gives
// 0). Returns loss and z_loss, f32, shape [rows] for none, else []; z_loss carries no gradient of
// its own.
inline constexpr char kCrossEntropy[] =
    "cross_entropy(Tensor logits, Tensor target, Tensor? class_weight, Tensor? divisor, "
    "int ignore_index, float label_smoothing, float softcap, float logit_scale, "
    "float z_loss_scale, bool z_loss_in_loss, int reduction, int kernel) -> (Tensor, Tensor)";

// ---- fused_linear_cross_entropy: the loss of hidden @ weight.T + bias without the logits. ----
// hidden [rows, in], weight [vocab, in], bias [vocab] or None, target [rows].
// dweight_dtype: 0 chosen from shapes alone (weight_gradient.h says how), 1 weight's dtype with one
// rounding per chunk, 2 fp32 accumulation, rounded once. chunk_bytes: budget of the logits buffer,
// 0: 512 MiB. kernel is the handle of cross_entropy; -1: chunked ATen composite of the same peak
// memory.
inline constexpr char kFusedLinearCrossEntropy[] =
    "fused_linear_cross_entropy(Tensor hidden, Tensor weight, Tensor? bias, Tensor target, "
    "Tensor? class_weight, Tensor? divisor, int ignore_index, float label_smoothing, "
    "float softcap, float logit_scale, float z_loss_scale, bool z_loss_in_loss, int reduction, "
    "int dweight_dtype, int chunk_bytes, int kernel) -> (Tensor, Tensor)";

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_SCHEMAS_H_
