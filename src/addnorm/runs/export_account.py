"""The facts of a run other than its weights, and which of them an export cannot carry."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from addnorm.atomic import atomic_write
from addnorm.convert.preprocessing import written_preprocessing
from addnorm.convert.tokenizers.files import special_ids
from addnorm.convert.tokenizers.layouts import generation_file, read_object
from addnorm.data import ChatConfig
from addnorm.generate import BeamConfig
from addnorm.models import (
    DecoderConfig,
    DualEncoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
)
from addnorm.nn.similarity import SimilarityHeadConfig
from addnorm.runs.files.folder import SCALES
from addnorm.runs.files.speech_prompt import speech_keys
from addnorm.runs.inference.sentence_vectors import facts_of_vectors
from addnorm.runs.inference.shortening import most_tokens
from addnorm.runs.options import Form
from addnorm.runs.recipes.chat_template import chat_template, naming, template_of
from addnorm.runs.trained_model import TrainedModel

ACCOUNT = "export_account.json"
"""The file in an exported folder, or after the name of an exported file, that holds the rest."""

OF_DATA = "preprocessing of the data"
"""How a run's own data are read. A Hugging Face folder holds a part of it, the account the rest."""

EXITS, AHEAD = "early exits", "multi-token prediction"
"""Parts of a model outside its forward pass. A Hugging Face folder has them, or is not written.
"""

TOKEN_IDS = {
    "bos_token_id": "start token",
    "decoder_start_token_id": "start token of the decoder",
    "eos_token_id": "end tokens",
    "pad_token_id": "padding token",
    "bad_words_ids": "suppressed tokens",
}
"""The keys of transformers for special ids of generation, with their meaning; other rules are
decoding.
"""

SINGLE_FILES: dict[Form, str] = {"gguf": ".gguf", "web": ".html"}
"""The forms that are one file, and how its name ends."""

GGUF_ENDS = 3
"""How many end tokens a GGUF file has keys for: of a text, of a turn and of a message."""

CARRIES: dict[Form, set[str]] = {
    "hf": {
        *TOKEN_IDS.values(),
        *("tokenizer", "lower case", "chat template", "decoding", "labels"),
        *("sentence-transformers modules", "reading of sentences", "prompts"),
        *("maximum length", "longest text"),
        *("preprocessing", "language and task"),
        *(EXITS, AHEAD),
    },
    "gguf": {
        *("tokenizer", "start token", "end tokens", "padding token", "chat template"),
        "maximum length",
    },
    "ctranslate2": {
        *("tokenizer", "lower case", "start token", "start token of the decoder"),
        *("end tokens", "chat template"),
    },
    "onnx": set(),
    "web": {
        *TOKEN_IDS.values(),
        *("tokenizer", "lower case", "decoding", "labels", "longest text", "maximum length"),
        *("scaling", OF_DATA),
    },
}
"""The facts that each form can carry; of end tokens, some carry only a few (see `rest_of`)."""


def token_ids(run: TrainedModel) -> dict[str, Any]:
    """The ids that control generation, by key, from the tokenizer or else from the folder."""
    model = run.recipe.model
    if run.text is not None:
        writes_after = isinstance(model, EncoderDecoderConfig)
        return special_ids(run.text, "marian" if writes_after else "")
    for place in run.places:
        tree = read_object(place / generation_file(place))
        tree |= tree.get("text_config") or {}
        if ids := {key: tree[key] for key in TOKEN_IDS if tree.get(key) is not None}:
            return ids
    return {}


def facts_of(run: TrainedModel) -> dict[str, Any]:
    """The facts of a run other than its weights, by name, as JSON values."""
    model, decoding = run.recipe.model, run.recipe.eval.decoding
    facts: dict[str, Any] = {}
    if not isinstance(model, EncoderConfig | DualEncoderConfig):
        facts |= {TOKEN_IDS[key]: value for key, value in token_ids(run).items()}
        template = exported_template(run)
        facts |= {} if template is None else {"chat template": template}
        facts |= {} if decoding == BeamConfig() else {"decoding": asdict(decoding)}
    facts |= _outside_forward(run)
    if run.text is not None:
        facts["tokenizer"] = "tokenizer.json of the run"
        facts |= {"lower case": True} if run.text.lowercase else {}
    facts |= {"longest text": most} if (most := most_tokens(run.recipe)) is not None else {}
    facts |= {"labels": list(run.labels)} if run.labels else {}
    if run.scaling is not None:
        facts["scaling"] = SCALES.dump_python(run.scaling, mode="json")
    facts |= {"variables": list(run.variables)} if run.variables else {}
    facts |= {"maximum length": model.max_len} if run.text is not None else {}
    facts |= _of_files(run)
    if not isinstance(model.head, SimilarityHeadConfig):
        facts |= facts_of_vectors(run.places)
    return facts


def _outside_forward(run: TrainedModel) -> dict[str, Any]:
    """Return the layers with early exits, and the number of tokens predicted further ahead."""
    model = run.recipe.model
    facts: dict[str, Any] = {}
    if not isinstance(model, EncoderDecoderConfig) and model.exits:
        facts[EXITS] = list(model.exits)
    if isinstance(model, DecoderConfig) and model.mtp is not None:
        facts[AHEAD] = model.mtp.depth
    return facts


def _of_files(run: TrainedModel) -> dict[str, Any]:
    """Return how images or sound become model inputs, and the first tokens of its texts.

    Of how our own data are read, Hugging Face folders say a part (`convert.preprocessing_of_data`).
    """
    data = run.recipe.data
    if not run.reads_files:
        return {}
    if data is None:
        named = {
            "preprocessing": written_preprocessing(run.places),
            "language and task": speech_keys(run.places) if run.hears else {},
        }
        return {name: value for name, value in named.items() if value}
    keys = ("image_size", "size_multiple", "channels", "sample_rate", "n_mels", "pool")
    facts: dict[str, Any] = {key: getattr(data, key) for key in keys if hasattr(data, key)}
    if not run.hears:
        facts |= {"image_mean": 0.5, "image_std": 0.5, "rescale_factor": 1 / 255}
    permuted = getattr(data, "permute_seed", None)
    facts |= {} if permuted is None else {"permute_seed": permuted}
    return {OF_DATA: facts}


def exported_template(run: TrainedModel) -> str | None:
    """The chat template of a run for a form that keeps no token names; None without one."""
    data = run.recipe.data
    learnt = isinstance(data, ChatConfig)
    template = template_of(data, run.tokenizers) if learnt else chat_template(*run.places)
    return template if template is None or run.text is None else naming(template, run.text)


def rest_of(form: Form, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that an export to a form cannot carry."""
    rest = {name: value for name, value in facts.items() if name not in CARRIES[form]}
    ends = facts.get("end tokens")
    most = {"ctranslate2": 1, "gguf": GGUF_ENDS}.get(form)
    if isinstance(ends, list) and most is not None and len(ends) > most:
        rest["end tokens"] = ends
    return rest


def write_account(out: Path, form: Form, rest: Mapping[str, Any]) -> list[str]:
    """Write the facts that an export does not carry next to it; return a line that names the file,
    if any.
    """
    alone = form in SINGLE_FILES
    file = out.with_name(f"{out.name}.{ACCOUNT}") if alone else out / ACCOUNT
    if not rest:
        file.unlink(missing_ok=True)
        return []
    text = json.dumps({"form": form, "not_carried": rest}, indent=2, ensure_ascii=False)
    atomic_write(file, text + "\n")
    return [f"{file}: facts that {form} cannot carry: {', '.join(rest)}"]
