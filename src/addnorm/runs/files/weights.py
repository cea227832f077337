"""Building a recipe's model, and loading and saving its weights."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from addnorm.convert.weights.mapped import check_readable, name_of, one_dtype
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError
from addnorm.machine import total_memory
from addnorm.models import (
    DecoderConfig,
    DualEncoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    Model,
    ModelConfig,
)
from addnorm.models.ledger import check_unchanged
from addnorm.models.weights import Weights, copy_into, weights_of
from addnorm.nn.init import without_values
from addnorm.quantize.model import laid_out
from addnorm.runs.files.digests import check_digest, write_digests
from addnorm.runs.files.quantization_file import Quantization, laid_out_as
from addnorm.runs.recipes.custom_parts import imports_of
from addnorm.runs.recipes.recipe import Recipe
from addnorm.training.checkpoint import (
    load_checkpoint,
    load_weights,
    save_weights,
    stored_weights,
)
from addnorm.training.parallel.pieces import AnyPiece
from addnorm.training.parallel.world import OneProcess, World

Splitting = Callable[[nn.Module], Mapping[str, AnyPiece]]
"""Leaves one process's pieces in a model, and returns the piece of each parameter by name."""


def unsplit(model: nn.Module) -> Mapping[str, AnyPiece]:
    """Split nothing: the model stays whole."""
    return {}


WEIGHTS = "model.safetensors"
"""The weights file in a run folder."""


def build_model(
    recipe: Recipe,
    tokenizers: Tokenizers | None,
    labels: Sequence[str],
    world: World | None = None,
    parts: float = 1.0,
) -> Model:
    """Build the untrained model of a recipe, sized for its vocabularies and labels.

    Of processes that split the weights, none has all of them, and this machine has `parts` of a
    model. Raises `InputError`, before allocating any memory, if these do not fit there.
    """
    check_memory(parts * count_parameters(recipe, tokenizers, labels))
    world = world or OneProcess()
    return world.built(lambda: _built(recipe, tokenizers, labels))


def count_parameters(
    recipe: Recipe, tokenizers: Tokenizers | None, labels: Sequence[str], *, rows: int = 0
) -> int:
    """Count the parameters of a recipe's model, tied ones once, without allocating them.

    Embeddings have at least `rows` rows, for a recipe whose tokenizer does not exist yet.
    """
    return sum(w.numel() for w in _outline(recipe, tokenizers, labels, rows=rows).parameters())


def _outline(
    recipe: Recipe, tokenizers: Tokenizers | None, labels: Sequence[str], *, rows: int = 0
) -> Model:
    """The model without memory for its weights, unless a custom part needs real tensors."""
    try:
        with without_values():
            return _built(recipe, tokenizers, labels, rows=rows)
    except (RuntimeError, OverflowError, TypeError) as error:
        if "overflow" in str(error).lower():
            raise InputError(f"model: no machine can hold its size: {SMALLER}") from error
        return _built(recipe, tokenizers, labels, rows=rows)


SMALLER = "a smaller d_model, n_layers, max_len or vocabulary"
"""The hint for a model that is too large."""


def check_memory(parameters: float) -> None:
    """Raise `InputError` if this many float32 parameters exceed the machine's memory."""
    needed, there = 4 * parameters, total_memory()
    if there is not None and needed > there:
        raise InputError(
            f"model: {parameters:,.0f} parameters take {needed / 2**30:,.0f} GiB in float32, and "
            f"this machine has {there / 2**30:,.0f} GiB: {SMALLER}"
        )


def _built(
    recipe: Recipe, tokenizers: Tokenizers | None, labels: Sequence[str], *, rows: int = 0
) -> Model:
    source, target = vocabulary_sizes(recipe.model, tokenizers)
    return sized_model(recipe.model, source or rows, target or rows, len(labels) or rows)


def vocabulary_sizes(model: ModelConfig, tokenizers: Tokenizers | None) -> tuple[int, int]:
    """Return the numbers of rows of the source and target tables; 0 if unknown."""
    source = _rows("vocab_size", model.vocab_size, tokenizers and tokenizers.source)
    if not isinstance(model, EncoderDecoderConfig):
        return source, source
    configured = model.target_vocab_size or model.vocab_size
    return source, _rows("target_vocab_size", configured, tokenizers and tokenizers.target)


def sized_model(model: ModelConfig, source: int, target: int, n_labels: int) -> Model:
    """Build a model with these numbers of rows and labels."""
    match model:
        case EncoderDecoderConfig():
            return model.build(source, target)
        case DecoderConfig() | DualEncoderConfig():
            return model.build(source)
        case EncoderConfig():
            return model.build(source, n_labels=n_labels)


def _rows(name: str, configured: int | None, tokenizer: Tokenizer | None) -> int:
    """The number of rows of an embedding table: configured, or else the vocabulary size."""
    tokens = tokenizer.vocab_size if tokenizer else 0
    if configured is not None and configured < tokens:
        raise InputError(
            f"model.{name} = {configured} is too small: the tokenizer has {tokens} tokens"
        )
    return configured or tokens


def load_model(
    folder: Path,
    recipe: Recipe,
    tokenizers: Tokenizers | None,
    labels: Sequence[str],
    *,
    dtype: torch.dtype | None = None,
    quantization: Quantization | None = None,
    split: Splitting = unsplit,
) -> Model:
    """Load the model of a run folder in evaluation mode, in `dtype` or else that of its weights.

    With `split`, it has the pieces of this process alone, and only these are read.

    It is built once, without memory until its weights are read; with custom parts once more, since
    they may hold tensors that are in no file. Raises `InputError` if the model does not fit on this
    machine, or the file does not fit the model.
    """
    model = _outline(recipe, tokenizers, labels)
    check_memory(sum(weight.numel() for weight in model.parameters()))
    has_own_parts = bool(imports_of(recipe))
    if has_own_parts:
        model = _built(recipe, tokenizers, labels)
    if quantization is not None:
        with nullcontext() if has_own_parts else without_values():
            model = laid_out_as(model, quantization, folder)
    stored = load_into(model, folder / WEIGHTS, dtype, split)
    return model.eval() if quantization else model.to(stored).eval()


def load_into(
    model: nn.Module, file: Path, dtype: torch.dtype | None = None, split: Splitting = unsplit
) -> torch.dtype:
    """Load a safetensors file into `model`; return `dtype`, or else that of the stored weights.

    Raises `InputError` naming tensors that are missing, unexpected or of a different shape.
    """
    weights, stored = _checked_weights(model, file)
    chosen = one_dtype(file, stored) if dtype is None else dtype
    if chosen == torch.float64:
        model.to(chosen)
    pieces = split(model)
    weights |= {name: piece.of(weights[name]) for name, piece in pieces.items()}
    if all(weight.is_meta for weight in weights_of(model).values()):
        _fill(model, weights)
    else:
        copy_into(model, weights)
    return chosen


def outlined_model(
    folder: Path, recipe: Recipe, tokenizers: Tokenizers | None, labels: Sequence[str]
) -> tuple[Model, Mapping[str, Tensor]]:
    """The model of a run folder without its weights, and these, each read when it is asked for.

    Raises `InputError` if the file does not fit the model.
    """
    model, file = _outline(recipe, tokenizers, labels), folder / WEIGHTS
    _checked_weights(model, file)
    return model, stored_weights(file)


def _checked_weights(model: nn.Module, file: Path) -> tuple[Weights, dict[str, torch.dtype]]:
    """The weights in a file that fits a model, and their types as `_stored_dtypes` has them."""
    check_digest(file)
    weights = load_weights(file)
    if problems := _differences(weights, weights_of(model)):
        raise InputError(f"{file}: does not fit this model {problems}")
    return weights, _stored_dtypes(model, weights, file)


def stopped_model(
    checkpoint: Path, recipe: Recipe, tokenizers: Tokenizers | None, labels: Sequence[str]
) -> Model:
    """The model of an unfinished run, with a checkpoint's weights or their moving average.

    Raises `InputError` for a checkpoint that is damaged, or of another model.
    """
    model = build_model(recipe, tokenizers, labels)
    groups, _ = load_checkpoint(checkpoint)
    weights = dict(groups.get("average", groups["model"]))
    if problems := _differences(weights, weights_of(model)):
        raise InputError(f"{checkpoint}: does not fit this model {problems}")
    copy_into(model, weights)
    return model.eval()


def _fill(model: nn.Module, weights: Weights) -> None:
    """Load weights into a model without values; tied weights stay tied, dtypes are the model's."""
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    new = {
        id(old): nn.Parameter(copied, old.requires_grad)
        if isinstance(old, nn.Parameter)
        else copied
        for name, weight in weights.items()
        for old in [named[name]]
        for copied in [weight.to(old.dtype, copy=True)]
    }
    for module in model.modules():
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, old in own:
            setattr(module, name, new[id(old)])


def _stored_dtypes(model: nn.Module, stored: Weights, file: Path) -> dict[str, torch.dtype]:
    """Return the types of stored weights; a single one if all are those of the model.

    Raises `InputError` for one that is not read as weights.
    """
    floats: dict[str, torch.dtype] = {}
    for name, weight in weights_of(model).items():
        dtype = stored[name].dtype
        if weight.is_floating_point():
            check_readable(file, name, dtype)
            floats[name] = dtype
        elif dtype != weight.dtype:
            expected = name_of(weight.dtype)
            raise InputError(f"{file}: {name} holds {name_of(dtype)}, expected {expected}")
    expected = {name: weight.dtype for name, weight in weights_of(model).items()}
    same = all(expected[name] == dtype for name, dtype in floats.items())
    return dict([*floats.items()][:1]) if same else floats


def check_model(
    model: nn.Module,
    recipe: Recipe,
    tokenizers: Tokenizers | None,
    labels: Sequence[str],
    quantization: Quantization | None = None,
) -> None:
    """Raise `InputError` unless the model, apart from its weights, is that of its recipe."""
    with without_values():
        built = _built(recipe, tokenizers, labels)
        if quantization is not None:
            built = laid_out(built, quantization.scheme, quantization.kept, quantization.included)
    if problems := _differences(weights_of(model), weights_of(built)):
        raise InputError(f"the model is not that of its configuration {problems}")
    check_unchanged(model, built)


def _differences(weights: Weights, expected: Weights) -> str:
    """A message about differences in names and shapes of weights; empty if there are none."""
    problems = [f"missing {name}" for name in expected.keys() - weights.keys()]
    problems += [f"unexpected {name}" for name in weights.keys() - expected.keys()]
    problems += [
        f"{name} has shape {tuple(weights[name].shape)}, expected {tuple(weight.shape)}"
        for name, weight in expected.items()
        if name in weights and weights[name].shape != weight.shape
    ]
    shown = "; ".join(sorted(problems)[:5])
    return f"({len(problems)} problems): {shown}" if problems else ""


def save_model(folder: Path, model: nn.Module, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write `model.safetensors`, tied weights once, and the digests of the finished run.

    With `weights`, these are written one at a time, and the model has only their shapes.
    """
    outline = weights_of(model)
    save_weights(folder / WEIGHTS, outline if weights is None else weights, outline)
    write_digests(folder)
