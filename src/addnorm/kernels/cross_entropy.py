"""Cross-entropy and its gradient by our operator, which reads each row of logits from the cache.

torch takes a pass over memory for each of the exponential, the sum, the difference and the copy.
The operator is for float32 and bfloat16 on a CPU, and computes in float32.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

OPERATOR = "cross_entropy"

DTYPES = (torch.float32, torch.bfloat16)

torch.library.define(
    "addnorm::cross_entropy",
    "(Tensor logits, Tensor targets, float smoothing, int ignored) -> (Tensor, Tensor)",
)


def cross_entropy(
    logits: Float[Tensor, "rows classes"],
    targets: Int[Tensor, " rows"],
    smoothing: float,
    *,
    ignored: int,
) -> tuple[Float[Tensor, " rows"], Float[Tensor, "rows classes"]]:
    """The loss of each row, and the gradient of their sum; zeros for the `ignored` target.

    Raises `IndexError` for a target that none of the classes has.
    """
    return torch.ops.addnorm.cross_entropy(
        logits.contiguous(), targets.contiguous(), smoothing, ignored
    )
