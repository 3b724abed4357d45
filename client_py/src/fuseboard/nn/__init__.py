"""The fused operations as modules, with the constructors and the state of `torch.nn`'s.

    from fuseboard import nn
    norm = nn.RMSNorm(4096, eps=1e-6)

Modules that torch has are subclasses of torch's: same arguments, same parameters, same keys in
`state_dict`, so checkpoints load either way; what is added is keyword-only. What they compute is that
of `fuseboard.ops`, whose errors are theirs.
"""

from fuseboard.nn._activations import GEGLU, ReLUSquared, SwiGLU
from fuseboard.nn._linear_losses import LinearCrossEntropyLoss, LinearJSDLoss
from fuseboard.nn._losses import CrossEntropyLoss, JSDLoss, KLDivLoss, TVDLoss
from fuseboard.nn._norms import (
    FusedAddRMSNorm,
    GroupNorm,
    LayerNorm,
    ModulatedRMSNorm,
    RMSNorm,
    Softmax,
)
from fuseboard.nn._rotations import QKNormRope

__all__ = [
    "GEGLU",
    "CrossEntropyLoss",
    "FusedAddRMSNorm",
    "GroupNorm",
    "JSDLoss",
    "KLDivLoss",
    "LayerNorm",
    "LinearCrossEntropyLoss",
    "LinearJSDLoss",
    "ModulatedRMSNorm",
    "QKNormRope",
    "RMSNorm",
    "ReLUSquared",
    "Softmax",
    "SwiGLU",
    "TVDLoss",
]
