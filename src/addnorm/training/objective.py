"""The training objective: a function from a model and a micro-batch to a scalar."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from addnorm.data.batches.batch import Batch, counted
from addnorm.errors import InputError
from addnorm.models import DecoderModel, EncoderModel, Model
from addnorm.nn.built import built
from addnorm.nn.heads import TokenHead
from addnorm.parts import kind_of
from addnorm.training.distillation import DistillationConfig, imitation_sum
from addnorm.training.intermediate import LayerLoss
from addnorm.training.loss import (
    CrossEntropyConfig,
    LogitAdjustment,
    LossConfig,
    exits_cross_entropy_sum,
    head_cross_entropy_sum,
    labels_loss_sum,
    loss_sum,
)
from addnorm.training.r_drop import head_r_drop_sum, r_drop_sum
from addnorm.training.settings import TrainConfig


class Objective:
    """The loss of a micro-batch, summed over its targets and averaged over early exits.

    With a `teacher`, the model learns the teacher's outputs instead of the labels, or beside them
    as `distillation` says, which may compare layers of the `student`. With `in_parts`,
    cross-entropy computes the logits of a few rows at a time. With an `adjustment`, it is the
    cross-entropy of adjusted logits. With `r_drop`, the batch comes twice, one after the other,
    and the loss is that of one of them. Raises `InputError` for an invalid
    custom loss, and for layers that cannot be compared.
    """

    def __init__(
        self,
        loss: LossConfig,
        *,
        label_smoothing: float = 0.0,
        teacher: nn.Module | None = None,
        distillation: DistillationConfig | None = None,
        student: nn.Module | None = None,
        in_parts: bool = True,
        adjustment: LogitAdjustment | None = None,
        r_drop: float = 0.0,
    ) -> None:
        if distillation is not None and teacher is None:
            raise InputError("train.distillation: the teacher is missing")
        of_labels = r_drop or adjustment or not isinstance(loss, CrossEntropyConfig)
        if teacher is not None and of_labels:
            raise InputError(
                "a teacher is learnt from by cross_entropy alone: leave train.loss, train.r_drop "
                "and train.logit_adjustment out"
            )
        self.kind = kind_of(loss)
        self.label_smoothing = label_smoothing
        self.teacher = teacher
        self.distillation = distillation
        self.layers = None
        if distillation is not None and distillation.compares_layers:
            assert teacher is not None
            assert student is not None
            self.layers = LayerLoss(
                student,
                teacher,
                hidden=distillation.hidden_states,
                attention=distillation.attention_transfer,
            )
        self.in_parts = in_parts and adjustment is None
        self.adjusted: Callable[[Tensor], Tensor] = adjustment or _unchanged
        self.r_drop = r_drop
        self.module = None
        if not isinstance(loss, CrossEntropyConfig):
            self.module = built(loss, loss.build(), nn.Module, "the loss must be an nn.Module")
        if self.module is not None and any(True for _ in self.module.parameters()):
            raise InputError(
                f"train.loss: {self.kind} has parameters, which no optimiser trains: "
                "a loss has none"
            )

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        model: nn.Module,
        batches: Iterable[Batch],
        teacher: nn.Module | None = None,
        *,
        in_parts: bool = True,
    ) -> "Objective":
        """What a training with these settings lowers; its `batches` are those of an epoch."""
        return cls(
            config.loss,
            label_smoothing=config.label_smoothing,
            teacher=teacher,
            distillation=config.distillation,
            student=model,
            in_parts=in_parts,
            adjustment=LogitAdjustment.of(config.logit_adjustment, batches),
            r_drop=config.r_drop,
        )

    def __call__(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        targets: Tensor,
        soft_targets: Tensor | None = None,
    ) -> Tensor:
        """The summed loss; divide it by the number of targets for the loss per token.

        Where `soft_targets` are given, classes have these probabilities.
        """
        if self.teacher is None:
            return self._labelled(model, inputs, targets, soft_targets)
        with nullcontext() if self.layers is None else self.layers.watching() as layer_loss:
            with torch.no_grad():
                wanted = self.teacher(**inputs)
            taught = self._taught(model(**inputs), wanted, targets, soft_targets)
            return taught if layer_loss is None else taught + counted(targets) * layer_loss()

    def _taught(
        self, outputs: Tensor, wanted: Tensor, targets: Tensor, soft: Tensor | None
    ) -> Tensor:
        """The loss against the teacher, with that against the labels in its share."""
        if self.distillation is None:
            return imitation_sum(outputs, wanted, targets)
        share = self.distillation.weight
        taught = imitation_sum(outputs, wanted, targets, self.distillation.temperature)
        if share == 1.0:
            return taught
        labelled = loss_sum(outputs, targets, self.label_smoothing, soft)
        return share * taught + (1 - share) * labelled

    def _labelled(
        self, model: nn.Module, inputs: dict[str, Tensor], targets: Tensor, soft: Tensor | None
    ) -> Tensor:
        smoothing = self.label_smoothing
        early = model if isinstance(model, EncoderModel | DecoderModel) and model.exits else None
        if self.module is not None:
            outputs = [model(**inputs)] if early is None else early.exit_logits(**inputs)
            return torch.stack([self._own(self.module, out, targets) for out in outputs]).mean()
        if self.r_drop:
            return self._agreeing(model, early, inputs, targets, soft)
        if early is not None:
            outputs = map(self.adjusted, early.exit_logits(**inputs))
            return exits_cross_entropy_sum(outputs, targets, smoothing, soft)
        if not self.in_parts or not isinstance(model, Model):
            outputs = self.adjusted(model(**inputs))
            head = model.head if isinstance(model, Model) else model
            return labels_loss_sum(head, outputs, targets, smoothing, soft)
        x, ctx = model.hidden(**inputs)  # pyright: ignore[reportArgumentType]
        if isinstance(model.head, TokenHead):
            return head_cross_entropy_sum(model.head, x, ctx, targets, smoothing)
        return labels_loss_sum(model.head, model.head(x, ctx), targets, smoothing, soft)

    def _agreeing(
        self,
        model: nn.Module,
        early: EncoderModel | DecoderModel | None,
        inputs: dict[str, Tensor],
        targets: Tensor,
        soft: Tensor | None,
    ) -> Tensor:
        smoothing = self.label_smoothing
        if self.in_parts and early is None and isinstance(model, Model):
            head = model.head
            if isinstance(head, TokenHead):
                x, ctx = model.hidden(**inputs)  # pyright: ignore[reportArgumentType]
                return head_r_drop_sum(head, x, ctx, targets, self.r_drop, smoothing)
        outputs = [model(**inputs)] if early is None else early.exit_logits(**inputs)
        losses = [
            r_drop_sum(self.adjusted(out), targets, self.r_drop, smoothing, soft) for out in outputs
        ]
        return torch.stack(losses).mean()

    def _own(self, module: nn.Module, logits: Tensor, targets: Tensor) -> Tensor:
        found = module(logits, targets)
        if not isinstance(found, Tensor) or found.ndim:
            shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InputError(
                f"train.loss: {self.kind} returns {shape}: a loss is a scalar, "
                "the sum over the targets that are not -100"
            )
        return found


def _unchanged(outputs: Tensor) -> Tensor:
    return outputs
