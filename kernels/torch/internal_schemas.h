// The non-differentiable pairs below the operators of schemas.h: what torch.compile traces, and
// what a profile shows. Not a contract: only the operator above each pair calls it.
//
// A gradient that is not wanted comes back with the shape [0].

#ifndef KERNELS_TORCH_INTERNAL_SCHEMAS_H_
#define KERNELS_TORCH_INTERNAL_SCHEMAS_H_

namespace fuseboard::torch_binding {

// Returns y and rstd, [...] of x's leading dimensions, f32 (f64 for f64 x).
inline constexpr char kRmsNormForward[] =
    "rms_norm_forward(Tensor x, Tensor? weight, float eps, float offset, int casting, int kernel) "
    "-> (Tensor y, Tensor rstd)";
inline constexpr char kRmsNormBackward[] =
    "rms_norm_backward(Tensor dy, Tensor x, Tensor? weight, Tensor rstd, float eps, float offset, "
    "int casting, bool need_dx, bool need_dweight, int kernel) -> (Tensor dx, Tensor dweight)";

// inverse_divisor: 0-dim, 1 / what the mean divides by, 0 for 0; [0] for the other reductions.
// need_dlogits asks for the gradient of the loss beside it; not without a reduction.
inline constexpr char kCrossEntropyForward[] =
    "cross_entropy_forward(Tensor logits, Tensor target, Tensor? class_weight, Tensor? divisor, "
    "int ignore_index, float label_smoothing, float softcap, float logit_scale, "
    "float z_loss_scale, bool z_loss_in_loss, int reduction, bool need_dlogits, int kernel) "
    "-> (Tensor loss, Tensor z_loss, Tensor lse, Tensor inverse_divisor, Tensor dlogits)";
inline constexpr char kCrossEntropyBackward[] =
    "cross_entropy_backward(Tensor dloss, Tensor logits, Tensor target, Tensor? class_weight, "
    "Tensor lse, Tensor inverse_divisor, int ignore_index, float label_smoothing, float softcap, "
    "float logit_scale, float z_loss_scale, bool z_loss_in_loss, int reduction, int kernel) "
    "-> Tensor dlogits";

// The gradients come from the forward if that is exact (mean and sum, not f16); lse otherwise.
inline constexpr char kFusedLinearCrossEntropyForward[] =
    "fused_linear_cross_entropy_forward(Tensor hidden, Tensor weight, Tensor? bias, Tensor target, "
    "Tensor? class_weight, Tensor? divisor, int ignore_index, float label_smoothing, "
    "float softcap, float logit_scale, float z_loss_scale, bool z_loss_in_loss, int reduction, "
    "int dweight_dtype, int chunk_bytes, bool need_dhidden, bool need_dweight, bool need_dbias, "
    "int kernel) -> (Tensor loss, Tensor z_loss, Tensor lse, Tensor inverse_divisor, "
    "Tensor dhidden, Tensor dweight, Tensor dbias)";
inline constexpr char kFusedLinearCrossEntropyBackward[] =
    "fused_linear_cross_entropy_backward(Tensor dloss, Tensor hidden, Tensor weight, Tensor? bias, "
    "Tensor target, Tensor? class_weight, Tensor lse, Tensor inverse_divisor, int ignore_index, "
    "float label_smoothing, float softcap, float logit_scale, float z_loss_scale, "
    "bool z_loss_in_loss, int reduction, int dweight_dtype, int chunk_bytes, bool need_dhidden, "
    "bool need_dweight, bool need_dbias, int kernel) "
    "-> (Tensor dhidden, Tensor dweight, Tensor dbias)";

}  // namespace fuseboard::torch_binding

#endif  // KERNELS_TORCH_INTERNAL_SCHEMAS_H_
