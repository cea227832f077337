"""The proof of a checkpoint family: a random model in a folder, compared with transformers.

Weights are random, so that only `config.json` is read from the folder; of a large model, sizes are
reduced first.
"""

import inspect
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from addnorm.checking.comparison import CellResult, Comparison, distance, run_comparisons
from addnorm.checking.small_models import small_settings
from addnorm.checking.wide import Wide
from addnorm.convert.core.differences import explicit_differences
from addnorm.convert.core.family import Family, ModelSpec, build_untrained
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.folder import LoadedModel, load, read_config, save
from addnorm.convert.registry import family_of
from addnorm.errors import InputError, optional
from addnorm.generate import GreedyConfig, generate, translate
from addnorm.models import (
    DecoderModel,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    EncoderModel,
    Model,
)
from addnorm.models.inputs import TokenInputConfig, embedded
from addnorm.nn.choices import KernelChoices, use_choices
from addnorm.nn.context import Context
from addnorm.nn.embed import zero_padding
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.init import without_values
from addnorm.nn.masks import Causal

Ids = Int[Tensor, "batch seq"]
Real = Bool[Tensor, "batch seq"]

MOST_PARAMETERS = 2_000_000
"""The largest model that is compared as it is."""

LENGTHS = (7, 1, 4)
"""The lengths of the texts of a batch."""

N_NEW = 12
"""How many tokens are written greedily."""

NEAR = {torch.float64: 1e-7, torch.float32: 1e-5}
"""The largest error of logits, relative to the largest of them or to one.

In float64 too, transformers has numbers of eight digits: sinusoids in Pegasus, GELU in BLOOM.
"""


@dataclass(frozen=True)
class Proof:
    """A random model in a folder: theirs in float64, and ours with its configuration."""

    family: Family
    spec: ModelSpec
    theirs: Any
    folder: Path

    @cached_property
    def loaded(self) -> LoadedModel:
        """Load our model of the folder in float64."""
        return load(self.folder, dtype=torch.float64)

    def ours(self, dtype: torch.dtype) -> Any:
        """Our model of the folder."""
        model = self.loaded.model
        return model if dtype == torch.float64 else deepcopy(model).to(dtype)

    @property
    def pad(self) -> int:
        """The id of the padding token."""
        return self.theirs.config.to_dict().get("pad_token_id") or 0


def check_family(folder: Path) -> CellResult:
    """Compare a random model of a folder's `config.json` with transformers.

    Every key is read; logits, with padding on either side, in float64 and float32; greedy tokens of
    texts of unequal length; and the round trip, equal bit for bit. The result names the first
    comparison that fails; where logits differ, the first layer whose output does.

    Raises `InputError` for a folder that the family refuses, and for a class that transformers
    lacks.
    """
    return check_settings(Settings.of(folder))


def check_settings(settings: Settings) -> CellResult:
    """Compare a random model of a configuration with transformers, as `check_family` does."""
    family = family_of(settings)
    spec = read_config(family, settings)
    if not isinstance(getattr(spec.model, "input", TokenInputConfig()), TokenInputConfig):
        raise InputError(
            f"{settings.where}: the proof of a family reads tokens, and this model does not"
        )
    tree = settings.tree
    if n_parameters(spec) > MOST_PARAMETERS:
        tree, spec = small_settings(family, spec, settings)
    with TemporaryDirectory() as place, torch.random.fork_rng(devices=[]), _without_bars():
        kind, config = reference(tree, spec, settings.where)
        theirs = random_model(kind, config)
        theirs.save_pretrained(place)
        _write_given(Path(place), tree)
        proof = Proof(family, spec, theirs.double(), Path(place))
        name = f"{family.model_type}, {_sizes(spec)}"
        # A random model may amplify what other kernels than those of transformers round.
        with use_choices(KernelChoices()):
            return run_comparisons(name, _comparisons(proof))


@contextmanager
def _without_bars() -> Generator[None]:
    """In this context, transformers shows no progress bars."""
    logging: Any = _transformers().utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _transformers() -> Any:
    return optional("transformers", "parity", "the proof of a family")


def n_parameters(spec: ModelSpec) -> int:
    """The number of parameters of a model."""
    with without_values():
        return sum(weight.numel() for weight in build_untrained(spec).parameters())


def reference(tree: Json, spec: ModelSpec, where: str) -> tuple[Any, Any]:
    """The transformers class for a configuration, and that configuration.

    Raises `InputError` if transformers has no such class.
    """
    transformers = _transformers()
    names = tree.get("architectures") or []
    kind = getattr(transformers, names[0], None) if names else None
    if kind is not None:
        return kind, kind.config_class.from_dict(tree)
    auto = "AutoModelForSeq2SeqLM" if _is_translator(spec) else "AutoModelForCausalLM"
    try:
        config = transformers.AutoConfig.for_model(**tree)
        return getattr(transformers, auto)._model_mapping[type(config)], config
    except (KeyError, ValueError) as error:
        raise InputError(
            f"{where}: transformers {transformers.__version__} has no class for model_type = "
            f"{tree.get('model_type')!r} with architectures = {names}"
        ) from error


def random_model(kind: Any, config: Any) -> Any:
    """A transformers model with all parameters random, including gains and biases."""
    torch.manual_seed(0)
    with Wide():
        model = kind(config)
    with torch.no_grad():
        for weight in model.parameters():
            if not weight.requires_grad:  # such as a table of sinusoidal positions
                continue
            noise = torch.randn(weight.shape, dtype=weight.dtype)
            scale = 0.2 if weight.ndim < 2 else min(0.2, 0.8 / sqrt(weight.shape[-1]))
            weight.add_(scale * noise)
            weight.data = weight.data.float()
    return model.eval()


def _write_given(folder: Path, tree: Json) -> None:
    """Write the given `config.json` back, since transformers renames and adds keys."""
    (folder / "config.json").write_text(json.dumps(tree), encoding="utf-8")


def _is_translator(spec: ModelSpec) -> bool:
    return isinstance(spec.model, EncoderDecoderConfig)


def _sizes(spec: ModelSpec) -> str:
    n, d_model = spec.model.n_layers, spec.model.d_model
    return f"{n} layer{'s' * (n > 1)} of width {d_model}"


def _comparisons(proof: Proof) -> Iterator[Comparison]:
    for dtype in NEAR:
        yield from _logits(proof, dtype, left=False)
    model = proof.loaded.model
    if isinstance(model, DecoderModel) or (isinstance(model, EncoderModel) and model.causal):
        yield from _logits(proof, torch.float64, left=True)
    else:  # whose positions count padding in transformers
        yield _padded_on_the_left(proof)
    if isinstance(proof.spec.model.head, TokenHeadConfig):
        yield from _greedy(proof)
    yield from _round_trip(proof)


# The logits, and where they differ the first layer that does.


def _logits(proof: Proof, dtype: torch.dtype, *, left: bool) -> Iterator[Comparison]:
    batch = _batch(proof, left=left)
    expected = _theirs(proof.theirs, batch, dtype)
    with torch.no_grad():
        ours = proof.ours(dtype)(**batch.ours)
    real = batch.real if ours.ndim == 3 else slice(None)
    side = "left" if left else "right"
    name = f"logits in {str(dtype).removeprefix('torch.')}, padded on the {side}"
    ours, expected = ours[real], expected[real]
    if not distance(ours, expected) <= NEAR[dtype]:
        name += _first_difference(proof, batch)
    yield Comparison(name, ours, expected, NEAR[dtype])


def _padded_on_the_left(proof: Proof) -> Comparison:
    """Our outputs for texts padded on the left, which must equal those on the right."""
    outputs: list[Tensor] = []
    for left in (False, True):
        batch = _batch(proof, left=left)
        with torch.no_grad():
            ours = proof.loaded.model(**batch.ours)
        outputs.append(ours[batch.real] if ours.ndim == 3 else ours)
    return Comparison("outputs of texts padded on the left", outputs[1], outputs[0])


@dataclass(frozen=True)
class _Batch:
    """A padded batch, as inputs of both models; `real` marks the tokens to compare."""

    theirs: Mapping[str, Any]
    ours: Mapping[str, Any]
    real: Real


def texts(proof: Proof) -> list[list[int]]:
    """Random texts without padding, start and end tokens."""
    draw = torch.Generator().manual_seed(1)
    tree = proof.theirs.config.to_dict()
    ends = tree.get("eos_token_id")
    special = {proof.pad, tree.get("bos_token_id"), *(ends if isinstance(ends, list) else [ends])}
    ids = torch.tensor([i for i in range(proof.spec.vocab_size) if i not in special])
    return [ids[torch.randint(len(ids), (n,), generator=draw)].tolist() for n in LENGTHS]


def _padded(rows: Sequence[Sequence[int]], pad: int, *, left: bool) -> tuple[Ids, Real]:
    width = max(map(len, rows))
    blanks = [[pad] * (width - len(row)) for row in rows]
    filled = [
        [*blank, *row] if left else [*row, *blank] for blank, row in zip(blanks, rows, strict=True)
    ]
    slots, n = torch.arange(width), torch.tensor([len(row) for row in rows])[:, None]
    return torch.tensor(filled), slots >= width - n if left else slots < n


def _batch(proof: Proof, *, left: bool) -> _Batch:
    ids, valid = _padded(texts(proof), proof.pad, left=left)
    theirs: dict[str, Any] = {"input_ids": ids, "attention_mask": valid.long()}
    if _is_translator(proof.spec):
        target = ids.new_tensor(texts(proof)[0][:5]).expand(len(ids), -1)
        ours = {"source": ids, "target": target, "source_valid": valid}
        real = torch.ones_like(target, dtype=torch.bool)
        return _Batch(theirs | {"decoder_input_ids": target}, ours, real)
    if left and "position_ids" in inspect.signature(proof.theirs.forward).parameters:
        theirs["position_ids"] = (valid.cumsum(1) - 1).clamp(min=0)
    name = "inputs" if isinstance(proof.loaded.model, EncoderModel) else "tokens"
    return _Batch(theirs, {name: ids, "valid": valid}, valid)


def _theirs(model: Any, batch: _Batch, dtype: torch.dtype) -> Tensor:
    model.set_experts_implementation("eager")  # the grouped one has no float64
    with torch.no_grad(), Wide() if dtype == torch.float64 else nullcontext():
        outputs = deepcopy(model).to(dtype)(**batch.theirs)
    return outputs.logits if "logits" in outputs else outputs[0]


def _first_difference(proof: Proof, batch: _Batch) -> str:
    """Name the first embedding or layer whose output differs, for a message."""
    with torch.no_grad(), Wide():
        outputs = proof.theirs(**batch.theirs, output_hidden_states=True)
    for name, key, states in _hidden_states(proof.loaded.model, batch):
        expected = outputs.get(key)
        if expected is None or len(expected) != len(states):
            return ""
        real = batch.theirs["attention_mask"].bool() if "decoder" not in key else batch.real
        for i, (ours, other) in enumerate(zip(states, expected, strict=True)):
            if not distance(ours[real], other[real]) <= NEAR[torch.float64]:
                where = f"layer {i - 1}" if i else "the embeddings"
                return f": the first output that differs is that of {where}{name}"
    return ": every layer agrees, so the head differs"


def _hidden_states(model: Model, batch: _Batch) -> Iterator[tuple[str, str, list[Tensor]]]:
    """The embeddings and each layer's output (the last one normed), for each stack."""
    with torch.no_grad():
        match model:
            case DecoderModel():
                ids, valid = batch.ours["tokens"], batch.ours["valid"]
                ctx = Context.over(ids, Causal(), valid=valid)
                yield "", "hidden_states", _states(model.stack, model.embed(ids, ctx), ctx)
            case EncoderModel():
                ids, valid = batch.ours["inputs"], batch.ours["valid"]
                x, ctx = embedded(model.embed, ids, valid, mask=model.mask)
                yield "", "hidden_states", _states(model.stack, x, ctx)
            case EncoderDecoderModel():
                valid, target = batch.ours["source_valid"], batch.ours["target"]
                x, ctx = embedded(model.source_embed, batch.ours["source"], valid)
                encoded = _states(model.encoder, x, ctx)
                yield " of the encoder", "encoder_hidden_states", encoded
                memory = zero_padding(encoded[-1], valid)
                ctx = Context.over(target, Causal()).attending(memory, valid)
                decoded = _states(model.decoder, model.target_embed(target, ctx), ctx)
                yield " of the decoder", "decoder_hidden_states", decoded
            case _:
                return


def _states(stack: Any, x: Tensor, ctx: Context) -> list[Tensor]:
    states = [stack.apart(x)[0], *stack.layer_outputs(x, ctx)]
    states[-1] = stack.norm(states[-1], ctx.valid)
    return states


# Greedy decoding, and the folder that is saved.


def _greedy(proof: Proof) -> Iterator[Comparison]:
    """Compare greedy decoding with a cache, for texts of unequal length."""
    transformers = _transformers()
    model, rows = proof.loaded.model, texts(proof)
    if not isinstance(model, DecoderModel | EncoderDecoderModel):
        return
    ids, valid = _padded(rows, proof.pad, left=isinstance(model, DecoderModel))
    theirs = deepcopy(proof.theirs)
    start = theirs.config.to_dict().get("decoder_start_token_id") or 0
    theirs.generation_config = transformers.GenerationConfig(
        pad_token_id=proof.pad, bos_token_id=0, eos_token_id=None, decoder_start_token_id=start
    )
    with Wide():
        expected = theirs.generate(
            ids,
            attention_mask=valid.long(),
            max_new_tokens=N_NEW,
            do_sample=False,
            # Of an encoder–decoder, the cache may have as many layers as the encoder alone.
            use_cache=isinstance(model, DecoderModel),
        )[:, -N_NEW:]
    if isinstance(model, EncoderDecoderModel):
        written = translate(
            model, rows, GreedyConfig(), max_new_tokens=N_NEW, bos_id=start, eos_id=None
        )
    else:
        written = generate(model, rows, GreedyConfig(), max_new_tokens=N_NEW, eos_id=None)
    ours = torch.tensor([list(best[0].ids) for best in written])
    padding = (expected == proof.pad) & isinstance(model, EncoderDecoderModel)
    before = padding.cumsum(1) == 0  # after it some count positions otherwise (M2M100)
    name = f"{N_NEW} greedy tokens of texts of unequal length"
    yield Comparison(name, ours[before], expected[before])


def _round_trip(proof: Proof) -> Iterator[Comparison]:
    """Check that a saved folder is equal to the bit, and that transformers loads every weight."""
    loaded = load(proof.folder, dtype=torch.float32)
    out = proof.folder / "saved"
    save(out, loaded.spec, loaded.model, loaded.text, model_type=proof.family.model_type)
    again = load(out)
    changed = explicit_differences(loaded.spec.model, again.spec.model)
    equal = not changed and replace(again.spec, model=loaded.spec.model) == loaded.spec
    yield Comparison.that(f"a saved configuration is read as it was {changed or ''}", equal)
    ours, before = again.model.state_dict(), loaded.model.state_dict()
    yield Comparison.that("a saved folder has the same weights", ours.keys() == before.keys())
    for name, weight in ours.items():
        yield Comparison(f"{name} of a saved folder", weight, before[name], 0.0)
    with Wide():
        model, problems = type(proof.theirs).from_pretrained(
            out, output_loading_info=True, dtype=torch.float64
        )
    constants = {name for name, w in proof.theirs.named_parameters() if not w.requires_grad}
    problems["missing_keys"] = {*problems["missing_keys"]} - constants
    wrong = {name: keys for name, keys in problems.items() if keys}
    yield Comparison.that(f"transformers opens a saved folder: {wrong or 'in full'}", not wrong)
    batch = _batch(replace(proof, theirs=model), left=False)
    expected = _theirs(proof.theirs, batch, torch.float64)
    got = _theirs(model.eval(), batch, torch.float64)
    real = batch.real if got.ndim == 3 else slice(None)
    yield Comparison(
        "logits of transformers from a saved folder", got[real], expected[real], NEAR[torch.float64]
    )
