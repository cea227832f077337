"""A trained model: its weights with its tokenizers, labels and recipe, whatever is done with it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from addnorm.convert.core.modules import inner_places
from addnorm.data import Corpus, medium_of
from addnorm.data.examples import Medium, Task
from addnorm.data.scaling import Scaling
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.errors import InputError, known_keywords
from addnorm.models import DecoderConfig, Model
from addnorm.models.weights import weights_of
from addnorm.runs.devices import device_named, dtype_named
from addnorm.runs.files.quantization_file import Quantization, check_float
from addnorm.runs.recipes.consistency import MEDIA
from addnorm.runs.recipes.recipe import Recipe, task_of

T = TypeVar("T", bound="TrainedModel")


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """A trained model with its tokenizers, labels and recipe: what every operation takes.

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

    def __repr__(self) -> str:
        n = sum(weight.numel() for weight in self.weights.values())
        article = "an" if (kind := self.recipe.model.kind).startswith("encoder") else "a"
        return f"<{type(self).__name__} of {article} {kind}: {n:,} weights, {self.name}>"

    @property
    def name(self) -> str:
        """The name for messages: the folder, if there is one."""
        return "this run" if self.folder is None else str(self.folder)

    @property
    def places(self) -> tuple[Path, ...]:
        """Where what is around the weights is looked up: in its folder, then in its base's."""
        return self.bases if self.folder is None else (*inner_places(self.folder), *self.bases)

    def written_to(self: T, folder: Path | None) -> T:
        """This run as it is in a folder that has all of it."""
        return replace(self, folder=folder, bases=())

    @property
    def task(self) -> Task:
        """The task of the model, such as "language", "translation" or "classification"."""
        return task_of(self.recipe)

    @property
    def medium(self) -> Medium | None:
        """What the model reads: that of its data, or of its input where it came without any."""
        data, model = self.recipe.data, self.recipe.model
        if data is not None or isinstance(model, DecoderConfig):
            return medium_of(data)
        return MEDIA.get(model.input.kind, "text")

    @property
    def tokenizers(self) -> Tokenizers:
        """The tokenizers. Raises `InputError` if the model has none, such as an image model."""
        if self.text is None:
            known = self.medium in ("images", "audio", "series")
            why = f"reads {self.medium}, not text" if known else "has no tokenizer"
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
        self: T, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None
    ) -> T:
        """Move the model to a device, or convert its weights to another dtype; return this run.

        `run.to("cuda")`, `run.to(dtype="bfloat16")`. Raises `InputError` for an unavailable device
        or an unknown dtype.
        """
        if device is not None:
            self.model.to(device_named(device))
        if dtype is not None:
            check_float(self, "has another dtype")
            self.model.to(dtype_named(dtype))
        return self
