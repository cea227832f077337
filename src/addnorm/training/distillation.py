"""Knowledge distillation: a student model learns the outputs of a teacher, and its own labels."""

from pathlib import Path
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Shaped
from pydantic import Field, PositiveFloat
from torch import Tensor
from torch.nn import functional as F

from addnorm.config import config
from addnorm.data.ids.encoding import IGNORE
from addnorm.nn.functional import at_least_float32
from addnorm.training.intermediate import AttentionTransferConfig, HiddenStatesConfig
from addnorm.training.loss import binary_cross_entropy_sum, squared_error_sum


@config
class DistillationConfig:
    """Learn what a teacher says beside the labels: `(1 - w) CE + w T² KL` (Hinton et al. 2015).

    KL is that of the teacher's probabilities from the student's, both at the temperature T. To this
    sum over targets, `hidden_states` and `attention_transfer` add their means, once a target.
    """

    teacher: Path
    """The folder of the teacher: a run, or one from Hugging Face, with the same tokens."""
    temperature: PositiveFloat = 1.0
    """T, by which the logits of both are divided: above 1, unlikely tokens count for more."""
    weight: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """The share w of what the teacher says: 1 leaves the labels out."""
    hidden_states: HiddenStatesConfig | None = None
    """Learn the teacher's hidden states too; by default its outputs alone."""
    attention_transfer: AttentionTransferConfig | None = None
    """Learn the teacher's attention too: its `weights`, or the `relations` inside of it."""
    start: Literal["random", "teacher"] = "random"
    """What training begins with: random weights, or those of the teacher that have a place in the
    student, evenly spaced layers among them.
    """

    @property
    def compares_layers(self) -> bool:
        """Whether the student learns from the inside of the teacher."""
        return self.hidden_states is not None or self.attention_transfer is not None


def imitation_sum(
    student: Float[Tensor, "*batch vocab"],
    teacher: Float[Tensor, "*batch vocab"],
    targets: Shaped[Tensor, "*targets"],
    temperature: float = 1.0,
) -> Float[Tensor, ""]:
    """`T² Σ_t KL(softmax(teacher_t / T) ‖ softmax(student_t / T))` in nats, in float32 or wider.

    Hinton et al. 2015, §2: T² keeps the scale of the gradient the same at every temperature T. The
    sum runs over all targets that are not ignored, whatever their values. The teacher gets no
    gradient. For boolean targets (multi-label) the student learns the teacher's probability of each
    label; for real-valued targets (regression), its outputs.
    """
    if targets.dtype == torch.bool:
        return binary_cross_entropy_sum(student, teacher.detach().sigmoid())
    if targets.is_floating_point():
        return squared_error_sum(student, teacher.detach())
    counted = targets.flatten() != IGNORE
    student_log_p, teacher_log_p = (
        (at_least_float32(logits.flatten(0, -2)[counted]) / temperature).log_softmax(-1)
        for logits in (student, teacher.detach())
    )
    return F.kl_div(student_log_p, teacher_log_p, reduction="sum", log_target=True) * temperature**2
