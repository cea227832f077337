"""Distillation: a model learns to say what another says, in place of labels."""

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from addnorm.train.loss import IGNORED


def imitation_sum(
    student: Float[Tensor, "*batch vocab"],
    teacher: Float[Tensor, "*batch vocab"],
    targets: Int[Tensor, "*batch"],
    temperature: float = 1.0,
) -> Float[Tensor, ""]:
    """`T² Σ_t KL(softmax(teacher_t / T) ‖ softmax(student_t / T))` in nats, in float32 or wider.

    Hinton et al. 2015, §2: T² keeps the size of the gradient the same at every temperature T. The
    sum runs over the targets that count, whatever they say. The teacher gets no gradient.
    """
    counted = targets.flatten() != IGNORED
    student_log_p, teacher_log_p = (
        (_wide(logits.flatten(0, -2)[counted]) / temperature).log_softmax(-1)
        for logits in (student, teacher.detach())
    )
    return F.kl_div(student_log_p, teacher_log_p, reduction="sum", log_target=True) * temperature**2


def _wide(x: Tensor) -> Tensor:
    return x if x.element_size() >= 4 else x.float()
