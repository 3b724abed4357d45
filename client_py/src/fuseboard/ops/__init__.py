"""The fused operations as functions, named and called like those of `torch.nn.functional`.

    from fuseboard import ops
    y = ops.rms_norm(x, (4096,), weight, eps=1e-6)

Every function is differentiable (once), works under torch.compile without a graph break, under autocast
and under capture of a CUDA graph, leaves its inputs as they are, and is deterministic. CPU and CUDA;
float32, float16 and bfloat16 have kernels, float64 and what a kernel rejects run a composite of torch's
own operators. Kernel libraries are found and opened at the first call of each operation.

Errors of all functions: ArtifactError if there is no binding for this torch, ValueError for an option
that does not exist, RuntimeError for tensors that do not fit one another; messages name the argument
and both values.

Environment: FUSEBOARD_HOME names the installation; FUSEBOARD_DISABLE=1 runs the composites.
"""

from fuseboard.ops._activations import geglu, geglu_packed, relu_squared, swiglu, swiglu_packed
from fuseboard.ops._divergences import jsd, kl_div, tvd
from fuseboard.ops._linear_losses import (
    fused_linear_jsd,
    fused_linear_scaled_cross_entropy,
    selected_log_probs,
)
from fuseboard.ops._losses import cross_entropy, fused_linear_cross_entropy
from fuseboard.ops._norms import (
    fused_add_rms_norm,
    group_norm,
    layer_norm,
    modulated_rms_norm,
    rms_norm,
    softmax,
)
from fuseboard.ops._rotations import qk_norm_rope, rope

__all__ = [
    "cross_entropy",
    "fused_add_rms_norm",
    "fused_linear_cross_entropy",
    "fused_linear_jsd",
    "fused_linear_scaled_cross_entropy",
    "geglu",
    "geglu_packed",
    "group_norm",
    "jsd",
    "kl_div",
    "layer_norm",
    "modulated_rms_norm",
    "qk_norm_rope",
    "relu_squared",
    "rms_norm",
    "rope",
    "selected_log_probs",
    "softmax",
    "swiglu",
    "swiglu_packed",
    "tvd",
]
