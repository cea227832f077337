"""The training objective: a function from a model and a micro-batch to a scalar loss."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from addnorm.data.batches.batch import Batch, counted
from addnorm.errors import InputError
from addnorm.models import DecoderModel, EncoderDecoderModel, EncoderModel, Model
from addnorm.models.encoder import valid_outputs
from addnorm.nn.built import built
from addnorm.nn.context import Context
from addnorm.nn.heads import TokenHead
from addnorm.nn.token_ahead import TokenAhead, targets_ahead
from addnorm.parts import kind_of
from addnorm.training.distillation import DistillationConfig, LayerLoss, imitation_sum
from addnorm.training.loss import (
    CrossEntropyConfig,
    HasLoss,
    LogitAdjustment,
    LossConfig,
    exits_cross_entropy_sum,
    head_cross_entropy_sum,
    labels_loss_sum,
    loss_sum,
)
from addnorm.training.r_drop import head_r_drop_sum, r_drop_sum
from addnorm.training.settings import TrainConfig

ChunkedLoss = Callable[[TokenHead, Tensor, Context, Tensor, float], Tensor]
"""`head_cross_entropy_sum`: of the head, x, its context, the targets and the smoothing."""

OneStream = EncoderModel | DecoderModel | EncoderDecoderModel
"""The models whose head reads the final hidden states."""

LossFunction = Callable[[nn.Module, dict[str, Tensor], Tensor, Tensor | None], Tensor]
"""The loss of a micro-batch: of the model, its arguments, the targets and the soft ones."""


class Objective:
    """The loss of a micro-batch, summed over its targets and averaged over early exits.

    With a `teacher`, the model learns the teacher's outputs, and with `distillation` the labels as
    well; `distillation` may also compare layers of the `student` with the teacher's. With
    `chunked`, a loss of hidden states, cross-entropy computes a few rows of logits at a time; with
    None all of them. With an `adjustment`, it is the cross-entropy of adjusted logits. With
    `r_drop`, the batch is doubled, and the loss is that of one copy. Raises `InputError` for an
    invalid custom loss, and for layers that cannot be compared.
    """

    def __init__(
        self,
        loss: LossConfig,
        *,
        label_smoothing: float = 0.0,
        teacher: nn.Module | None = None,
        distillation: DistillationConfig | None = None,
        student: nn.Module | None = None,
        chunked: ChunkedLoss | None = head_cross_entropy_sum,
        adjustment: LogitAdjustment | None = None,
        r_drop: float = 0.0,
    ) -> None:
        if distillation is not None and teacher is None:
            raise InputError("train.distillation: the teacher is missing")
        of_labels = r_drop or adjustment or not isinstance(loss, CrossEntropyConfig)
        if teacher is not None and of_labels:
            raise InputError(
                "a model learns from a teacher only by cross_entropy: leave train.loss, "
                "train.r_drop and train.logit_adjustment out"
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
        self.chunked = chunked if adjustment is None else None
        self.adjusted: Callable[[Tensor], Tensor] = adjustment or (lambda outputs: outputs)
        self.r_drop = r_drop
        self.module = None
        if not isinstance(loss, CrossEntropyConfig):
            self.module = built(loss, loss.build(), nn.Module, "the loss must be an nn.Module")
        if self.module is not None and any(True for _ in self.module.parameters()):
            raise InputError(
                f"train.loss: {self.kind} has parameters, which no optimiser trains: a loss must "
                "have none"
            )

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        model: nn.Module,
        batches: Iterable[Batch],
        teacher: nn.Module | None = None,
        *,
        chunked: ChunkedLoss | None = head_cross_entropy_sum,
    ) -> "Objective":
        """The objective of a training configuration; `batches` gives the class frequencies.

        Raises `InputError` for a loss of single outputs where a head learns them together.
        """
        singly = config.label_smoothing or config.r_drop or teacher is not None
        if isinstance(model, Model) and isinstance(model.head, HasLoss) and singly:
            raise InputError(
                "train.label_smoothing, train.r_drop and a teacher are for outputs that are learnt "
                "one by one, and this model's head learns them together: leave them out"
            )
        plain = isinstance(config.loss, CrossEntropyConfig) and teacher is None
        if isinstance(model, DecoderModel) and model.ahead and not plain:
            raise InputError(
                "model.mtp learns by the cross-entropy of its targets alone: leave mtp, or "
                "train.loss and the teacher out"
            )
        if isinstance(model, DecoderModel) and model.ahead and config.r_drop:
            raise InputError("model.mtp learns without a second pass: leave train.r_drop out")
        return cls(
            config.loss,
            label_smoothing=config.label_smoothing,
            teacher=teacher,
            distillation=config.distillation,
            student=model,
            chunked=chunked,
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

        With `soft_targets`, these are the probabilities of the classes.
        """
        if self.teacher is None:
            return self._supervised_loss(model, inputs, targets, soft_targets)
        with nullcontext() if self.layers is None else self.layers.recording() as layer_loss:
            with torch.no_grad():
                of_teacher = self.teacher(**inputs)
            loss = self._distillation_loss(model(**inputs), of_teacher, targets, soft_targets)
            return loss if layer_loss is None else loss + counted(targets) * layer_loss()

    def _distillation_loss(
        self, outputs: Tensor, of_teacher: Tensor, targets: Tensor, soft: Tensor | None
    ) -> Tensor:
        """The weighted sum of the losses against the teacher's outputs and the labels."""
        if self.distillation is None:
            return imitation_sum(outputs, of_teacher, targets)
        weight = self.distillation.weight
        imitation = imitation_sum(outputs, of_teacher, targets, self.distillation.temperature)
        if weight == 1.0:
            return imitation
        supervised = loss_sum(outputs, targets, self.label_smoothing, soft)
        return weight * imitation + (1 - weight) * supervised

    def _supervised_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], targets: Tensor, soft: Tensor | None
    ) -> Tensor:
        """The loss against the labels; of a model with early exits, the mean over the exits."""
        smoothing = self.label_smoothing
        early = model if isinstance(model, EncoderModel | DecoderModel) and model.exits else None
        chunked = self.chunked if early is None and self.module is None else None
        if chunked is not None and isinstance(model, OneStream):
            return self._chunked_loss(chunked, model, inputs, targets, soft)
        outputs = [model(**inputs)] if early is None else early.exit_logits(**inputs)
        if self.module is not None:
            losses = [self._custom_loss(self.module, logits, targets) for logits in outputs]
            return torch.stack(losses).mean()
        if self.r_drop:
            losses = [
                r_drop_sum(self.adjusted(logits), targets, self.r_drop, smoothing, soft)
                for logits in outputs
            ]
            return torch.stack(losses).mean()
        if early is not None:
            return exits_cross_entropy_sum(map(self.adjusted, outputs), targets, smoothing, soft)
        head = model.head if isinstance(model, Model) else model
        [logits] = outputs
        valid = valid_outputs(model, inputs)
        return labels_loss_sum(head, self.adjusted(logits), targets, smoothing, soft, valid=valid)

    def _chunked_loss(
        self,
        chunked: ChunkedLoss,
        model: OneStream,
        inputs: dict[str, Tensor],
        targets: Tensor,
        soft: Tensor | None,
    ) -> Tensor:
        """The loss against the labels; a token head computes logits a few rows at a time."""
        smoothing = self.label_smoothing
        x, ctx = model.hidden(**inputs)  # pyright: ignore[reportArgumentType]
        if isinstance(model.head, TokenHead):
            if self.r_drop:
                return head_r_drop_sum(model.head, x, ctx, targets, self.r_drop, smoothing)
            loss = chunked(model.head, x, ctx, targets, smoothing)
            return loss + self._loss_ahead(chunked, model, x, inputs, targets)
        outputs = model.head(x, ctx)
        if self.r_drop:
            return r_drop_sum(outputs, targets, self.r_drop, smoothing, soft)
        return labels_loss_sum(model.head, outputs, targets, smoothing, soft, valid=ctx.valid)

    def _loss_ahead(
        self,
        chunked: ChunkedLoss,
        model: OneStream,
        x: Tensor,
        inputs: dict[str, Tensor],
        targets: Tensor,
    ) -> Tensor | float:
        """`λ / D Σ_k L_k`: the mean loss of tokens further ahead (DeepSeek-V3, §2.2, eq. 25).

        In training alone; like the loss of the next token it is a sum over targets.
        """
        if not (isinstance(model, DecoderModel) and model.ahead and model.training):
            return 0.0
        texts = {name: inputs.get(name) for name in ("valid", "segments")}
        total = x.new_zeros(())
        for k, (hidden, ctx) in enumerate(model.hidden_ahead(x, inputs["tokens"], **texts), 1):
            ahead, module = targets_ahead(targets, k, **texts), model.ahead[k - 1]
            assert isinstance(module, TokenAhead)
            assert isinstance(model.head, TokenHead)
            loss = chunked(model.head, hidden, ctx, ahead, self.label_smoothing)
            total = total + module.loss_weight * loss
        return total

    def _custom_loss(self, module: nn.Module, logits: Tensor, targets: Tensor) -> Tensor:
        loss = module(logits, targets)
        if not isinstance(loss, Tensor) or loss.ndim:
            shape = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise InputError(
                f"train.loss: {self.kind} returns {shape}: a loss is a scalar, "
                "the sum over the targets that are not -100"
            )
        return loss
