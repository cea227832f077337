"""A trained model: its weights with its tokenizers, labels and recipe."""

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from addnorm.arguments import known_keywords
from addnorm.convert.core.modules import inner_places
from addnorm.data import ChatConfig, Corpus, LabelledSeriesConfig, medium_of
from addnorm.data.example import PROPERTIES, Medium, has_files, has_signals
from addnorm.data.scaling import Scaling
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.errors import InputError, choices, nearest, with_article
from addnorm.models import DecoderConfig, DualEncoderModel, Model
from addnorm.models.weights import weights_of
from addnorm.notebooks import html_table
from addnorm.quantize import with_weights
from addnorm.runs.files.quantization_file import Quantization, check_float
from addnorm.runs.options import Weights
from addnorm.runs.recipes.consistency import MEDIA
from addnorm.runs.recipes.recipe import Recipe, task_of
from addnorm.tasks.registry import task_of_head
from addnorm.tasks.task import Task

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
"""The dtypes that weights may have."""


def dtype_named(name: str | torch.dtype) -> torch.dtype:
    """The dtype with this name. Raises `InputError` for an unknown one."""
    word = str(name).removeprefix("torch.")
    if word not in DTYPES:
        raise InputError(f"dtype = {word!r} is not a dtype of weights.{choices(word, DTYPES)}")
    return DTYPES[word]


def device_named(name: str | torch.device) -> torch.device:
    """The device with this name; "auto" selects a GPU if there is one.

    Raises `InputError` if it is not available.
    """
    if name == "auto":
        name = next((kind for kind, there in _accelerators().items() if there), "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        here = ["cpu", *(kind for kind, there in _accelerators().items() if there)]
        names = ["auto", "cpu", *_accelerators()]
        word = str(name).partition(":")[0]
        near = "" if word in names else nearest(word, names)
        raise InputError(
            f"`device = {str(name)!r}` is not available.{near} torch sees: {', '.join(here)}."
        ) from error
    return device


def _accelerators() -> dict[str, bool]:
    """The accelerators that torch supports, and whether they are available."""
    return {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}


T = TypeVar("T", bound="TrainedModel")


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """A trained model with its tokenizers, labels and recipe, which every operation takes.

    Attributes
    ----------
    folder
        Where it was opened or trained; None for one that is in memory alone.
    recipe
        Its model's configuration (`recipe.model`), and how it was trained.
    text
        The tokenizers, where the model has to do with text; `tokenizers` insists on them.
    labels
        The classes or tags, or the names of numbers, in the order of the model's outputs.
    model
        The model itself, an `nn.Module`.
    corpus
        The data, where they were given in Python and are in no file.
    quantization
        How its model was quantised, if it was.
    scaling
        The scaling of the series that it forecasts, by its training part.
    variables
        The names of the variables of the series that it reads whole.
    bases
        The folders of an adapter's base: they have what the adapter's folder has not.
    log
        The lines of `metrics.jsonl`, where it was trained in memory alone.
    """

    folder: Path | None
    recipe: Recipe
    text: Tokenizers | None
    labels: tuple[str, ...]
    model: Model
    corpus: Corpus | None = None
    quantization: Quantization | None = None
    scaling: Scaling | None = None
    variables: tuple[str, ...] = ()
    bases: tuple[Path, ...] = ()
    log: bytes = b""

    def __repr__(self) -> str:
        n = sum(weight.numel() for weight in self.weights.values())
        kind = with_article(self.recipe.model.kind)
        return f"<{type(self).__name__} of {kind}: {n:,} weights, {self.name}>"

    def _repr_html_(self) -> str:
        n = sum(weight.numel() for weight in self.weights.values())
        sizes = {} if self.text is None else {"vocabulary": self.text.source.vocab_size}
        classes = {"labels": ", ".join(self.labels)} if self.labels else {}
        model = self.recipe.model
        rows = {"task": self.task, "model": model.kind, "layers": model.n_layers}
        rows |= {"width": model.d_model, "weights": n, **sizes, **classes, "folder": self.name}
        return html_table(type(self).__name__, rows)

    @property
    def name(self) -> str:
        """The name for messages: the folder, if there is one."""
        return "this run" if self.folder is None else str(self.folder)

    @property
    def places(self) -> tuple[Path, ...]:
        """The folders of the files other than weights: the run's, then its base's."""
        return self.bases if self.folder is None else (*inner_places(self.folder), *self.bases)

    def written_to(self: T, folder: Path | None) -> T:
        """Return this run as one whose folder holds all of its files."""
        return replace(self, folder=folder, bases=(), log=b"")

    @property
    def task(self) -> str:
        """The name of the model's task, such as "language", "translation" or "classification"."""
        return self.task_value.name

    @property
    def task_value(self) -> Task:
        """The task of the model as a value, with its properties and functions."""
        return task_of(self.recipe)

    @property
    def encodes_itself(self) -> bool:
        """Whether a custom task encodes the model's texts; a head without a task has none."""
        has_task = task_of_head(self.recipe.model.head) is not None
        return has_task and self.task_value.encodes_itself

    @property
    def call(self) -> str:
        """The call that uses the model on new data, for messages."""
        if self.reads_tables:
            return "run.predict_series(files)"
        is_classifier = self.task_value.call == "run.classify(texts)"
        return (
            "run.classify_files(files)"
            if is_classifier and self.reads_files
            else self.task_value.call
        )

    @property
    def medium(self) -> Medium | None:
        """The medium of the model's data or, for a model without data, of its input."""
        data, model = self.recipe.data, self.recipe.model
        if data is not None or isinstance(model, DecoderConfig):
            return medium_of(data)
        return MEDIA.get(model.input.kind, "text")

    @property
    def reads_files(self) -> bool:
        """Whether the model reads images or sound from files, instead of lines of text."""
        return has_files(self.medium)

    @property
    def compares(self) -> bool:
        """Whether the model compares pictures and texts by their vectors."""
        return isinstance(self.model, DualEncoderModel)

    @property
    def reads_tables(self) -> bool:
        """Whether the model reads whole series, each in the rows of a table."""
        return isinstance(self.recipe.data, LabelledSeriesConfig)

    @property
    def hears(self) -> bool:
        """Whether the model reads sound."""
        return self.medium is not None and PROPERTIES[self.medium].frames

    @property
    def chats(self) -> bool:
        """Whether the model was trained to chat, so that each text is a user's message."""
        return isinstance(self.recipe.data, ChatConfig)

    @property
    def tokenizers(self) -> Tokenizers:
        """The tokenizers. Raises `InputError` if the model has none, such as an image model."""
        if self.text is None:
            signals = has_signals(self.medium)
            why = f"reads {self.medium}, not text" if signals else "has no tokenizer"
            raise InputError(f"{self.name}: this model {why}")
        return self.text

    @property
    def weights(self) -> dict[str, Tensor]:
        """All weights of the model by name, tied ones once."""
        return weights_of(self.model)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    @known_keywords
    def to(
        self: T,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        weights: Weights | None = None,
    ) -> T:
        """Move the model to a device, or convert its weights to another dtype; return this run.

        `run.to("cuda")`, `run.to(dtype="bfloat16")`. With `weights = "int8"` they are kept in fewer
        bits, and activations stay as they are. Raises `InputError` for an unavailable device, an
        unknown dtype, or other weights.
        """
        if device is not None:
            self.model.to(device_named(device))
        if dtype is not None:
            check_float(self, "has another dtype")
            self.model.to(dtype_named(dtype))
        if weights is not None:
            with_weights(self.model, weights)
        return self


def moved_copy(run: T, *, device: torch.device | None = None, dtype: torch.dtype) -> T:
    """Return a copy of the run on another device or in another dtype; itself if nothing changes."""
    place = device or run.device
    if all(w.device == place and w.dtype == dtype for w in run.weights.values()):
        return replace(run, model=run.model.eval())
    return replace(run, model=copy.deepcopy(run.model).to(place, dtype).eval())
