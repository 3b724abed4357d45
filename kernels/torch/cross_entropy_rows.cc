#include "kernels/torch/cross_entropy_rows.h"

#include "kernels/torch/cross_entropy_composite.h"
#include "kernels/torch/kernel_call.h"
#include "kernels/torch/row_view.h"

namespace fuseboard::torch_binding {
namespace {

FbTensor ViewOrAbsent(const at::Tensor& tensor) {
  return tensor.defined() ? ViewOf(tensor) : kAbsent;
}

}  // namespace

CrossEntropyRows Slice(const CrossEntropyRows& rows, int64_t begin, int64_t count) {
  const auto narrow = [=](const at::Tensor& t) {
    return t.defined() ? t.narrow(0, begin, count) : at::Tensor();
  };
  return {.logits = narrow(rows.logits),
          .target = narrow(rows.target),
          .class_weight = rows.class_weight,
          .scale = narrow(rows.scale),
          .lse = narrow(rows.lse),
          .entropy = narrow(rows.entropy),
          .dentropy = narrow(rows.dentropy),
          .loss = narrow(rows.loss),
          .z_loss = narrow(rows.z_loss),
          .dlogits = narrow(rows.dlogits)};
}

const char* CrossEntropyForward(const CrossEntropyRows& rows, const CrossEntropyOptions& options,
                                int64_t kernel) {
  const char* reason = kNoKernelReason;
  if (kernel != kNoKernel) {
    const FbCrossEntropyParams params = options.ToParams();
    const FbTensor loss = ViewOrAbsent(rows.loss);
    const FbTensor z_loss = ViewOrAbsent(rows.z_loss);
    const FbTensor lse = ViewOrAbsent(rows.lse);
    const FbTensor dlogits = ViewOrAbsent(rows.dlogits);
    KernelCall call(Operation::kCrossEntropy, kernel, FB_FORWARD, rows.logits.device());
    call.Inputs({ViewOf(rows.logits), ViewOf(rows.target), ViewOrAbsent(rows.class_weight),
                 ViewOrAbsent(rows.scale)});
    if (rows.entropy.defined()) {
      call.Outputs({loss, z_loss, lse, /*argmax=*/kAbsent, dlogits, ViewOf(rows.entropy)});
    } else {  // As a library takes it that is older than the entropy.
      call.Outputs({loss, z_loss, lse, /*argmax=*/kAbsent, dlogits});
    }
    reason = call.Run(&params);
  }
  if (reason != nullptr) CrossEntropyComposite(rows, options, /*lse_is_known=*/false);
  return reason;
}

const char* CrossEntropyBackward(const CrossEntropyRows& rows, const CrossEntropyOptions& options,
                                 int64_t kernel) {
  const char* reason = kNoKernelReason;
  if (kernel != kNoKernel) {
    const FbCrossEntropyParams params = options.ToParams();
    const FbTensor logits = ViewOf(rows.logits);
    const FbTensor target = ViewOf(rows.target);
    const FbTensor class_weight = ViewOrAbsent(rows.class_weight);
    const FbTensor scale = ViewOrAbsent(rows.scale);
    const FbTensor lse = ViewOf(rows.lse);
    KernelCall call(Operation::kCrossEntropy, kernel, FB_BACKWARD, rows.logits.device());
    if (rows.dentropy.defined()) {
      call.Inputs(
          {logits, target, class_weight, scale, lse, ViewOf(rows.entropy), ViewOf(rows.dentropy)});
    } else {
      call.Inputs({logits, target, class_weight, scale, lse});
    }
    call.Outputs({ViewOf(rows.dlogits)});
    reason = call.Run(&params);
  }
  if (reason != nullptr) CrossEntropyComposite(rows, options, /*lse_is_known=*/true);
  return reason;
}

}  // namespace fuseboard::torch_binding
