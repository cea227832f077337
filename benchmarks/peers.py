"""How many cells of our matrix x-transformers and HF transformers can express, and get right.

    python benchmarks/peers.py [--sample N]

Every decoder of `addnorm check` that we do not refuse. A peer refuses a cell when its configuration
has no option for one of the parts, or its constructor raises. What it builds, with random weights
in float32, must be causal, give the same with a cache as without, and the same for a text padded on
the left, on the right and not at all. The options used are in `OPTIONS` and `FAMILIES`, found by
reading the installed version; a mask handed to every call is no option of a configuration. Prints
the counts and writes them to benchmarks/results/peers.json.
"""

import argparse
import json
import logging
import random
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.checking.batches import SIDES, VOCABULARY, drawn, flat, padded, pieces, row
from addnorm.checking.compare import LENGTHS, distance
from addnorm.checking.matrix import AXES, D_MODEL, MAX_LEN, N_LAYERS, Cell, cells, sample

TOLERANCE = 1e-4
WINDOW = AXES["pattern"]["window"].size
Logits = Callable[..., Tensor]
Parts = Mapping[str, str]
Fields = dict[str, Any]

# --- x-transformers: one class, keyword arguments for everything -------------------------------

OPTIONS: Mapping[str, Mapping[str, Fields]] = {
    "position": {
        "none": {"wrapper.use_abs_pos_emb": False},
        "sinusoidal": {"wrapper.scaled_sinu_pos_emb": True},
        "learned": {},
        "rotary": {"rotary_pos_emb": True, "rotary_emb_dim": 4},
        "alibi": {"alibi_pos_bias": True, "wrapper.use_abs_pos_emb": False},
        "t5": {"rel_pos_bias": True, "rel_pos_num_buckets": 4, "rel_pos_max_distance": 5},
    },
    "norm": {
        "layernorm": {"norm_add_unit_offset": False},
        "rmsnorm": {"use_rmsnorm": True, "norm_add_unit_offset": False},
        "offset_rmsnorm": {"use_rmsnorm": True},
        "scalenorm": {"use_scalenorm": True, "norm_add_unit_offset": False},
    },
    "placement": {
        "post": {"pre_norm": False},
        "pre": {},
        "sandwich": {"sandwich_norm": True},
        "deepnorm": {"pre_norm": False, "scale_residual_constant": (2 * N_LAYERS) ** 0.25},
    },
    "score": {"scaled_dot": {}},
    "heads": {"mha": {}, "gqa": {"attn_kv_heads": 2}, "mqa": {"attn_one_kv_head": True}},
    "pattern": {"full": {}, "window": {"attn_max_attend_past": WINDOW - 1}},
    "feedforward": {
        "relu": {"ff_custom_activation": nn.ReLU()},
        "squared_relu": {"ff_relu_squared": True},
        "gelu": {},
        "gelu_tanh": {"ff_custom_activation": nn.GELU(approximate="tanh")},
        "glu": {"ff_glu": True, "ff_custom_activation": nn.Sigmoid()},
        "geglu": {"ff_glu": True},
        "swiglu": {"ff_glu": True, "ff_swish": True},
    },
}


class XTransformers:
    """A cell as x-transformers has it."""

    name = "x-transformers"

    def missing(self, parts: Parts) -> list[str]:
        """The parts for which there is no option."""
        return [f"{axis}: {name}" for axis, name in parts.items() if name not in OPTIONS[axis]]

    def build(self, parts: Parts) -> nn.Module:
        from x_transformers import Decoder, TransformerWrapper

        fields: Fields = {}
        for axis, name in parts.items():
            fields |= OPTIONS[axis][name]
        wrapper = {k.removeprefix("wrapper."): v for k, v in fields.items() if "." in k}
        layers = {k: v for k, v in fields.items() if "." not in k}
        decoder = Decoder(
            dim=D_MODEL, depth=N_LAYERS, heads=4, attn_dim_head=4, verbose=False, **layers
        )
        return TransformerWrapper(
            num_tokens=VOCABULARY, max_seq_len=MAX_LEN, attn_layers=decoder, **wrapper
        )

    def logits(self, model: nn.Module, tokens: Tensor, valid: Tensor | None, side: str) -> Tensor:
        """Padding on the left is told by where each row starts, on the right by a mask."""
        if valid is None:
            return model(tokens)
        if side == "left":
            return model(tokens, seq_start_pos=(~valid).sum(1), mask=valid)
        return model(tokens, mask=valid)

    def cached(self, model: nn.Module, tokens: Tensor, parts: list[slice]) -> Tensor:
        """`cache_age` says how many tokens are new."""
        kept, logits = None, list[Tensor]()
        for part in parts:
            new = part.stop - part.start
            more = {} if kept is None else {"cache": kept, "cache_age": new}
            out, kept = model(tokens[:, : part.stop], return_intermediates=True, **more)
            logits.append(out[:, -new:])
        return torch.cat(logits, dim=1)


# --- HF transformers: one class for every published model -------------------------------------

GATED = {"glu": "sigmoid", "geglu": "gelu", "swiglu": "silu"}
PLAIN = {"relu": "relu", "squared_relu": "relu2", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
MHA = {"mha": {}}
SHARED = {n: {"num_key_value_heads": k} for n, k in (("mha", 4), ("gqa", 2), ("mqa", 1))}
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": D_MODEL,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": MAX_LEN,
}
WIDTH = {"intermediate_size": 8}  # grouped products want rows of 16 bytes
FULL = {"full": {}}
DOT = {"scaled_dot": {}}


def acts(names: Mapping[str, str], field: str = "hidden_act") -> Mapping[str, Fields]:
    """An activation function by its name in HF transformers."""
    return {ours: {field: theirs} for ours, theirs in names.items()}


def layered(*kinds: str) -> Mapping[str, Fields]:
    """Patterns by the kind of every layer, `full` then `window`."""
    names = {"full_attention": "full", "sliding_attention": "window"}
    return {
        names[kind]: {"layer_types": [kind] * N_LAYERS, "sliding_window": WINDOW} for kind in kinds
    }


BOTH = layered("full_attention", "sliding_attention")


def family(
    path: str, placement: Any, heads: Any, feedforward: Any, fields: Fields, **others: Any
) -> tuple[str, Fields, Mapping[str, Mapping[str, Fields]]]:
    """A model class, the fields that all its cells have, and its options on each axis."""

    def options(of: Any) -> Mapping[str, Fields]:
        return {of: {}} if isinstance(of, str) else of

    axes = {"placement": placement, "heads": heads, "feedforward": feedforward, **others}
    axes = {"score": DOT, "pattern": FULL, **axes}
    return path, SIZES | fields, {axis: options(of) for axis, of in axes.items()}


ROTARY_RMS = {"position": "rotary", "norm": "rmsnorm"}
ROTARY_LN = {"position": "rotary", "norm": "layernorm"}
LEARNED_LN = {"position": "learned", "norm": "layernorm"}
EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 2}
POST_BART = {"decoder_layers": N_LAYERS, "decoder_attention_heads": 4, "d_model": D_MODEL}
POST_BART |= {"decoder_ffn_dim": 6, "encoder_layers": 1, "pad_token_id": 0}
UNSCALED = {"scaled_dot": {}, "dot": {"scale_attn_weights": False}}

FAMILIES = (
    family("Llama", "pre", SHARED, acts(GATED), WIDTH, **ROTARY_RMS),
    family(
        "Mistral",
        "pre",
        SHARED,
        acts(GATED),
        WIDTH,
        **ROTARY_RMS,
        pattern={"full": {"sliding_window": None}, "window": {"sliding_window": WINDOW}},
    ),
    family(
        "Granite",
        "pre",
        SHARED,
        acts(GATED),
        WIDTH,
        **ROTARY_RMS,
        score={"scaled_dot": {"attention_multiplier": 2**-0.5}, "dot": {}},
    ),
    family(
        "Gemma",
        "pre",
        SHARED,
        acts(GATED),
        WIDTH | {"head_dim": 4},
        position="rotary",
        norm="offset_rmsnorm",
    ),
    family(
        "Gemma2",
        "sandwich",
        SHARED,
        acts(GATED, "hidden_activation"),
        WIDTH | {"head_dim": 4, "attn_logit_softcapping": None, "final_logit_softcapping": None},
        position="rotary",
        norm="offset_rmsnorm",
        pattern=BOTH,
        score={n: {"query_pre_attn_scalar": s} for n, s in (("scaled_dot", 4), ("dot", 1))},
    ),
    family(
        "SmolLM3",
        "pre",
        SHARED,
        acts(GATED),
        WIDTH | {"pad_token_id": 0},
        position={
            "none": {"no_rope_layers": [0] * N_LAYERS},
            "rotary": {"no_rope_layers": [1] * N_LAYERS},
        },
        norm="rmsnorm",
        pattern={n: f | {"use_sliding_window": n == "window"} for n, f in BOTH.items()},
    ),
    family("Arcee", "pre", SHARED, acts(PLAIN), WIDTH, **ROTARY_RMS),
    family("Glm4", "sandwich", SHARED, acts(GATED), WIDTH | {"pad_token_id": 0}, **ROTARY_RMS),
    family(
        "Mixtral",
        "pre",
        SHARED,
        "moe",
        WIDTH | EXPERTS,
        **ROTARY_RMS,
        pattern={"full": {"sliding_window": None}, "window": {"sliding_window": WINDOW}},
    ),
    family(
        "GraniteMoe",
        "pre",
        SHARED,
        "moe",
        WIDTH | EXPERTS,
        **ROTARY_RMS,
        score={"scaled_dot": {"attention_multiplier": 2**-0.5}, "dot": {}},
    ),
    family(
        "Jamba",
        "pre",
        SHARED,
        "moe",
        WIDTH
        | {"attn_layer_period": 1, "attn_layer_offset": 0, "expert_layer_period": 1}
        | {"expert_layer_offset": 0, "num_experts": 3, "num_experts_per_tok": 2}
        | {"use_mamba_kernels": False, "pad_token_id": 0},
        position="none",
        norm="rmsnorm",
    ),
    family(
        "GPT2LMHead",
        "pre",
        MHA,
        acts(PLAIN, "activation_function"),
        {},
        score=UNSCALED,
        **LEARNED_LN,
    ),
    family(
        "GPTBigCode",
        "pre",
        {"mha": {"multi_query": False}, "mqa": {"multi_query": True}},
        acts(PLAIN, "activation_function"),
        {},
        score=UNSCALED,
        **LEARNED_LN,
    ),
    family(
        "GPTNeo",
        "pre",
        MHA,
        acts(PLAIN, "activation_function"),
        WIDTH | {"window_size": WINDOW},
        score="dot",
        pattern={
            "full": {"attention_types": [[["global"], N_LAYERS]]},
            "window": {"attention_types": [[["local"], N_LAYERS]]},
        },
        **LEARNED_LN,
    ),
    family(
        "GPTNeoX", "pre", MHA, acts(PLAIN), WIDTH | {"use_parallel_residual": False}, **ROTARY_LN
    ),
    family(
        "GPTJ", "parallel", MHA, acts(PLAIN, "activation_function"), {"rotary_dim": 2}, **ROTARY_LN
    ),
    family(
        "Falcon",
        {"pre": {"parallel_attn": False}, "parallel": {"parallel_attn": True}},
        {"mha": {"multi_query": False}, "mqa": {"multi_query": True}},
        acts(PLAIN, "activation"),
        {"ffn_hidden_size": 6},
        position={"rotary": {}, "alibi": {"alibi": True}},
        norm="layernorm",
    ),
    family(
        "Falcon",
        "parallel",
        {"gqa": {"num_kv_heads": 2}},
        acts(PLAIN, "activation"),
        {"ffn_hidden_size": 6, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
        position={"rotary": {}, "alibi": {"alibi": True}},
        norm="layernorm",
    ),
    family("Bloom", "pre", MHA, "gelu_tanh", {}, position="alibi", norm="layernorm"),
    family(
        "Mpt",
        "pre",
        MHA,
        "gelu",
        {},
        position="alibi",
        norm="layernorm",
        score={
            "scaled_dot": {},
            "dot": {"attn_config": {"softmax_scale": 1.0, "attn_type": "multihead_attention"}},
        },
    ),
    family(
        "OPT",
        {"pre": {"do_layer_norm_before": True}, "post": {"do_layer_norm_before": False}},
        MHA,
        acts(PLAIN, "activation_function"),
        {"ffn_dim": 6, "word_embed_proj_dim": D_MODEL, "pad_token_id": 0},
        **LEARNED_LN,
    ),
    family(
        "XGLM",
        "pre",
        MHA,
        acts(PLAIN, "activation_function"),
        {"ffn_dim": 6, "pad_token_id": 0, "num_layers": N_LAYERS, "attention_heads": 4}
        | {"d_model": D_MODEL},
        position="sinusoidal",
        norm="layernorm",
    ),
    family(
        "Starcoder2",
        "pre",
        SHARED,
        acts(PLAIN),
        WIDTH,
        **ROTARY_LN,
        pattern={"full": {"sliding_window": None}, "window": {"sliding_window": WINDOW}},
    ),
    family("Phi", "parallel", SHARED, acts(PLAIN), WIDTH | {"pad_token_id": 0}, **ROTARY_LN),
    family("Nemotron", "pre", SHARED, acts(PLAIN), WIDTH | {"pad_token_id": 0}, **ROTARY_LN),
    family(
        "StableLm",
        {"pre": {}, "parallel": {"use_parallel_residual": True}},
        SHARED,
        acts(GATED),
        WIDTH,
        **ROTARY_LN,
    ),
    family("Cohere", "parallel", SHARED, acts(GATED), WIDTH | {"pad_token_id": 0}, **ROTARY_LN),
    family(
        "Cohere2",
        "parallel",
        SHARED,
        acts(GATED),
        WIDTH | {"pad_token_id": 0},
        position="none",
        norm="layernorm",
        pattern=layered("full_attention"),
    ),
    family(
        "Cohere2",
        "parallel",
        SHARED,
        acts(GATED),
        WIDTH | {"pad_token_id": 0},
        **ROTARY_LN,
        pattern=layered("sliding_attention"),
    ),
    family(
        "ModernBertDecoder",
        "pre",
        MHA,
        acts(GATED, "hidden_activation"),
        WIDTH | {"pad_token_id": 0, "local_attention": 2 * WINDOW},
        **ROTARY_LN,
        pattern=BOTH,
    ),
    family("BertLMHead", "post", MHA, acts(PLAIN), WIDTH | {"is_decoder": True}, **LEARNED_LN),
    family("RoFormer", "post", MHA, acts(PLAIN), WIDTH | {"is_decoder": True}, **ROTARY_LN),
    family("Bart", "post", MHA, acts(PLAIN, "activation_function"), POST_BART, **LEARNED_LN),
    family(
        "Marian",
        "post",
        MHA,
        acts(PLAIN, "activation_function"),
        POST_BART | {"decoder_start_token_id": 0},
        position="sinusoidal",
        norm="layernorm",
    ),
    family(
        "Pegasus",
        "pre",
        MHA,
        acts(PLAIN, "activation_function"),
        POST_BART,
        position="sinusoidal",
        norm="layernorm",
    ),
)


class HFTransformers:
    """A cell as one of the model classes of HF transformers has it: the first that can."""

    name = "HF transformers"

    def missing(self, parts: Parts) -> list[str]:
        """What no family has all of at once; single parts where no family has them at all."""
        if any(_has(options, parts) for _, _, options in FAMILIES):
            return []
        nowhere = [
            f"{axis}: {name}"
            for axis, name in parts.items()
            if not any(name in options[axis] for _, _, options in FAMILIES)
        ]
        return nowhere or ["no class has all of these together"]

    def build(self, parts: Parts) -> nn.Module:
        path, fields, options = next(f for f in FAMILIES if _has(f[2], parts))
        for axis, name in parts.items():
            fields = fields | options[axis][name]
        model_class = _hf_class(path)
        # A configuration takes any field and ignores what it does not know.
        known = model_class.config_class()
        if unknown := [f for f in fields if f not in SIZES and not hasattr(known, f)]:
            raise KeyError(f"{path} has no {', '.join(unknown)}")
        return model_class(model_class.config_class(**fields))

    def logits(self, model: nn.Module, tokens: Tensor, valid: Tensor | None, side: str) -> Tensor:
        """As `generate` calls it: the mask, and positions counted from the mask."""
        return model(input_ids=tokens, **_masked(model, valid)).logits

    def cached(self, model: nn.Module, tokens: Tensor, parts: list[slice]) -> Tensor:
        """With the cache that the model itself makes."""
        kept, logits = None, list[Tensor]()
        for part in parts:
            seen = torch.ones_like(tokens[:, : part.stop], dtype=torch.bool)
            more = {
                k: v if k == "attention_mask" else v[:, part]
                for k, v in _masked(model, seen).items()
            }
            out = model(input_ids=tokens[:, part], past_key_values=kept, use_cache=True, **more)
            kept = out.past_key_values
            logits.append(out.logits)
        return torch.cat(logits, dim=1)


def _has(options: Mapping[str, Mapping[str, Fields]], parts: Parts) -> bool:
    return all(name in options[axis] for axis, name in parts.items())


@cache
def _hf_class(path: str) -> Any:
    import transformers

    causal = getattr(transformers, f"{path}ForCausalLM", None)
    return causal or getattr(transformers, f"{path}Model")


def _masked(model: nn.Module, valid: Tensor | None) -> Fields:
    if valid is None:
        return {}
    fields: Fields = {"attention_mask": valid.long()}
    if "position_ids" in _parameters(type(model)):
        fields["position_ids"] = (valid.long().cumsum(1) - 1).clamp(min=0)
    return fields


@cache
def _parameters(model_class: type[nn.Module]) -> frozenset[str]:
    import inspect

    return frozenset(inspect.signature(model_class.forward).parameters)


# --- what must hold ------------------------------------------------------------------------------

Peer = XTransformers | HFTransformers
CHECKS = ("causality", "cached", "cached token by token", "right padding", "left padding")


def checked(peer: Peer, model: nn.Module, draw: random.Random) -> Iterator[tuple[str, float]]:
    """Each check and how far the model is from it."""
    texts = [drawn(n, draw) for n in LENGTHS]
    alone = torch.cat([peer.logits(model, row(text), None, "right")[0] for text in texts])
    rows = torch.tensor([drawn(7, draw) for _ in range(3)])
    whole = peer.logits(model, rows, None, "right")
    other = rows.clone()
    other[:, 4] = (rows[:, 4] + 1) % VOCABULARY
    yield "causality", distance(peer.logits(model, other, None, "right")[:, :4], whole[:, :4])
    for name, parts in (
        ("cached", pieces(7, draw)),
        ("cached token by token", [slice(i, i + 1) for i in range(7)]),
    ):
        yield name, _error(lambda parts=parts: distance(peer.cached(model, rows, parts), whole))
    for side in SIDES[::-1]:
        tokens, valid = padded(texts, side, draw)
        assert tokens[valid].tolist() == flat(texts)
        yield (
            f"{side} padding",
            _error(lambda: distance(peer.logits(model, tokens, valid, side)[valid], alone)),  # noqa: B023
        )


def _error(measure: Callable[[], float]) -> float:
    """The measure; infinite where the peer raises."""
    try:
        return measure()
    except Exception:
        return float("inf")


def randomised(model: nn.Module) -> nn.Module:
    """The model with weights large enough for a mistake to show; fixed tables stay."""
    with torch.no_grad():
        for weight in (w for w in model.parameters() if w.requires_grad):
            if weight.ndim < 2:
                weight.normal_(mean=0.5, std=0.5)
            else:
                weight.normal_(std=weight.shape[-1] ** -0.5)
    return model


def judged(peer: Peer, cell: Cell) -> tuple[str, list[str]]:
    """What became of a cell: `refused` and why, `wrong` and in what, or `right`."""
    parts = dict(cell.parts)
    if missing := peer.missing(parts):
        return "refused", missing
    torch.manual_seed(0)
    try:
        model = randomised(peer.build(parts)).eval()
    except Exception as error:
        return "refused", [f"its constructor raises {type(error).__name__}: {error}"]
    draw = random.Random(0)
    with torch.no_grad():
        found = [name for name, error in checked(peer, model, draw) if not error <= TOLERANCE]
    return ("wrong", found) if found else ("right", [type(model).__name__])


def measured(peer: Peer, found: list[Cell]) -> dict[str, Any]:
    """The counts of one peer, and an example of everything that it gets wrong."""
    counts, reasons = Counter[str](), defaultdict[str, Counter[str]](Counter)
    examples: dict[str, str] = {}
    for done, cell in enumerate(found, start=1):
        verdict, why = judged(peer, cell)
        counts[verdict] += 1
        reasons[verdict].update(why)
        if verdict == "wrong":
            examples.setdefault(" and ".join(why), cell.id)
        if done % 1000 == 0:
            print(f"{peer.name}: {done} of {len(found)}: {dict(counts)}", file=sys.stderr)
    return {
        "version": version("x-transformers" if isinstance(peer, XTransformers) else "transformers"),
        **{verdict: counts[verdict] for verdict in ("refused", "wrong", "right")},
        "refused_for": dict(reasons["refused"].most_common()),
        "wrong_in": dict(reasons["wrong"].most_common()),
        "wrong_for_example": examples,
        **({} if isinstance(peer, XTransformers) else {"right_with": dict(reasons["right"])}),
    }


def main() -> None:
    """Measure both peers and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, help="only so many cells, drawn at random")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    decoders = [c for c in cells() if c.family == "decoder" and not c.mixer and not c.variant]
    allowed = [cell for cell in decoders if not cell.refusal()]
    if arguments.sample:
        allowed = sample(arguments.sample, 0, allowed)
    result: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]),
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "cells": len(allowed),
        "tolerance": TOLERANCE,
    }
    for peer in (XTransformers(), HFTransformers()):
        result[peer.name] = measured(peer, allowed)
    print(json.dumps(result, indent=1))
    file = Path(__file__).parent / "results" / "peers.json"
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
