"""Every operation as a maker of problems, for tests that ask the same of all of them."""

from tests.client_py.ops import activation_problems as activations
from tests.client_py.ops import loss_problems as losses
from tests.client_py.ops import norm_problems as norms
from tests.client_py.ops import rotation_problems as rotations
from tests.client_py.ops.problems import Operation
from tests.client_py.ops.row_losses import LOSSES


def name_of(operation):
    """An operation's test id."""
    return operation.name.replace(" ", "_").replace(",", "")


OPERATIONS = [
    Operation("rms_norm", "rms_norm", norms.rms_norm),
    Operation("fused_add_rms_norm", "fused_add_rms_norm", norms.fused_add_rms_norm),
    Operation("modulated_rms_norm", "modulated_rms_norm", norms.modulated_rms_norm),
    Operation("layer_norm", "layer_norm", norms.layer_norm),
    Operation("group_norm", "group_norm", norms.group_norm, any_width=False),
    Operation("softmax", "softmax", norms.softmax),
    Operation("rope", "rope", rotations.rope, any_width=False),
    Operation("qk_norm_rope", "qk_norm_rope", rotations.qk_norm_rope, any_width=False),
    Operation("swiglu", "swiglu", activations.swiglu),
    Operation("swiglu_packed", "swiglu", activations.swiglu_packed),
    Operation("geglu", "geglu", activations.geglu),
    Operation("geglu_packed", "geglu", activations.geglu_packed),
    Operation("relu_squared", "relu_squared", activations.relu_squared),
    Operation("cross_entropy", "cross_entropy", losses.cross_entropy, True),
    *(
        Operation(name, loss.operation, losses.row_loss(loss), True)
        for name, loss in LOSSES.items()
    ),
    Operation(
        "fused_linear_cross_entropy", "cross_entropy", losses.fused_linear_cross_entropy, True
    ),
    Operation("selected_log_probs", "cross_entropy", losses.selected_log_probs, True),
    Operation(
        "selected_log_probs, frozen head",
        "cross_entropy",
        losses.selected_log_probs_of_a_frozen_head,
        True,
    ),
    Operation(
        "fused_linear_scaled_cross_entropy",
        "cross_entropy",
        losses.fused_linear_scaled_cross_entropy,
        True,
    ),
    Operation("fused_linear_jsd", "jsd", losses.fused_linear_jsd, True),
]
