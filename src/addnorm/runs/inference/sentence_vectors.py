"""sentence-transformers' `modules.json`: pooling hidden states into sentence embeddings."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from tokenizers.normalizers import Lowercase
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.convert.core.modules import FILE, find_file, modules_of
from addnorm.convert.core.settings import Settings
from addnorm.convert.weights.files import Weights
from addnorm.convert.weights.mapped import check_readable
from addnorm.errors import InputError, choices
from addnorm.models import EncoderConfig, EncoderModel, Model
from addnorm.nn.context import Context
from addnorm.nn.contrastive import ContrastiveHead, unit
from addnorm.nn.functional import at_least_float32
from addnorm.nn.heads import ClassificationHead, HiddenHead, HiddenHeadConfig
from addnorm.nn.similarity import SimilarityHead, SimilarityHeadConfig
from addnorm.nn.vectors import VectorHead
from addnorm.runs.options import Pooling
from addnorm.runs.trained_model import TrainedModel

Hidden = Float[Tensor, "batch seq d_model"]
Valid = Bool[Tensor, "batch seq"]
Vectors = Float[Tensor, "batch width"]


def mean(x: Hidden, valid: Valid) -> Vectors:
    """`Σ x_t / n`"""
    return _sum(x, valid) / valid.sum(1, keepdim=True)


def mean_sqrt_len(x: Hidden, valid: Valid) -> Vectors:
    """`Σ x_t / √n`"""
    return _sum(x, valid) / valid.sum(1, keepdim=True).sqrt()


def weighted_mean(x: Hidden, valid: Valid) -> Vectors:
    """`Σ t x_t / Σ t`, the first token counting once (Muennighoff 2022, §3.1.2)."""
    weights = (valid.cumsum(1) * valid).to(x.dtype)
    return (x * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)


def largest(x: Hidden, valid: Valid) -> Vectors:
    """`max_t x_t`"""
    return x.masked_fill(~valid[..., None], -torch.inf).amax(1)


def first(x: Hidden, valid: Valid) -> Vectors:
    """`x_1`"""
    return x[:, 0]


def last(x: Hidden, valid: Valid) -> Vectors:
    """`x_n`"""
    return x[torch.arange(len(x), device=x.device), valid.sum(1) - 1]


POOLINGS: dict[str, Callable[[Hidden, Valid], Vectors]] = {
    "cls": first,
    "max": largest,
    "mean": mean,
    "mean_sqrt_len_tokens": mean_sqrt_len,
    "weightedmean": weighted_mean,
    "lasttoken": last,
}
"""Pooling functions by their sentence-transformers names; padding (on the right) is ignored."""

FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Older names of `pooling_mode`; several poolings are concatenated in this order."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": F.relu,
    "GELU": F.gelu,
    "SiLU": F.silu,
    "Sigmoid": torch.sigmoid,
}


LOWERCASE = Lowercase()
"""Lower case of each character by itself: the final sigma of a word is the usual one."""


@dataclass(frozen=True)
class SentenceVectors:
    """A folder's sentence embedding pipeline: preprocessing, pooling and further steps."""

    poolings: tuple[str, ...]
    steps: tuple[Callable[[Vectors], Vectors], ...]
    width: int | None = None
    """The width of the hidden states that it pools."""
    max_len: int | None = None
    """The number of tokens, special ones included, to which longer texts are shortened."""
    keep_end: bool = False
    """Whether a longer text is cut at its start, and keeps its end."""
    lowercase: bool = False
    prompt: str = ""
    prompts: Mapping[str, str] = field(default_factory=dict[str, str])
    """The prompts by their names."""
    pools_prompt: bool = True
    """Whether the tokens of a prompt are pooled too."""
    truncate_dim: int | None = None
    """The number of features to which a vector is truncated; all by default."""

    @classmethod
    def of(cls, *places: Path) -> "SentenceVectors | None":
        """Read the pipeline of a folder; None if none of the `places` has a `modules.json`.

        Raises `InputError` naming an unsupported module or setting.
        """
        listed = find_file(places, FILE)
        modules = [] if listed is None else modules_of(listed.parent)
        if listed is None or not modules:
            return None
        folder = listed.parent
        kinds = [_known(folder, module.kind) for module in modules]
        if kinds[:2] != ["Transformer", "Pooling"] or not STEPS.keys() >= set(kinds[2:]):
            raise InputError(
                f"{folder / FILE}: {', '.join(kinds)}: a text has a vector by Transformer, Pooling"
            )
        if foreign := [m.type for m in modules if not m.type.startswith(PACKAGE)]:
            raise InputError(f"{folder / FILE}: {foreign[0]} is custom code, which is not run")
        pooling = Settings.of(modules[1].path)
        settings = _settings(places)
        prompt = _prompt(settings)
        pooling.expect("include_prompt", True, *(() if prompt else (False,)))
        prompts: Any = settings.tree.get("prompts") or {}
        width = pooling.optional_int("embedding_dimension", "word_embedding_dimension")
        poolings = _poolings(pooling)
        pooling.check_all_read()
        steps = tuple(STEPS[module.kind](module.path) for module in modules[2:])
        places = (*places, modules[0].path)
        text, limits = _text_settings(places), _limits(places)
        longest = text.optional_int("max_seq_length")
        return cls(
            poolings,
            steps,
            width=width,
            max_len=limits.get("model_max_length") if longest is None else longest,
            keep_end=limits.get("truncation_side") == "left",
            lowercase=text.get("do_lower_case", False),
            prompt=prompt,
            prompts=prompts if isinstance(prompts, dict) else {},
            pools_prompt=pooling.get("include_prompt", True),
            truncate_dim=settings.optional_int("truncate_dim"),
        )

    def with_prompt(self, name: str) -> "SentenceVectors":
        """These settings with the prompt of that name, which is put before each text.

        Raises `InputError` for an unknown name, and where the pooling leaves prompts out.
        """
        if name not in self.prompts:
            valid = choices(name, self.prompts) if self.prompts else " It has none."
            raise InputError(f"`prompt_name = {name!r}`: not in the prompts of {PROMPTS}.{valid}")
        if self.prompts[name] and not self.pools_prompt:
            raise InputError(
                f"`prompt_name = {name!r}`: include_prompt = false, by which tokens of a prompt "
                "are not pooled, is not supported"
            )
        return replace(self, prompt=self.prompts[name])

    def texts(self, texts: Sequence[str]) -> list[str]:
        """Preprocess the texts: prepend the prompt, lower-case."""
        whole = [self.prompt + text for text in texts]
        return [LOWERCASE.normalize_str(text) for text in whole] if self.lowercase else whole

    def shortened(self, ids: list[int], before: int, after: int) -> list[int]:
        """Truncate the ids to the maximum length, but keep the special ones at both ends.

        Raises `InputError` if these alone are as long.
        """
        if self.max_len is None or len(ids) <= self.max_len:
            return ids
        if self.max_len <= before + after:
            raise InputError(
                f"{FILE}: texts are shortened to {self.max_len} tokens, and the special ones "
                f"around a text are {before + after}: model_max_length or max_seq_length is too low"
            )
        if self.keep_end:
            return ids[:before] + ids[before + len(ids) - self.max_len :]
        return ids[: self.max_len - after] + ids[len(ids) - after :]

    def vectors(self, x: Hidden, valid: Valid) -> Vectors:
        """Pool the hidden states into one vector per text."""
        vectors = torch.cat([POOLINGS[name](x, valid) for name in self.poolings], dim=-1)
        for step in self.steps:
            vectors = step(vectors)
        return vectors[..., : self.truncate_dim]

    def check_width(self, d_model: int) -> None:
        """Raise `InputError` where the pooling is for hidden states of another width."""
        if self.width not in (None, d_model):
            raise InputError(
                f"{FILE}: the pooling is for vectors of {self.width} numbers, and the model's "
                f"hidden states have {d_model}"
            )


def _sum(x: Hidden, valid: Valid) -> Vectors:
    return torch.where(valid[..., None], x, 0.0).sum(1)


def _known(folder: Path, kind: str) -> str:
    kinds = ("Transformer", "Pooling", *STEPS)
    if kind not in kinds:
        raise InputError(
            f"{folder / FILE}: the module {kind} is not supported.{choices(kind, kinds)}"
        )
    return kind


PACKAGE = "sentence_transformers."

TEXT_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "xlm-roberta", "xlnet", "albert")
)
"""The files with the preprocessing of texts: the first is today's name, the others are older."""


def _text_settings(places: Sequence[Path]) -> Settings:
    """The settings by which texts are read.

    Raises `InputError` naming a setting that is not supported.
    """
    file = find_file(places, *TEXT_FILES)
    settings = Settings({}) if file is None else Settings.of(file.parent, file.name)
    settings.ignore("max_seq_length", "do_lower_case", *ONLY_OF_QUERIES)
    settings.expect("transformer_task", "feature-extraction")
    settings.expect("module_output_name", "token_embeddings")
    settings.expect("modality_config", None, LAST_HIDDEN_STATE)
    settings.check_all_read()
    return settings


ONLY_OF_QUERIES = ("query_length", "document_length", "query_expansion", "unpad_inputs")
"""Settings of other ways to encode, and one that changes the speed alone."""

LAST_HIDDEN_STATE = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}

TOKENIZER = "tokenizer_config.json"
NO_LIMIT = 2**20
"""From this number of tokens on, `model_max_length` means no limit."""


def _limits(places: Sequence[Path]) -> dict[str, Any]:
    """Return the default length limits of texts, from the settings of tokenizer and model."""
    models = [Settings.of(place) for place in places if (place / "config.json").is_file()]
    keys = [(model, _positions(model)) for model in models]
    limits: dict[str, Any] = {}
    if (file := find_file(places, TOKENIZER)) is not None:
        settings = Settings.of(file.parent, TOKENIZER)
        settings.expect("truncation_side", "right", "left")
        if settings.tree.get("truncation_side") == "left":
            limits["truncation_side"] = "left"
        keys.append((settings, "model_max_length"))
    lengths = [length for model, key in keys if (length := _length(model, key)) is not None]
    return limits | ({"model_max_length": min(lengths)} if lengths else {})


def _positions(model: Settings) -> str:
    gpt2 = model.tree.get("model_type") == "gpt2"
    return "n_positions" if gpt2 else "max_position_embeddings"


def _length(settings: Settings, key: str) -> int | None:
    length = settings.tree.get(key)
    if length is None or length == -1:  # XLNet's way to say that there is none
        return None
    if type(length) not in (int, float) or not length >= 1:
        raise settings.refuse(key, "not a number of tokens")
    return int(length) if length < NO_LIMIT else None


PROMPTS = "config_sentence_transformers.json"


def copy_modules(places: Sequence[Path], out: Path) -> None:
    """Copy the modules found in `places`, if any, into the folder of a model's copy.

    The model itself stands at the top of `out`, as sentence-transformers has it today.
    """
    if (file := find_file(places, FILE)) is None or not (modules := modules_of(file.parent)):
        return
    listed: list[Mapping[str, Any]] = []
    for i, module in enumerate(modules):
        path = f"{i}_{module.kind}" if i else ""
        listed.append({"idx": i, "name": str(i), "path": path, "type": module.type})
        if i:
            (out / path).mkdir(exist_ok=True)
            for file in (*module.path.glob("config.json"), *module.path.glob("*.safetensors*")):
                (out / path / file.name).write_bytes(file.read_bytes())
    (out / FILE).write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    places = (*places, modules[0].path)
    if (text := find_file(places, *TEXT_FILES)) is not None:
        (out / TEXT_FILES[0]).write_bytes(text.read_bytes())
    if limits := _limits(places):
        file = out / TOKENIZER
        tree = Settings.of(out, TOKENIZER).tree if file.is_file() else {}
        file.write_text(json.dumps(tree | limits, indent=2) + "\n", encoding="utf-8")
    if (prompts := find_file(places, PROMPTS)) is not None:
        (out / PROMPTS).write_bytes(prompts.read_bytes())


def facts_of_vectors(places: Sequence[Path]) -> dict[str, Any]:
    """The settings in `places` by which a text becomes a vector, by name, as JSON values.

    Of a module that has weights, its settings name their size.
    """
    if (file := find_file(places, FILE)) is None or not (modules := modules_of(file.parent)):
        return {}
    listed = [
        {"type": module.type} | ({"config": _tree(module.path / "config.json")} if i else {})
        for i, module in enumerate(modules)
    ]
    places = (*places, modules[0].path)
    text, prompts = find_file(places, *TEXT_FILES), find_file(places, PROMPTS)
    facts = {
        "sentence-transformers modules": listed,
        "reading of sentences": _limits(places) | ({} if text is None else _tree(text)),
        "prompts": {} if prompts is None else _tree(prompts),
    }
    return {name: value for name, value in facts.items() if value}


def _tree(file: Path) -> dict[str, Any]:
    return dict(Settings.of(file.parent, file.name).tree) if file.is_file() else {}


def _poolings(settings: Settings) -> tuple[str, ...]:
    flagged = [name for key, name in FLAGS.items() if settings.get(key, False)]
    settings.ignore("pooling_mode")
    given: Any = settings.tree.get("pooling_mode", flagged or "mean")
    names = [given] if isinstance(given, str) else given
    for name in names or [""]:
        if name not in POOLINGS:
            raise settings.refuse("pooling_mode", choices(str(name), POOLINGS).lstrip())
    return tuple(names)


def _settings(places: Sequence[Path]) -> Settings:
    """The settings of the whole pipeline. Raises `InputError` naming one that is not supported."""
    file = find_file(places, PROMPTS)
    settings = Settings({}) if file is None else Settings.of(file.parent, PROMPTS)
    settings.ignore("prompts", "default_prompt_name", "truncate_dim", *NO_VECTORS)
    settings.expect("model_type", "SentenceTransformer")
    settings.check_all_read()
    return settings


NO_VECTORS = ("__version__", "similarity_fn_name")
"""Settings that no vector depends on."""


def _prompt(settings: Settings) -> str:
    """The prompt that is prepended to every text, if any."""
    name, prompts = settings.tree.get("default_prompt_name"), settings.tree.get("prompts") or {}
    if name is None:
        return ""
    if not isinstance(prompts, dict) or not isinstance(prompts.get(name), str):
        raise settings.refuse("default_prompt_name", f"prompts has {', '.join(prompts) or 'none'}")
    return prompts[name]


def _normalise(folder: Path) -> Callable[[Vectors], Vectors]:
    """`x / ‖x‖`"""
    if (folder / "config.json").is_file():
        settings = Settings.of(folder)
        settings.expect("module_input_name", "sentence_embedding")
        settings.expect("module_output_name", "sentence_embedding")
        settings.check_all_read()
    return lambda x: F.normalize(x, dim=-1)


def _dense(folder: Path) -> Callable[[Vectors], Vectors]:
    """`act(W x + b)`, in the dtype of `x`."""
    settings = Settings.of(folder)
    settings.expect("module_input_name", "sentence_embedding")
    settings.expect("module_output_name", "sentence_embedding", None)
    settings.expect("use_residual", False)
    settings.ignore("in_features")
    name = settings.get("activation_function", "torch.nn.modules.activation.Tanh")
    classes = {f"torch.nn.modules.{place}.{kind}": kind for kind in ACTIVATIONS for place in PLACES}
    activation = ACTIVATIONS[settings.choose("activation_function", classes, name)]
    weights = Weights.open(folder)
    for tensor in ("linear.weight", *(("linear.bias",) if settings.get("bias", True) else ())):
        if tensor not in weights:
            raise InputError(f"{folder}: {tensor} is missing")
        check_readable(folder, tensor, weights.dtype(tensor))
    weight = weights["linear.weight"]
    bias = weights["linear.bias"] if settings.get("bias", True) else None
    if weight.shape[0] != settings.required_int("out_features"):
        raise InputError(
            f"{folder}: linear.weight has {weight.shape[0]} rows, and config.json says "
            f"out_features = {settings.required_int('out_features')}"
        )
    settings.check_all_read()

    def dense(x: Vectors) -> Vectors:
        if x.shape[-1] != weight.shape[1]:
            raise InputError(
                f"{folder}: reads {weight.shape[1]} numbers, and these vectors have {x.shape[-1]}"
            )
        own = [None if part is None else part.to(x.device, x.dtype) for part in (weight, bias)]
        return activation(F.linear(x, *own))  # pyright: ignore[reportArgumentType]

    return dense


PLACES = ("activation", "linear")
"""The torch modules that define activations."""

STEPS: dict[str, Callable[[Path], Callable[[Vectors], Vectors]]] = {
    "Normalize": _normalise,
    "Dense": _dense,
    "Dropout": lambda folder: nn.Identity(),
}
"""The modules that may follow the pooling."""


def check_compared(run: TrainedModel, pooling: Pooling | None) -> None:
    """Raise `InputError` if another pooling is chosen for a model that compares its vectors."""
    if pooling not in (None, "head"):
        raise InputError(
            f"{run.name}: pictures and texts are compared by the vectors that it learnt: leave "
            f"pooling = {pooling!r} out"
        )


def pooled(run: TrainedModel, x: Tensor, ctx: Context, pooling: Pooling | None) -> Tensor:
    """Pool the hidden states into one vector per input, by default as in training.

    Raises `InputError` for `pooling = "head"` where the head gives no vector.
    """
    head = run.model.head
    if isinstance(head, ContrastiveHead):
        check_compared(run, pooling)
        return at_least_float32(unit(head.text(x, ctx)))
    vectors = head.vectors if isinstance(head, SimilarityHead) else head
    if isinstance(vectors, VectorHead) and pooling in (None, "head"):
        return at_least_float32(vectors(x, ctx))
    if pooling == "head":
        vectors = run.model.head(x, ctx) if isinstance(run.model, EncoderModel) else x
        if isinstance(run.model.head, ClassificationHead) or vectors.ndim != 2:
            raise InputError(
                f"{run.name}: pooling = 'head' needs a head that gives a vector for a text, as "
                "'pooler' does: use 'mean', 'first' or 'last'"
            )
        return at_least_float32(vectors)
    if ctx.valid is None:  # images, or clips of one length
        ctx = replace(ctx, kv_valid=torch.ones(x.shape[:2], dtype=torch.bool, device=x.device))
    assert ctx.valid is not None
    pool = {"first": first, "last": last}.get(pooling or "mean", mean)
    return pool(at_least_float32(x), ctx.valid)


MODES = {"mean": "mean", "max": "max", "first": "cls", "last": "lasttoken"}
"""sentence-transformers' names of our poolings."""


def giving_vectors(model: Model) -> Model:
    """Return a bi-encoder as a model with the vector of each text as output; others unchanged."""
    if not isinstance(model, EncoderModel) or not isinstance(model.head, SimilarityHead):
        return model
    return EncoderModel(model.embed, model.stack, model.head.vectors, mask=model.mask)


def without_head(run: TrainedModel) -> TrainedModel:
    """Return a bi-encoder as an encoder with hidden states as output; other runs unchanged."""
    config, model = run.recipe.model, run.model
    if not isinstance(config, EncoderConfig) or not isinstance(config.head, SimilarityHeadConfig):
        return run
    assert isinstance(model, EncoderModel)
    encoder = EncoderModel(model.embed, model.stack, HiddenHead(), mask=model.mask)
    recipe = replace(run.recipe, model=replace(config, head=HiddenHeadConfig()))
    return replace(run, recipe=recipe, model=encoder, labels=())


def write_pooling(out: Path, run: TrainedModel) -> None:
    """Write how a bi-encoder pools hidden states, as sentence-transformers reads it.

    Its vectors are compared by their cosine there too. Raises `InputError` for a pooling that it
    lacks.
    """
    head, width = run.recipe.model.head, run.recipe.model.d_model
    if not isinstance(head, SimilarityHeadConfig):
        return
    if not isinstance(head.pooling, str) or head.pooling not in MODES:
        raise InputError(
            f"sentence-transformers does not have this model's pooling: it has {', '.join(MODES)}"
        )
    kinds = ("Transformer", "Pooling")
    listed = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    settings = {"word_embedding_dimension": width, "pooling_mode": MODES[head.pooling]}
    (out / "1_Pooling").mkdir()
    (out / "1_Pooling" / "config.json").write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
    (out / FILE).write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
