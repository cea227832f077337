"""The teacher of a student: opened, and held to the same task, tokens and labels."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError
from addnorm.models import DecoderModel, EncoderModel, Model
from addnorm.models.weights import weights_of
from addnorm.nn.heads import TokenHead
from addnorm.nn.similarity import SimilarityHead
from addnorm.runs.files.quantization_file import check_float
from addnorm.runs.files.weights import build_model
from addnorm.runs.named_rows import take_weights
from addnorm.runs.opening import open_model
from addnorm.runs.recipes.starting_model import MatchReport, transfer_matching_weights
from addnorm.runs.trained_model import TrainedModel
from addnorm.training.distillation import from_teacher
from addnorm.training.loss import HasLoss

SHOWN = 3
"""How many tokens that differ are named."""


def open_teacher(
    folder: Path,
    student: Model,
    tokenizers: Tokenizers | None,
    labels: Sequence[str],
    variables: Sequence[str] = (),
) -> TrainedModel:
    """The run in a folder, as the teacher of a student with these tokens, labels and variables.

    Labels and variables in another order are put in that of the student. Raises `InputError` if its
    task, tokens, labels or variables are others, and for a student whose early exits nothing would
    teach.
    """
    run = open_model(folder)
    where = f"train.distillation.teacher: {folder}"
    _check_kind(run, student)
    if (run.text is None) != (tokenizers is None):
        raise InputError(f"{where} reads {'no text' if run.text is None else 'text'}")
    if run.text is not None and tokenizers is not None:
        sides = {"source": (run.text.source, tokenizers.source)}
        sides["target"] = (run.text.target, tokenizers.target)
        for side, (theirs, ours) in sides.items():
            _check_tokens(f"{where} has other {side} tokens", theirs, ours)
    for what, theirs, ours in (
        ("labels", run.labels, labels),
        ("variables", run.variables, variables),
    ):
        if sorted(theirs) != sorted(ours):
            there, here = (", ".join(side) or "none" for side in (theirs, ours))
            raise InputError(f"{where} has other {what}: {there} there, and {here} here")
    check_student(run, student)
    return _in_order(run, tuple(labels), tuple(variables))


def check_student(teacher: TrainedModel, student: Model) -> None:
    """Raise `InputError` for a student of another kind, with exits, or a head of another kind."""
    _check_kind(teacher, student)
    where = f"train.distillation.teacher: {teacher.name}"
    _check_heads(where, teacher.model.head, student.head)


def _check_kind(teacher: TrainedModel, student: Model) -> None:
    where = f"train.distillation.teacher: {teacher.name}"
    if type(teacher.model) is not type(student):
        raise InputError(
            f"{where} has a model of kind {teacher.recipe.model.kind}, and the student another: a "
            "student is of the kind of its teacher"
        )
    if isinstance(student, EncoderModel | DecoderModel) and student.exits:
        raise InputError("train.distillation teaches the last layer alone: leave model.exits out")


def _in_order(
    run: TrainedModel, labels: tuple[str, ...], variables: tuple[str, ...]
) -> TrainedModel:
    """The run with its labels and variables in this order. Raises `InputError` if quantised."""
    if run.labels == labels and run.variables == variables:
        return run
    check_float(run, "has its labels put in another order")
    model = build_model(run.recipe, run.text, labels)
    take_weights(model, run.recipe.model, (run.text, labels, variables), run)
    return replace(run, labels=labels, variables=variables, model=model.to(run.device).eval())


def begin_from(teacher: TrainedModel, student: Model) -> MatchReport:
    """Copy the teacher's weights that have a place in the student, evenly spaced layers among them.

    Raises `InputError` where no layer takes any, and if the teacher is quantised.
    """
    check_float(teacher, "gives its layers to a student")
    weights = from_teacher(teacher.weights, student, teacher.model)
    matrices = {name: w for name, w in weights_of(student).items() if w.ndim > 1}
    layers = {name: w.shape for name, w in matrices.items() if ".blocks." in name}
    if layers and not any(weights[k].shape == layers[k] for k in layers.keys() & weights.keys()):
        raise InputError(
            f'train.distillation.start = "teacher": no layer of {teacher.name} has the name and '
            f"shape of one of the student's: give it model.d_model = {teacher.recipe.model.d_model}"
            ' and the teacher\'s sizes, or start = "random" and train.distillation.hidden_states, '
            "which learns a map from one width to another"
        )
    return transfer_matching_weights(student, weights)


def _check_heads(where: str, theirs: nn.Module, ours: nn.Module) -> None:
    """Raise `InputError` for a head of other tokens, one that reads pairs otherwise, or a CRF."""
    heads = (theirs, ours)
    if any(isinstance(head, HasLoss) for head in heads):
        raise InputError(
            f"{where}: a head such as crf gives its outputs together, and a student learns each by "
            "itself: of tags, teacher and student need model.head.kind = 'tagging'"
        )
    if isinstance(theirs, SimilarityHead) != isinstance(ours, SimilarityHead):
        raise InputError(
            f"{where} and the student read pairs of texts differently: one of them each text by "
            "itself, the other both together"
        )
    widths = [head.weight.shape[0] for head in heads if isinstance(head, TokenHead)]
    if len({*widths}) > 1:
        raise InputError(f"{where} predicts {widths[0]:,} tokens, and the student {widths[1]:,}")


def _check_tokens(what: str, theirs: Tokenizer, ours: Tokenizer) -> None:
    """Raise `InputError` naming the first tokens whose ids are not the same."""
    n = max(theirs.vocab_size, ours.vocab_size)
    tokens = [(i, _token(theirs, i), _token(ours, i)) for i in range(n)]
    different = [(i, there, here) for i, there, here in tokens if there != here]
    if not different:
        return
    shown = "; ".join(f"{i} is {a} there and {b} here" for i, a, b in different[:SHOWN])
    more = f"; and {len(different) - SHOWN:,} more" if len(different) > SHOWN else ""
    raise InputError(f"{what}: {shown}{more}. Leave [tokenizer] out to take the teacher's.")


def _token(tokenizer: Tokenizer, i: int) -> str:
    name = tokenizer.codec.name(i) if i < tokenizer.vocab_size else None
    return "nothing" if name is None else repr(name)
