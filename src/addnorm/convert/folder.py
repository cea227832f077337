"""Loading and saving models as Hugging Face folders."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from warnings import warn

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from addnorm.atomic import atomic_directory
from addnorm.config import problem_of
from addnorm.convert.core.differences import check_alike
from addnorm.convert.core.equivalents import transform_tensors
from addnorm.convert.core.family import (
    DIFFERS,
    NO_PADDING,
    Family,
    ModelSpec,
    build_untrained,
    stored_tensors,
)
from addnorm.convert.core.maps import TensorMap
from addnorm.convert.core.modules import generating_place, is_run_folder, places_of
from addnorm.convert.core.readback import check_logits, check_types, model_logits, sample_inputs
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.stored_forms import check_form, dequantised
from addnorm.convert.core.tasks import check_class
from addnorm.convert.importers.gguf import gguf_tensors
from addnorm.convert.registry import families, family_named, family_of
from addnorm.convert.tokenizers.files import (
    has_tokenizer,
    load_tokenizers,
    save_tokenizer,
    special_ids,
)
from addnorm.convert.weights.files import Weights, save_folder_weights
from addnorm.convert.weights.mapped import check_readable, one_dtype
from addnorm.convert.weights.peft import is_adapter
from addnorm.data.ids.framing import around
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.errors import IgnoredSettings, InputError, some_of
from addnorm.models import DualEncoderConfig, Model, ModelConfig
from addnorm.models.ledger import Ledger, check_as_built
from addnorm.nn.functional import wide_dtype
from addnorm.nn.init import without_values


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model with its configuration and tokenizers."""

    spec: ModelSpec
    model: Model
    text: Tokenizers | None


def hf_model_type(folder: Path) -> str | None:
    """The `model_type` of a Hugging Face folder, or of an adapter for one; None for others."""
    if is_adapter(folder) and is_run_folder(folder):
        return None
    last = places_of(folder)[-1]
    try:
        model_type = Settings.of(last).tree.get("model_type")
    except InputError:
        return None
    return None if model_type is None else str(model_type)


def is_hf_folder(folder: Path) -> bool:
    """Whether this is a Hugging Face folder."""
    return hf_model_type(folder) is not None


def describe_folder(
    folder: Path, *, pickled: bool = False
) -> tuple[Family, ModelSpec, Tokenizers | None]:
    """Read all of a Hugging Face folder except its weights. Raises `InputError` as `load` does.

    For the folder of an adapter, the model and the labels are those of its base, and so is the
    tokenizer unless the adapter has one.
    """
    places = places_of(folder)
    folder = places[-1]
    settings = Settings.of(folder)
    family = family_of(settings)
    spec = read_config(family, settings)
    if family.refine_by_names is not None or family.ahead is not None:
        weights = _open_weights(folder, settings, pickled=pickled)
        spec = family.refined(spec, [family.renamed(name) for name in weights])
    text = load_tokenizers(
        next((place for place in places if has_tokenizer(place)), folder),
        settings.get("model_type", ""),
        settings.tree,
        generates=generating_place(places),
    )
    spec = _filled_by(text, spec)
    sizes = (spec.vocab_size, spec.target_vocab_size or spec.vocab_size)
    sides = () if text is None else (text.source, text.target)
    for side, size in zip(sides, sizes, strict=False):
        if side.vocab_size > size:
            raise InputError(
                f"{folder}: the tokenizer has {side.vocab_size} tokens, but config.json has "
                f"vocab_size = {size}"
            )
    return family, spec, text


def load(
    folder: Path,
    *,
    dtype: torch.dtype | None = None,
    pickled: bool = False,
    model: ModelConfig | None = None,
) -> LoadedModel:
    """Load the model of a Hugging Face folder, in evaluation mode.

    Weights keep the type of the file unless `dtype` is given; weights of several types get the
    `dtype` of `config.json`, or else the widest of their types. They are memory-mapped: a tensor is
    read from disk when it is first used. `pickled` allows a `pytorch_model.bin`. `model` replaces
    the configuration, and may differ from it in settings without weights, such as a rate of
    dropout. In a folder of sentence-transformers, the model is that of the module `Transformer`.

    Raises `InputError` naming the file, key or tensor that is missing, damaged or not supported.
    """
    folder = places_of(folder)[-1]
    family, spec, text = describe_folder(folder, pickled=pickled)
    weights = _open_weights(folder, Settings.of(folder), pickled=pickled)
    with without_values():
        new = build_untrained(spec if model is None else replace(spec, model=model))
    matched = _matched(family, spec, new, weights, folder)
    tensors = _read_tensors(matched, weights, folder, _buffers(new), dtype)
    _check_shapes(new, tensors, matched, folder)
    set_parameters(new, tensors)
    return LoadedModel(spec, new.eval(), text)


def load_gguf(
    file: Path, *, dtype: torch.dtype | None = None, model: ModelConfig | None = None
) -> Model:
    """Load the model of a GGUF file in evaluation mode (see `load` for `dtype` and `model`).

    Raises `InputError` naming the key or tensor that is missing, damaged or not supported.
    """
    spec, tensors = gguf_tensors(file, dtype, model)
    with without_values():
        new = build_untrained(spec)
    set_parameters(new, tensors)
    return new.eval()


def check_weights(folder: Path) -> None:
    """Compare the weights of a Hugging Face folder with its `config.json`, as `load` does.

    Names, types and shapes are compared without reading the weights, except for tied ones that
    are stored twice. Raises `InputError` naming the tensors that do not fit.
    """
    folder = places_of(folder)[-1]
    family, spec, _ = describe_folder(folder)
    weights = _open_weights(folder, Settings.of(folder))
    with without_values():
        new = build_untrained(spec)
    matched = _matched(family, spec, new, weights, folder)
    tensors = _read_tensors(matched, weights.without_values(), folder, _buffers(new))
    _check_shapes(new, tensors, matched, folder)


EARLIER = (
    *("model*.safetensors", "model.safetensors.index.json", "adapter_model.safetensors"),
    *("config.json", "*_config.json", "config_sentence_transformers.json", "modules.json"),
    *("*tokenizer.json", "*vocab.json", "added_tokens.json", "special_tokens_map.json"),
    *("labels.json", "export_account.json"),
)
"""The files of an earlier model in a folder, which go where another is written."""


def save(
    folder: Path,
    spec: ModelSpec,
    model: Model,
    text: Tokenizers | None,
    *,
    model_type: str | None = None,
    generation: Mapping[str, Any] | None = None,
    ids: Mapping[str, Any] | None = None,
    also: Callable[[Path], None] | None = None,
) -> str:
    """Save a folder that transformers can load; return its `model_type`.

    `generation` are further keys of `generation_config.json`; `ids` are the token ids of a model
    without a tokenizer; `also` writes further files to the folder before it is moved into place.

    By default `model_type` is the first family that can express the model. The model must match
    `spec`, and the folder, loaded again, must reproduce its logits. Raises `InputError` naming
    parts that the family lacks or that do not match `spec`.
    """
    check_types("a Hugging Face folder", model)
    candidates = [*families()] if model_type is None else [model_type]
    mixers = [family_named(name, "the family to export to").mixers for name in candidates]
    check_alike(spec.model, "no Hugging Face family", tuple(chain.from_iterable(mixers)))
    if text is not None:
        side = text.source
        pad_id = side.pad_id if side.pad_id in side.special_ids else NO_PADDING
        spec = replace(spec, pad_id=pad_id)
    family, config = _choose_family(spec, model_type)
    tensors = _write_tensors(family, spec, model)
    dtype = reduce(torch.promote_types, {weight.dtype for weight in model.parameters()})
    tensors = {
        name: tensor.to(torch.promote_types(tensor.dtype, dtype))
        for name, tensor in tensors.items()
    }
    config |= {"dtype": str(dtype).removeprefix("torch."), "transformers_version": "5.0.0"}
    ids = dict(ids or {}) if text is None else special_ids(text, config["model_type"])
    if family.looks_up_end and text is not None:
        ids["eos_token_id"] = around("classification", text.source)[1][-1]
    config |= ids
    if isinstance(spec.model, DualEncoderConfig):
        config["text_config"] = ids | config["text_config"]
    family.check_expressible(spec, config)
    with atomic_directory(folder, replaces=EARLIER) as partial:
        if text is not None:
            max_len = spec.model.max_len
            save_tokenizer(partial, text, model_type=config["model_type"], max_len=max_len)
        if text is not None or generation or ids:
            _write(partial / "generation_config.json", {**ids, **(generation or {})})
        if also is not None:
            also(partial)
        save_folder_weights(partial, tensors)
        _write(partial / "config.json", config)
        inputs = sample_inputs(model)
        read_back = model_logits(load(partial).model.to(inputs[0].device), inputs)
        check_logits("Hugging Face", read_back, model_logits(model, inputs), dtype)
    return config["model_type"]


def read_config(family: Family, settings: Settings) -> ModelSpec:
    """Parse a `config.json`. Raises `InputError` naming an unsupported setting."""
    try:
        spec = family.config.read(settings)
    except ValidationError as error:  # out of range, or incompatible parts
        first = error.errors()[0]
        problem = problem_of(first)
        key = settings.key_of(first["input"])
        raise InputError(f"{settings.where}: {key}{problem}") from error
    check_form(settings)
    settings.check_all_read()
    check_class(settings, spec)
    return spec


def _filled_by(text: Tokenizers | None, spec: ModelSpec) -> ModelSpec:
    """The model with its tokenizer's padding id, if it reads padded texts."""
    model = spec.model
    if text is None or not isinstance(model, DualEncoderConfig) or model.fill is None:
        return spec
    return replace(spec, model=replace(model, fill=text.source.pad_id))


def _open_weights(folder: Path, settings: Settings, *, pickled: bool = False) -> Weights:
    """The weights of a folder, dequantised if stored in fewer bits."""
    return dequantised(Weights.open(folder, pickled=pickled), settings)


def set_parameters(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Replace parameters and persistent buffers with tensors by name, without copying.

    Tied parameters stay tied.
    """
    new: dict[int, nn.Parameter] = {}
    for name, old in model.named_parameters():
        new[id(old)] = nn.Parameter(tensors[name], requires_grad=old.requires_grad)
    for path, module in model.named_modules():
        for name, old in list(module.named_parameters(recurse=False)):
            module.register_parameter(name, new[id(old)])
        for name, _ in list(module.named_buffers(recurse=False)):
            if (tensor := tensors.get(f"{path}.{name}")) is not None:
                module.register_buffer(name, tensor)


def _buffers(model: nn.Module) -> set[str]:
    """The names of the buffers that a checkpoint stores."""
    return stored_tensors(model).keys() - dict(model.named_parameters()).keys()


# Mapping tensor names of files to those of our models.


class _Names(NamedTuple):
    """The current tensor names of a file, and the prefix to remove from ours."""

    actual: dict[str, str]
    strip: str


def _names_in(family: Family, weights: Weights, folder: Path) -> _Names:
    actual: dict[str, str] = {}
    for name in weights:
        now = family.renamed(name)
        if now in actual:
            raise InputError(f"{folder}: {name} and {actual[now]} are the same tensor of the model")
        actual[now] = name
    has_prefix = any(name.startswith(family.prefix) for name in actual)
    return _Names(actual, "" if has_prefix else family.prefix)


def _matched(
    family: Family, spec: ModelSpec, model: nn.Module, weights: Weights, folder: Path
) -> list[tuple[TensorMap, list[str]]]:
    """The family's tensor maps, each with the names of the file's tensors that it reads."""
    names = _names_in(family, weights, folder)
    maps = family.maps(spec, stored_tensors(model), names.actual)
    expected_names = {
        name: name.removeprefix(names.strip) for tensor_map in maps for name in tensor_map.theirs
    }
    _drop_tied(family.tied(spec), weights, names, expected_names, folder)
    missing = expected_names.values() - names.actual.keys()
    left = names.actual.keys() - expected_names.values()
    modules = {name: family.module_left_aside(name) for name in left}
    unexpected = {name for name in left if not (modules[name] or family.ignores(name))}
    constants = family.constants(spec)
    shapes = {name: weights.shape(names.actual[name]) for name in left if name not in unexpected}
    problems = [f"missing {name}" for name in sorted(missing)]
    problems += [
        f"{names.actual[name]} has shape {shape}, expected {expected}"
        for name, shape in sorted(shapes.items())
        for pattern, expected in constants.items()
        if re.fullmatch(pattern, name) and shape != expected
    ]
    problems += [f"unexpected {names.actual[name]}" for name in sorted(unexpected)]
    if problems:
        raise _does_not_fit(folder, problems)
    _warn_of(sorted({module for module in modules.values() if module}), folder)
    return [
        (tensor_map, [names.actual[expected_names[name]] for name in tensor_map.theirs])
        for tensor_map in maps
    ]


def _warn_of(left_aside: Sequence[str], folder: Path) -> None:
    """Warn once of modules in a file that are not read."""
    if left_aside:
        shown = ", ".join(f"{module}.*" for module in left_aside)
        warn(
            f"{folder}: the weights of {shown} are left aside: our model has no such part",
            IgnoredSettings,
            stacklevel=4,
        )


def _drop_tied(
    ties: Iterable[tuple[str, str]],
    weights: Weights,
    names: _Names,
    expected_names: dict[str, str],
    folder: Path,
) -> None:
    """Drop tied tensors that are stored twice.

    Raises `InputError` if they differ from each other.
    """
    for name, other in ties:
        tied, same = (full.removeprefix(names.strip) for full in (name, other))
        is_stored = tied in names.actual
        if name not in expected_names and is_stored:
            stored = names.actual.pop(tied)
            if same in names.actual and not _equal(weights, stored, names.actual[same], folder):
                raise InputError(
                    f"{folder}: config.json ties {tied} to {same}, and they differ: "
                    "set tie_word_embeddings = false"
                )


def _equal(weights: Weights, tied: str, other: str, folder: Path) -> bool:
    """Whether two tensors are equal, compared in the narrower of their dtypes."""
    for name in (tied, other):
        check_readable(folder, name, weights.dtype(name))
    narrow = min(weights.dtype(tied), weights.dtype(other), key=lambda dtype: dtype.itemsize)
    return torch.equal(weights[tied].to(narrow), weights[other].to(narrow))


def _read_tensors(
    matched: Sequence[tuple[TensorMap, Sequence[str]]],
    weights: Weights,
    folder: Path,
    buffers: Set[str],
    dtype: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """The weights of our model in `dtype`, or else in the dtype that `one_dtype` chooses.

    Its buffers are in at least float32.
    """
    stored = {
        name: weights.dtype(name)
        for tensor_map, names in matched
        for name in names
        if not buffers >= {*tensor_map.ours}
    }
    for name in (name for _, names in matched for name in names):
        check_readable(folder, name, weights.dtype(name))
    if dtype is None:
        tree = Settings.of(folder).tree
        dtype = one_dtype(folder, stored, tree.get("dtype") or tree.get("torch_dtype"))
    tensors: dict[str, Tensor] = {}
    for tensor_map, names in matched:
        # Statistics keep the digits by which they were accumulated.
        wide = wide_dtype(dtype) if buffers >= {*tensor_map.ours} else dtype
        tensors |= _read(tensor_map, names, weights, folder, wide)
    return tensors


def _read(
    tensor_map: TensorMap, names: Sequence[str], weights: Weights, folder: Path, dtype: torch.dtype
) -> dict[str, Tensor]:
    try:
        ours = tensor_map.read([weights[name].to(dtype) for name in names])
        return {name: new.to(dtype) for name, new in zip(tensor_map.ours, ours, strict=True)}
    except (ValueError, RuntimeError) as error:
        raise InputError(f"{folder}: {', '.join(names)} {error}") from error


def _check_shapes(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    matched: Sequence[tuple[TensorMap, Sequence[str]]],
    folder: Path,
) -> None:
    theirs = {name: some_of(names, 5) for tensor_map, names in matched for name in tensor_map.ours}
    expected = {name: tuple(tensor.shape) for name, tensor in stored_tensors(model).items()}
    assert expected.keys() == tensors.keys(), expected.keys() ^ tensors.keys()
    problems = [
        f"{theirs[name]}: {name} has shape {tuple(tensors[name].shape)}, expected {shape}"
        for name, shape in expected.items()
        if tuple(tensors[name].shape) != shape
    ]
    if problems:
        raise _does_not_fit(folder, problems)


def _does_not_fit(folder: Path, problems: Sequence[str]) -> InputError:
    shown = "; ".join(problems[:8])
    more = f"; and {len(problems) - 8} more" if len(problems) > 8 else ""
    return InputError(f"{folder}: the weights do not fit config.json: {shown}{more}")


def _write_tensors(family: Family, spec: ModelSpec, model: nn.Module) -> dict[str, Tensor]:
    ledger = Ledger(model, "Hugging Face")
    with without_values():
        check_as_built(ledger, model, build_untrained(spec))
    equivalent = replace(spec, model=family.equivalent(spec.model))
    with without_values():
        built = build_untrained(equivalent)
    shapes = {name: tensor.shape for name, tensor in stored_tensors(built).items()}
    state = ledger.state()
    ours = {name: state[name].detach() for name in stored_tensors(model)}
    ledger.close()
    ours = transform_tensors(ours, spec.model, equivalent.model, shapes)
    tensors: dict[str, Tensor] = {}
    for tensor_map in family.maps(equivalent, shapes):
        written = tensor_map.write([ours.pop(name) for name in tensor_map.ours])
        tensors |= dict(zip(tensor_map.theirs, written, strict=True))
    assert not ours, ours.keys()
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def family_for(spec: ModelSpec) -> str:
    """The first family that can express a model. Raises `InputError` with what the nearest has."""
    return _choose_family(spec, None)[0].model_type


def _choose_family(spec: ModelSpec, model_type: str | None) -> tuple[Family, Json]:
    """The requested family, or the first that can express the model, with its `config.json`."""
    if model_type is not None:
        family = family_named(model_type, "the family to export to")
        try:
            spec = replace(spec, model=family.equivalent(spec.model))
            config = family.config.write(spec) | {"model_type": model_type}
        except InputError as error:
            raise InputError(f"{model_type}: {error}") from error
        family.check_expressible(spec, config)
        return family, config
    problems: list[str] = []
    for name in families():
        try:
            return _choose_family(spec, name)
        except InputError as error:
            problems.append(str(error))
    near = [problem for problem in problems if DIFFERS in problem] or problems
    fewest = min(near, key=lambda problem: problem.count(DIFFERS))
    raise InputError(f"no family can express this model; the nearest: {fewest}")


def _write(file: Path, tree: Json) -> None:
    file.write_text(json.dumps(tree, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
