"""Knowledge distillation: a student model learns the outputs of a teacher instead of labels."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional as F

from addnorm.data.ids.encoding import IGNORE
from addnorm.nn.functional import at_least_float32
from addnorm.training.loss import binary_cross_entropy_sum, squared_error_sum


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
