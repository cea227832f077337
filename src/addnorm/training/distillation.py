"""The value of a recipe that says which teacher a student learns from, and how."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from addnorm.config import config
from addnorm.training.intermediate import AttentionTransferConfig, HiddenStatesConfig


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
