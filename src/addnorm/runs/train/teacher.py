"""The teacher of a student: checks that they fit, and writes the teacher's translations."""

import json
from codecs import lookup
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter
from rich.console import Console
from torch import nn
from xxhash import xxh3_128_hexdigest

from addnorm.atomic import atomic_write
from addnorm.data import ParallelConfig
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError
from addnorm.files import read_json
from addnorm.models import DecoderModel, EncoderModel, Model
from addnorm.models.weights import weights_of
from addnorm.nn.heads import TokenHead
from addnorm.nn.similarity import SimilarityHead
from addnorm.runs.files.digests import digest
from addnorm.runs.files.quantization_file import check_float
from addnorm.runs.files.weights import build_model
from addnorm.runs.inference.text import write
from addnorm.runs.named_rows import take_weights
from addnorm.runs.opening import open_model
from addnorm.runs.recipes.recipe import Recipe
from addnorm.runs.recipes.starting_model import MatchReport, transfer_matching_weights
from addnorm.runs.trained_model import TrainedModel
from addnorm.tasks.registry import wrong_task
from addnorm.tasks.translation import SequenceToSequence
from addnorm.training.distillation import from_teacher
from addnorm.training.loss import HasLoss
from addnorm.training.progress import text_progress

SHOWN = 3
"""The most differing tokens that a message names."""


def open_teacher(
    folder: Path,
    student: Model,
    tokenizers: Tokenizers | None,
    labels: Sequence[str],
    variables: Sequence[str] = (),
) -> TrainedModel:
    """Open a run as the teacher of a student with these tokens, labels and variables.

    Its labels and variables are put in the student's order. Raises `InputError` if its task,
    tokens, labels or variables differ, and for a student with early exits, which have no teacher.
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
            raise InputError(f"{where} has other {what}: {there}; the student has {here}")
    check_student(run, student)
    return _in_order(run, tuple(labels), tuple(variables))


def check_student(teacher: TrainedModel, student: Model) -> None:
    """Raise `InputError` for a student of another kind, with exits, or with another head."""
    _check_kind(teacher, student)
    where = f"train.distillation.teacher: {teacher.name}"
    _check_heads(where, teacher.model.head, student.head)


def _check_kind(teacher: TrainedModel, student: Model) -> None:
    where = f"train.distillation.teacher: {teacher.name}"
    if type(teacher.model) is not type(student):
        raise InputError(
            f"{where} has a model of kind {teacher.recipe.model.kind}, and the student another: "
            "both must be of one kind"
        )
    if isinstance(student, EncoderModel | DecoderModel) and student.exits:
        raise InputError("train.distillation teaches the last layer alone: leave model.exits out")
    for model in (teacher.model, student):
        if isinstance(model, DecoderModel) and model.ahead:
            raise InputError(
                "train.distillation teaches the next token alone: leave model.mtp out of the "
                "student, and give a teacher without"
            )


def _in_order(
    run: TrainedModel, labels: tuple[str, ...], variables: tuple[str, ...]
) -> TrainedModel:
    """Return the run with its labels and variables in this order."""
    if run.labels == labels and run.variables == variables:
        return run
    check_float(run, "has its labels put in another order")
    model = build_model(run.recipe, run.text, labels)
    take_weights(model, run.recipe.model, (run.text, labels, variables), run)
    return replace(run, labels=labels, variables=variables, model=model.to(run.device).eval())


def begin_from(teacher: TrainedModel, student: Model) -> MatchReport:
    """Copy evenly spaced layers, and other weights of equal name, from the teacher to the student.

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
    """Raise `InputError` for a CRF, for other tokens, and for heads that read pairs otherwise."""
    heads = (theirs, ours)
    if any(isinstance(head, HasLoss) for head in heads):
        raise InputError(
            f"{where}: a head such as crf learns its outputs together, and a student learns each "
            "by itself: for tags, teacher and student need model.head.kind = 'tagging'"
        )
    if isinstance(theirs, SimilarityHead) != isinstance(ours, SimilarityHead):
        raise InputError(
            f"{where} and the student read pairs differently: one encodes the texts separately, "
            "the other together"
        )
    widths = [head.weight.shape[0] for head in heads if isinstance(head, TokenHead)]
    if len({*widths}) > 1:
        raise InputError(f"{where} predicts {widths[0]:,} tokens, and the student {widths[1]:,}")


def _check_tokens(what: str, theirs: Tokenizer, ours: Tokenizer) -> None:
    """Raise `InputError` for other tokens, naming the first that differ."""
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


FACTS, PARTIAL, WHOLE = "sequences.json", "sequences.partial.txt", "sequences.txt"
AT_ONCE = 64
"""Sentences between two writes: the most that a kill loses."""


def written_sequences(
    teacher: TrainedModel, recipe: Recipe, folder: Path, console: Console
) -> tuple[Path, Path]:
    """Write the teacher's translation of each training source; return both files.

    Kim & Rush 2016, §3.2, with the decoding of the teacher's recipe. Work that was stopped resumes.
    Raises `InputError` if the data are not parallel files, or if the folder holds the translations
    of another teacher or source.
    """
    data = recipe.data
    if not isinstance(data, ParallelConfig):
        raise InputError("`sequences` needs data.kind = 'parallel', a file of lines to translate")
    if not isinstance(teacher.task_value, SequenceToSequence):
        raise wrong_task(teacher, "does not translate, as `sequences` needs")
    _check_readable(data)
    sources = [line for _, line in data.lines(data.train[0])]  # which the teacher reads in its way
    folder.mkdir(parents=True, exist_ok=True)
    _check_same(folder / FACTS, _facts(teacher, recipe, sources))
    whole, partial = folder / WHOLE, folder / PARTIAL
    if whole.is_file():
        return data.train[0], whole.absolute()
    done = _finished_lines(partial)
    with (
        partial.open("a", encoding="utf-8") as out,
        text_progress(console, "translating", len(sources)) as advance,
    ):
        advance(done)
        for first in range(done, len(sources), AT_ONCE):
            group = sources[first : first + AT_ONCE]
            results = write(teacher, group, teacher.recipe.eval.decoding, first=first)
            out.writelines(f"{best[0].text.replace(chr(10), ' ')}\n" for best in results)
            out.flush()
            advance(len(group))
    partial.replace(whole)
    return data.train[0], whole.absolute()


def _finished_lines(file: Path) -> int:
    """Cut an incomplete line off the end of a file, and return the number of lines."""
    if not file.exists():
        return 0
    content = file.read_bytes()
    end = content.rfind(b"\n") + 1
    with file.open("r+b") as out:
        out.truncate(end)
    return content.count(b"\n")


def _check_readable(data: ParallelConfig) -> None:
    """Raise `InputError` if the student's data settings would not read the translations."""
    if lookup(data.encoding).name != "utf-8":
        raise InputError(
            f"`sequences` writes UTF-8, and data.encoding = {data.encoding!r}: convert the data's "
            "files to UTF-8"
        )
    if data.valid_fraction:
        raise InputError(
            f"data.valid_fraction = {data.valid_fraction}: with `sequences` it would hold out the "
            "teacher's translations, and no references: name the files in data.valid"
        )


def _facts(teacher: TrainedModel, recipe: Recipe, sources: Sequence[str]) -> dict[str, str]:
    assert isinstance(recipe.data, ParallelConfig)
    weights = [file for place in teacher.places for file in sorted(place.glob("*.safetensors"))]
    return {
        "teacher": " ".join(map(digest, weights)),
        "decoding": str(teacher.recipe.eval.decoding),
        "source": str(recipe.data.train[0]),
        "text of the source": xxh3_128_hexdigest("\n".join(sources).encode()),
    }


def _check_same(file: Path, facts: dict[str, str]) -> None:
    if not file.is_file():
        atomic_write(file, json.dumps(facts, indent=1))
        return
    # Earlier files lack the digest of the text.
    before = {"text of the source": facts["text of the source"]} | read_json(
        file, TypeAdapter(dict[str, str])
    )
    changed = [name for name, value in facts.items() if before.get(name) != value]
    if changed:
        raise InputError(
            f"{file.parent}: holds the sequences of another {changed[0]}: choose another `out`"
        )
