"""Reading and writing run folders, except for the weights.

A Hugging Face folder is also read as a run, one without data.

config.json, tokenizer.json (or source. and target., or none), labels.json, model.safetensors,
data.json, digests.json, metrics.jsonl, checkpoints/
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from addnorm.atomic import atomic_write
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.modules import generating_place, is_run_folder, places_of
from addnorm.convert.core.settings import Settings
from addnorm.convert.folder import describe_folder, is_hf_folder
from addnorm.convert.importers.gguf import describe_gguf
from addnorm.convert.weights.gguf_file import is_gguf
from addnorm.convert.weights.peft import TENSORS, base_of, is_adapter
from addnorm.data import (
    ChatConfig,
    Corpus,
    LabelledSeries,
    ScoredSeries,
    TextConfig,
    lowercases,
    medium_of,
)
from addnorm.data.batches.buckets import BatchingConfig, PackedConfig, WindowsConfig
from addnorm.data.example import PROPERTIES, has_signals
from addnorm.data.scaling import Scaling
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.errors import InputError, path_of
from addnorm.files import check_model_folder, read_json, read_names
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.nn.audio import LogMelEmbeddingConfig
from addnorm.runs.files.generation_config import Writes, decoding_of
from addnorm.runs.files.lock import in_use
from addnorm.runs.recipes.consistency import MEDIA, Location
from addnorm.runs.recipes.custom_parts import check_imports, imports_of
from addnorm.runs.recipes.recipe import (
    RECIPE,
    Recipe,
    check_recipe,
    set_field,
    with_current_names,
)
from addnorm.runs.recipes.starting_model import sized, tree_of
from addnorm.tasks.forecasting import Forecasting
from addnorm.tasks.registry import has_labels, task_of_head, writes_text
from addnorm.training.parallel.plan import ParallelTrainingConfig

QUANTIZATION, SCALING, VARIABLES = "quantization.json", "scaling.json", "variables.json"
BASE, TEACHER = "base.json", "teacher.json"
"""The digests of the weights of an adapter's base, and of a student's teacher."""

AROUND = (
    "config.json",
    "*tokenizer.json",
    "*tokenizer.ids.json",
    "*tokenizer.sample.json",
    "labels.json",
    QUANTIZATION,
    SCALING,
    VARIABLES,
    "chat_template.jinja",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "tokenizer_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "generation_config.json",
)
"""The files around the weights: every copy of a run has all of them."""

MODULES = ("[1-9]*_*/config.json", "[1-9]*_*/*.safetensors")
"""The modules after the model, in folders that `modules.json` names."""

CODEC = ("*tokenizer/*",)
"""The folder that a custom tokenizer writes itself."""

WEIGHTS = ("model.safetensors", "adapter_model.safetensors", "adapter_config.json")

OPENED = (*AROUND, *CODEC, *MODULES, *WEIGHTS, BASE)
"""The files that are read when a run is opened or used: their digests are kept."""

OF_TRAINING = (
    BASE,
    TEACHER,
    "best.safetensors",
    "checkpoints/*/*",
    "data.json",
    "digests.json",
    "loggers.json",
    "machine.json",
    "metrics.jsonl",
    "tensorboard/*",
    ".lock",
)
"""The files that a copy of a run leaves behind; each folder has its own digests."""


FORMAT = 1
"""The version of this layout, stored in `config.json`."""


class Saved(NamedTuple):
    """Everything in a run except its weights; an image model has no tokenizers."""

    recipe: Recipe
    tokenizers: Tokenizers | None
    labels: tuple[str, ...]


def is_run(folder: Path) -> bool:
    """Whether this folder contains a run."""
    return (folder / "config.json").exists()


def is_finished(folder: Path) -> bool:
    """Whether the run in this folder was trained to its end."""
    return any((folder / name).is_file() for name in ("model.safetensors", TENSORS))


def is_quantized(folder: Path) -> bool:
    """Whether the model of the run in this folder has been quantised."""
    return (folder / QUANTIZATION).exists()


def write_settings(
    folder: Path, recipe: Recipe, tokenizers: Tokenizers | None, labels: Sequence[str]
) -> None:
    """Write everything except the weights; `config.json` comes last to mark the folder complete."""
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizers is not None:
        tokenizers.save(folder)
    if labels:
        atomic_write(folder / "labels.json", json.dumps(labels, ensure_ascii=False))
    write_recipe(folder, recipe)


def write_recipe(folder: Path, recipe: Recipe) -> None:
    """Write `config.json`. Raises `InputError` for a custom part that cannot be serialised."""
    facts: dict[str, Any] = {"format": FORMAT}
    try:
        facts["recipe"] = RECIPE.dump_python(recipe, mode="json")
    except PydanticSerializationError as error:
        problem = str(error).rpartition("ValueError: ")[2]
        raise InputError(f"{folder}: the recipe cannot be saved: {problem}") from error
    if recipe.parallel == ParallelTrainingConfig():
        del facts["recipe"]["parallel"]
    if imports := imports_of(recipe):
        facts["imports"] = imports
    atomic_write(folder / "config.json", json.dumps(facts, indent=1, ensure_ascii=False))


def stored_recipe(folder: Path) -> dict[str, Any] | None:
    """The content of `config.json` if the folder holds a complete run of ours; else None.

    Raises `InputError` if it is damaged.
    """
    file = folder / "config.json"
    if not (file.is_file() and (folder / "model.safetensors").is_file()):
        return None
    tree = read_json(file)
    return tree if isinstance(tree, dict) and "recipe" in tree else None


def read_settings(folder: Path, overrides: Mapping[str, str] | None = None) -> Saved:
    """Read the settings written by `write_settings`.

    Raises `InputError` for missing or invalid files.
    """
    folder = path_of(folder)
    if is_gguf(folder):
        return _foreign_settings(folder, *describe_gguf(folder), overrides or {})
    if is_hf_folder(folder):
        _, shaped, tokenizers = describe_folder(folder)
        return _foreign_settings(folder, shaped, tokenizers, overrides or {})
    if is_adapter(folder) and not is_run_folder(folder):
        return read_settings(base_of(folder), overrides)
    if not is_run(folder):
        if (owner := in_use(folder)) is not None:
            raise InputError(
                f"{folder}: no run yet: {owner} is starting one there. Try again in a moment"
            )
        check_model_folder(folder)
        raise InputError(f"{folder}: not a run folder: no config.json")
    return settings_of(folder, read_json(folder / "config.json"), overrides)


def settings_of(folder: Path, stored: Any, overrides: Mapping[str, str] | None = None) -> Saved:
    """The settings of a run, from the content `stored` of its `config.json`."""
    file = folder / "config.json"
    match stored:
        case {"format": version, "recipe": dict(written), **facts} if version == FORMAT:
            check_imports(folder, written, facts.get("imports"))
            tree = with_current_names(written)
            _choose_batching(tree, overrides or {})
            for name, value in (overrides or {}).items():
                set_field(tree, name, value)
        case _:
            Settings.of(folder)  # names the place of the damage
            raise InputError(
                f"{file}: not a run of this version of AddNorm (format {FORMAT}), "
                "and no model_type names a model of Hugging Face's"
            )
    recipe = check_recipe(tree, _place(file, overrides or {}))
    there = any(folder.glob("*tokenizer.json"))
    tokenizers = Tokenizers.load(folder) if there or _reads_text(recipe) else None
    if tokenizers is not None:
        tokenizers = as_trained(recipe, tokenizers)
    return Saved(recipe, tokenizers, _read_labels(folder, recipe))


def _reads_text(recipe: Recipe) -> bool:
    """Whether a run of this recipe must have a tokenizer."""
    if recipe.tokenizer is not None:
        return True
    if recipe.data is None or not recipe.train.has_tokens:
        return False
    return writes_text(recipe.model) or not has_signals(medium_of(recipe.data))


def _foreign_settings(
    folder: Path, shaped: ModelSpec, tokenizers: Tokenizers | None, overrides: Mapping[str, str]
) -> Saved:
    """The settings of an imported model, with its own decoding, and data from the overrides."""
    tree: dict[str, Any] = {
        "model": tree_of(sized(shaped)),
        "train": {"steps": 1, "start": str(folder)},
    }
    if folder.is_dir() and isinstance(shaped.model, DecoderConfig | EncoderDecoderConfig):
        writes = _writes(shaped.model)
        vocab_size = shaped.target_vocab_size or shaped.vocab_size
        place = generating_place(places_of(folder))
        decoding = decoding_of(place, writes, vocab_size)
        tree |= {} if decoding is None else {"eval": {"decoding": decoding}}
    _choose_batching(tree, overrides)
    for name, value in overrides.items():
        set_field(tree, name, value)
    recipe = check_recipe(tree, _place(folder / "config.json", overrides))
    return Saved(recipe, tokenizers, shaped.labels)


def _choose_batching(tree: dict[str, Any], overrides: Mapping[str, str]) -> None:
    """Set the batching for data given to a model that was stored without data."""
    kind, unit = overrides.get("data.kind"), overrides.get("data.unit", "file")
    match tree:
        case {"model": dict(model), "train": dict(train)} if kind and tree.get("data") is None:
            reads = model.get("input") or model.get("image", {}).get("input") or {}
        case _:
            return
    medium = MEDIA.get(reads.get("kind", ""))
    if train.get("batching", TOKENS).get("kind") != TOKENS["kind"]:
        return
    if medium is not None:
        train["batching"] = {"kind": PROPERTIES[medium].batching}
    elif (kind, unit) == ("text", "file") and model.get("kind") == "decoder":
        longest = min(1024, model.get("max_len", 1024))
        # Whole files are longer than a model reads at once.
        train["batching"] = {"kind": "windows", "batch_size": 4, "seq_len": longest}


TOKENS = {"kind": "tokens"}
"""The batching of a recipe that names none."""


def _writes(model: DecoderConfig | EncoderDecoderConfig) -> Writes:
    """Return what a Hugging Face model writes: a target, a transcript, or a continuation."""
    if isinstance(model, DecoderConfig):
        return "continuation"
    return "transcript" if isinstance(model.input, LogMelEmbeddingConfig) else "target"


def _place(file: Path, overrides: Mapping[str, str]) -> Location:
    def place(path: list[str]) -> str:
        name = ".".join(path)
        given = [field for field in overrides if f"{name}.".startswith(f"{field}.")]
        return f"`{given[-1]}`" if given else str(file)

    return place


def _read_labels(folder: Path, recipe: Recipe) -> tuple[str, ...]:
    if not (isinstance(recipe.model, EncoderConfig) and has_labels(recipe.model)):
        return ()
    return read_names(folder / "labels.json")


SCALES = TypeAdapter(Scaling)


def write_scaling(folder: Path, scaling: Scaling | None) -> None:
    """Write the scaling of the series that a run forecasts; does nothing for other runs."""
    if scaling is not None:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / SCALING, SCALES.dump_json(scaling, indent=1).decode())


def read_scaling(folder: Path, recipe: Recipe) -> Scaling | None:
    """Read the scaling written by `write_scaling`; None for a run that does not forecast.

    Raises `InputError` where the file is missing or damaged.
    """
    if not isinstance(recipe.model, EncoderConfig):
        return None
    if not isinstance(task_of_head(recipe.model.head), Forecasting):
        return None
    return read_json(folder / SCALING, SCALES)


def variables_of(corpus: Corpus | None) -> tuple[str, ...]:
    """The names of the variables of whole series; none for other data."""
    first = corpus.train[0] if corpus is not None else None
    return first.names if isinstance(first, LabelledSeries | ScoredSeries) else ()


def write_variables(folder: Path, names: tuple[str, ...]) -> None:
    """Write the names of variables; does nothing for a run without any."""
    if names:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / VARIABLES, json.dumps(names, ensure_ascii=False))


def read_variables(folder: Path) -> tuple[str, ...]:
    """Read the names written by `write_variables`; empty if there is no file.

    Raises `InputError` if it is damaged.
    """
    file = folder / VARIABLES
    return read_names(file) if file.is_file() else ()


def as_trained(recipe: Recipe, tokenizers: Tokenizers) -> Tokenizers:
    """Return the tokenizers with the settings of training that no tokenizer file holds.

    Texts are put in lower case where the data were, and a prompt begins as training's rows did.
    """
    if lowercases(recipe.data):
        tokenizers = tokenizers.lowercased()
    if not isinstance(recipe.model, DecoderConfig) or isinstance(recipe.data, ChatConfig):
        return tokenizers.beginning(None)
    return tokenizers.beginning(_begins(recipe, tokenizers))


def _begins(recipe: Recipe, tokenizers: Tokenizers) -> tuple[int, ...] | None:
    """The tokens put before a prompt; None for those of the tokenizer.

    Windows of one text begin anywhere in it, after no start token. Documents each begin with one,
    also where a tokenizer from elsewhere puts none before a text (GPT-2).
    """
    tokenizer = tokenizers.source
    if reads_one_text(recipe):
        return ()
    if recipe.data is not None and tokenizer.before == ():
        return (tokenizer.bos_id,)
    return None


def reads_one_text(recipe: Recipe) -> bool:
    """Whether a language model learns from windows of one long text, not of many documents.

    Its documents are joined, or are one file.
    """
    batching: BatchingConfig = recipe.train.batching
    if isinstance(batching, WindowsConfig) and batching.documents == "joined":
        return True
    one_file = isinstance(recipe.data, TextConfig) and recipe.data.unit == "file"
    return one_file and isinstance(batching, WindowsConfig | PackedConfig)
