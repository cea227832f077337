"""Exporting a run to the format of another library."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from addnorm.atomic import check_writable
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.exporters.ctranslate2 import export_ctranslate2, specification
from addnorm.convert.exporters.gguf import Dtype, export_gguf
from addnorm.convert.exporters.gguf_architectures import architecture_of
from addnorm.convert.exporters.gguf_vocabulary import vocabulary
from addnorm.convert.exporters.onnx import check_exportable, export_onnx
from addnorm.convert.folder import family_for, save
from addnorm.convert.preprocessing import DataReading, reading_of, write_preprocessing
from addnorm.data import ChatConfig
from addnorm.errors import InputError, choices
from addnorm.generate import BeamConfig
from addnorm.models import (
    DecoderConfig,
    DecoderModel,
    DualEncoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    EncoderDecoderModel,
)
from addnorm.models.ledger import Ledger
from addnorm.quantize import DynamicConfig, Int4Config, Int8Config, dequantize
from addnorm.quantize.model import scales_of
from addnorm.runs.export_account import (
    OF_DATA,
    SINGLE_FILES,
    exported_template,
    facts_of,
    rest_of,
    token_ids,
    write_account,
)
from addnorm.runs.export_page import check_page, in_int8, write_page
from addnorm.runs.files.digests import DIGESTS
from addnorm.runs.files.generation_config import keys_of
from addnorm.runs.files.quantization_file import Quantization, check_float
from addnorm.runs.inference.sentence_vectors import giving_vectors, without_head, write_pooling
from addnorm.runs.inference.shortening import write_most_tokens
from addnorm.runs.options import ExportDtype, Form
from addnorm.runs.recipes.chat_template import write_template
from addnorm.runs.saving import write_for_use
from addnorm.runs.trained_model import TrainedModel, dtype_named, moved_copy
from addnorm.tasks.registry import TASKS, task_of_head

Writing = DecoderModel | EncoderDecoderModel
WritingConfig = DecoderConfig | EncoderDecoderConfig

GGUF: dict[torch.dtype, Dtype] = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
}
"""GGUF's names of weight dtypes."""


def export_run(
    run: TrainedModel,
    out: Path,
    *,
    to: Form,
    family: str | None = None,
    dtype: ExportDtype | None = None,
) -> list[str]:
    """Export the model of a run to `out`, in its own or another dtype; return messages for users.

    An earlier export there is replaced, and the first message says so. Raises `InputError` if `out`
    holds a run or is a file of another kind, or if the other library lacks a part.
    """
    _check(run, out, to, family)
    replaced = out.is_file() or (out.is_dir() and any(out.iterdir()))
    if dtype is not None:
        check_float(run, "has another dtype")
        run = moved_copy(run, dtype=dtype_named(dtype))
    elif to == "web":
        run = in_int8(run)
    facts = facts_of(run)
    lines = WRITERS[to](run, out, family)
    rest = rest_of(to, facts)
    if to == "hf" and _decoding_keys(run) is None:
        rest["decoding"] = facts["decoding"]
    if to == "onnx" and run.quantization and run.quantization.scheme.activations.kind == "dynamic":
        rest["rounding of inputs"] = "dynamic"
    if to == "hf" and (reading := _reading(run)).keys:
        rest[OF_DATA] = reading.left
    before = [f"{out}: was there already: files of the same names are replaced"] if replaced else []
    return [*before, *lines, *write_account(out, to, rest)]


def unsupported_forms(run: TrainedModel) -> dict[Form, str]:
    """The forms to which a model cannot be exported, each with the part or setting at fault.

    Weights are not looked at: an untrained model of the same configuration has the same answer.
    """
    reasons: dict[Form, str] = {}
    for form, check in CHECKS.items():
        try:
            check(run)
        except InputError as error:
            reasons[form] = str(error)
    return reasons


def _check_parts_for_gguf(run: TrainedModel) -> None:
    model, _ = _decoder(run)
    architecture_of(model, Ledger(model, "GGUF"))
    vocabulary(run.tokenizers.source, model.embed.tokens.num_embeddings)


CHECKS: dict[Form, Callable[[TrainedModel], object]] = {
    "hf": lambda run: family_for(shaped_of(without_head(run))),
    "onnx": lambda run: check_exportable(giving_vectors(run.model)),
    "ctranslate2": lambda run: specification(*_writing(run), run.tokenizers),
    "gguf": _check_parts_for_gguf,
    "web": check_page,
}
"""What each format asks of the parts of a model."""


def _check(run: TrainedModel, out: Path, to: Form, family: str | None) -> None:
    """Raise `InputError` for an unknown form, an unusable path, or a custom task."""
    if to not in WRITERS:
        raise InputError(f"`to = {to!r}`: no such form.{choices(to, WRITERS)}")
    if run.folder is not None and out.resolve() == run.folder.resolve():
        raise InputError(f"{out}: an export cannot replace its own model: give another `out`")
    if (out / DIGESTS).is_file() or (out / "checkpoints").is_dir():
        raise InputError(f"{out}: holds a run, which an export would replace: give another `out`")
    _check_place(out, to)
    if family is not None and to != "hf":
        raise InputError(f"`family` is for hf only: leave it out with {to}")
    task = task_of_head(run.recipe.model.head)
    if task is not None and type(task) not in map(type, TASKS.values()):
        raise InputError(
            f"{run.name}: {task.name} is a custom task, which other libraries do not have: use the "
            f"run itself, by `{run.call}`"
        )


def _check_place(out: Path, to: Form) -> None:
    """Raise `InputError` where this form cannot be written, or would replace another file."""
    if out.is_dir() if to in SINGLE_FILES else out.is_file():
        here, wanted = ("folder", "file") if to in SINGLE_FILES else ("file", "folder")
        raise InputError(f"{out}: is a {here}: {to} needs the name of a {wanted}")
    if out.is_file() and out.suffix.lower() != SINGLE_FILES[to]:
        raise InputError(
            f"{out}: is there already, without the ending {SINGLE_FILES[to]} of a {to} file: "
            "give another `out`"
        )
    if to in SINGLE_FILES and not out.parent.is_dir():
        raise InputError(f"{out}: there is no folder {out.parent} for the file")
    check_writable(out)


def shaped_of(run: TrainedModel) -> ModelSpec:
    """The model's configuration with the vocabulary sizes and labels filled in."""
    model = run.recipe.model
    text = run.text
    source, target = (text.source.vocab_size, text.target.vocab_size) if text else (0, 0)
    own = model.vocab_size or source
    plain = replace(model, vocab_size=None)
    if isinstance(model, EncoderDecoderConfig):
        target = model.target_vocab_size or model.vocab_size or target
        plain = replace(model, vocab_size=None, target_vocab_size=None)
        return ModelSpec(
            model=plain, vocab_size=own, target_vocab_size=None if target == own else target
        )
    return ModelSpec(model=plain, vocab_size=own, labels=run.labels)


def _also(run: TrainedModel, out: Path) -> None:
    """Write the files of a Hugging Face folder that describe how its model is used."""
    write_for_use(out, run)
    write_pooling(out, run)
    write_most_tokens(out, run)
    if isinstance(run.recipe.data, ChatConfig):
        write_template(out, run.recipe.data, run.tokenizers)
    write_preprocessing(out, _reading(run).keys)


def _reading(run: TrainedModel) -> DataReading:
    return reading_of(run.recipe.data, run.recipe.model)


def _hf(run: TrainedModel, out: Path, family: str | None) -> list[str]:
    check_float(run, "has a form in Hugging Face's folders")
    keys, plain = _decoding_keys(run), without_head(run)
    written = save(
        out,
        shaped_of(plain),
        plain.model,
        run.text,
        model_type=family,
        generation=keys,
        ids=token_ids(run) if run.text is None else None,
        also=lambda partial: _also(run, partial),
    )
    lines = [f"{out}: a {written} folder, for transformers.{_class_in(out)}.from_pretrained"]
    if keys is None:
        lines.append(
            f"{out}: without the decoding of the recipe, which generation_config.json lacks"
        )
    return lines


def _class_in(folder: Path) -> str:
    """Return the class of transformers that a folder's `config.json` names, else `AutoModel`."""
    keys = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return keys.get("architectures", ["AutoModel"])[0]


def _decoding_keys(run: TrainedModel) -> dict[str, Any] | None:
    """Return the keys of `generation_config.json` for the decoding; None if it has none."""
    model, decoding = run.recipe.model, run.recipe.eval.decoding
    encodes = isinstance(model, EncoderConfig | DualEncoderConfig)
    if encodes or decoding == BeamConfig():  # as it is without a word
        return {}
    return keys_of(decoding, "continuation" if isinstance(model, DecoderConfig) else "target")


def _onnx(run: TrainedModel, out: Path, _: str | None) -> list[str]:
    files = export_onnx(giving_vectors(run.model), run.recipe.model, out)
    lines = [f"{file}: for onnxruntime" for file in files]
    return lines + _without_lower_case(run, "a graph reads ids")


def _without_lower_case(run: TrainedModel, why: str) -> list[str]:
    """Return a hint for texts in lower case, if the other library does not lower-case its input."""
    if run.text is None or not run.text.lowercase:
        return []
    return [f"the model learnt from texts in lower case, and {why}: put texts in lower case first"]


def _writing(run: TrainedModel) -> tuple[Writing, WritingConfig]:
    """The model and its configuration, for a model that writes text.

    Raises `InputError` for an encoder.
    """
    model, config = run.model, run.recipe.model
    if not isinstance(model, EncoderDecoderModel | DecoderModel) or not isinstance(
        config, EncoderDecoderConfig | DecoderConfig
    ):
        raise InputError("CTranslate2 is for models that write: this one is an encoder")
    return model, config


def _decoder(run: TrainedModel) -> tuple[DecoderModel, DecoderConfig]:
    """The model and its configuration, for a decoder.

    Raises `InputError` for another than a decoder.
    """
    model, config = run.model, run.recipe.model
    if not isinstance(model, DecoderModel) or not isinstance(config, DecoderConfig):
        raise InputError("GGUF is for llama.cpp, which runs decoders only")
    return model, config


def _ctranslate2(run: TrainedModel, out: Path, _: str | None) -> list[str]:
    model, config = _writing(run)
    lines = [f"{out}: a CTranslate2 folder"]
    if run.quantization is None:
        stored = str(next(model.parameters()).dtype).removeprefix("torch.")
        quantization = stored if stored in ("float16", "bfloat16") else None
    else:
        lines += _check_as_ctranslate2(run.quantization)
        model, quantization = dequantize(copy.deepcopy(model)), "int8"
        assert isinstance(model, EncoderDecoderModel | DecoderModel)
    template = exported_template(run)
    export_ctranslate2(
        model, config, run.tokenizers, out, quantization=quantization, template=template
    )
    return lines


def _check_as_ctranslate2(quantization: Quantization) -> list[str]:
    """Report how CTranslate2 differs. Raises `InputError` where it cannot hold the weights."""
    scheme, lacks = quantization.scheme, None
    if isinstance(scheme, Int4Config):
        lacks = "has no int4 on a CPU"
    elif scheme.smoothing is not None:
        lacks = "divides no inputs, as smoothing does"
    elif quantization.kept:
        lacks = f"rounds every layer, and {quantization.kept[0]} was kept as it was"
    if lacks is not None:
        raise InputError(
            f"CTranslate2 {lacks}: quantise with `Int8Config(activations=DynamicConfig())`"
        )
    if isinstance(scheme, Int8Config) and isinstance(scheme.activations, DynamicConfig):
        return []
    return ["CTranslate2 has the same integers, and rounds inputs token by token"]


def _gguf(run: TrainedModel, out: Path, _: str | None) -> list[str]:
    model, config = _decoder(run)
    lines = [f"{out}: for llama.cpp", *_without_lower_case(run, "GGUF has no lower case")]
    text, template = run.tokenizers.lowercased(False), exported_template(run)
    if run.quantization is None:
        stored = GGUF.get(next(model.parameters()).dtype, "f32")
        export_gguf(model, config, text, out, stored, template=template)
        return lines
    lines += _check_as_gguf(run.quantization)
    scales, plain = scales_of(copy.deepcopy(model)), dequantize(copy.deepcopy(model))
    assert isinstance(plain, DecoderModel)
    assert isinstance(scales, DecoderModel)
    stored = "q8_0" if isinstance(run.quantization.scheme, Int8Config) else "q4_0"
    export_gguf(plain, config, text, out, stored, scales=scales, template=template)
    return lines


def _check_as_gguf(quantization: Quantization) -> list[str]:
    """Report how GGUF differs. Raises `InputError` where it cannot hold the weights."""
    scheme = quantization.scheme
    if isinstance(scheme, Int4Config) and scheme.group_size != 32:
        raise InputError(
            f"GGUF's Q4_0 has groups of 32, and this model of {scheme.group_size}: quantise with "
            "`Int4Config(group_size=32)`"
        )
    if isinstance(scheme, Int8Config) and scheme.smoothing is not None:
        raise InputError(
            "GGUF cannot divide inputs, as smoothing needs: quantise without smoothing"
        )
    if isinstance(scheme, Int4Config):
        return []
    return ["GGUF's Q8_0 has the same integers, with scales of half precision"]


WRITERS: dict[Form, Callable[[TrainedModel, Path, str | None], list[str]]] = {
    "hf": _hf,
    "onnx": _onnx,
    "ctranslate2": _ctranslate2,
    "gguf": _gguf,
    "web": lambda run, out, _: write_page(run, out),
}
"""The export function of each format."""
