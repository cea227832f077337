"""The decoder-only model: causality, padding, packing, and caches that only change speed."""

import dataclasses
import math
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts import check_config, check_gradients, check_module
from torch import Tensor
from torch.testing import assert_close

from addnorm.models import DecoderConfig, DecoderModel, ModelConfig
from addnorm.nn.attention import (
    AdditiveConfig,
    AttentionConfig,
    BilinearConfig,
    BlocksPatternConfig,
    DotConfig,
    EagerCoreConfig,
    WindowPatternConfig,
)
from addnorm.nn.convolution import ConvolutionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import (
    BatchNormConfig,
    LayerNormConfig,
    OffsetRMSNormConfig,
    RMSNormConfig,
)
from addnorm.nn.positions import (
    ALiBiConfig,
    LearnedConfig,
    NoPositionConfig,
    RotaryConfig,
    T5BiasConfig,
    TransformerXLConfig,
)
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.residuals import (
    DeepNormConfig,
    ParallelConfig,
    PreNormConfig,
    SandwichNormConfig,
)

pytestmark = pytest.mark.usefixtures("types_unchecked")

VOCAB = 13
SMALL = DecoderConfig(
    d_model=16, n_layers=2, max_len=64, attention=AttentionConfig(n_heads=2), dropout=0.0
)
FAMILIES = {
    "original": SMALL,
    "gpt2": dataclasses.replace(
        SMALL,
        position=LearnedConfig(),
        residual=PreNormConfig(),
        embedding=EmbeddingConfig(scale="one", norm=LayerNormConfig()),
    ),
    "llama": dataclasses.replace(
        SMALL,
        position=RotaryConfig(),
        attention=AttentionConfig(n_heads=4, n_kv_heads=2, bias=False, qk_norm=RMSNormConfig()),
        feedforward=GatedFeedForwardConfig(),
        norm=RMSNormConfig(),
        residual=PreNormConfig(),
    ),
    "mistral": dataclasses.replace(
        SMALL,
        position=RotaryConfig(),
        attention=AttentionConfig(n_heads=2, n_kv_heads=1, pattern=WindowPatternConfig(size=4)),
        residual=PreNormConfig(),
    ),
    "bloom": dataclasses.replace(SMALL, position=ALiBiConfig(), residual=PreNormConfig()),
    "t5": dataclasses.replace(
        SMALL,
        position=T5BiasConfig(),
        attention=AttentionConfig(n_heads=2, score=DotConfig()),
        norm=RMSNormConfig(),
        residual=PreNormConfig(),
    ),
    "transformer_xl": dataclasses.replace(SMALL, position=TransformerXLConfig()),
    "neox": dataclasses.replace(
        SMALL,
        position=RotaryConfig(fraction=0.5),
        residual=ParallelConfig(norms="each"),
    ),
    "gemma": dataclasses.replace(
        SMALL,
        position=RotaryConfig(),
        norm=OffsetRMSNormConfig(),
        residual=SandwichNormConfig(),
    ),
    "deepnorm": dataclasses.replace(SMALL, residual=DeepNormConfig()),
    "blocks": dataclasses.replace(
        SMALL,
        attention=AttentionConfig(
            n_heads=2, pattern=BlocksPatternConfig(size=3, local=0, n_global=1)
        ),
    ),
    "bahdanau": dataclasses.replace(
        SMALL, attention=AttentionConfig(n_heads=2, score=AdditiveConfig())
    ),
    "luong": dataclasses.replace(
        SMALL, attention=AttentionConfig(n_heads=2, n_kv_heads=1, score=BilinearConfig())
    ),
    "mixtral": dataclasses.replace(
        SMALL,
        feedforward=MixtureOfExpertsConfig(
            n_experts=3, top_k=2, expert=GatedFeedForwardConfig(d_ff=5)
        ),
        residual=PreNormConfig(),
    ),
    "lstm": dataclasses.replace(SMALL, attention=RecurrentConfig(cell="lstm")),
    "convolution": dataclasses.replace(SMALL, attention=ConvolutionConfig(kernel_size=(2, 3))),
    "batchnorm": dataclasses.replace(SMALL, norm=BatchNormConfig(), residual=PreNormConfig()),
    "eager": dataclasses.replace(
        SMALL, attention=AttentionConfig(n_heads=2, core=EagerCoreConfig())
    ),
    "nope": dataclasses.replace(SMALL, position=NoPositionConfig()),
}
every_family = pytest.mark.parametrize("name", FAMILIES)


@cache
def shared(name: str) -> DecoderModel:
    """A model that its test does not change."""
    return build(name)


def build(name: str, **changes: object) -> DecoderModel:
    torch.manual_seed(7)
    head = TokenHeadConfig(tied=False)
    return dataclasses.replace(FAMILIES[name], **{"head": head, **changes}).build(VOCAB).eval()  # type: ignore[arg-type]


def sentences(lengths: list[int], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, VOCAB, (n,), generator=generator) for n in lengths]


def padded(rows: list[Tensor], side: str) -> tuple[Tensor, Tensor]:
    width = max(len(row) for row in rows)
    tokens, valid = (
        torch.zeros(len(rows), width, dtype=torch.long),
        torch.zeros(len(rows), width).bool(),
    )
    for i, row in enumerate(rows):
        place = slice(width - len(row), None) if side == "left" else slice(len(row))
        tokens[i, place], valid[i, place] = row, True
    return tokens, valid


@every_family
def test_contract(name: str) -> None:
    check_config(FAMILIES[name], ModelConfig)
    tokens, valid = padded(sentences([5, 3]), "right")
    check_module(lambda: build(name), lambda model, _: model(tokens, valid))


@every_family
def test_gradients(name: str) -> None:
    model = build(name, d_model=8, n_layers=1, feedforward=GatedFeedForwardConfig(d_ff=3))
    tokens, valid = padded(sentences([2, 1]), "left")
    check_gradients(model, lambda m, x: m(tokens, valid) * x, torch.ones(1), twice=False)


def test_logits_of_every_token() -> None:
    assert build("original")(sentences([9])[0][None]).shape == (1, 9, VOCAB)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (1, 1)])
@every_family
def test_empty_batches_and_rows(name: str, shape: tuple[int, int]) -> None:
    tokens = torch.zeros(shape, dtype=torch.long)
    assert build(name)(tokens).shape == (*shape, VOCAB)
    assert build(name)(tokens, torch.ones(shape).bool()).shape == (*shape, VOCAB)


@every_family
@pytest.mark.parametrize("cuts", [[], [1], [5], [3, 4, 9]], ids=str)
def test_the_future_changes_nothing(name: str, cuts: list[int]) -> None:
    """Exact equality in 220 cases a family and cut: no logit before `t` sees token `t` or later.

    The two batches have one shape: a product may round differently elsewhere in a matrix.
    """
    model, rows, t = build(name), torch.stack(sentences([12] * 220)), torch.arange(220) % 11 + 1
    before = torch.arange(12) < t[:, None]
    others = torch.where(before, rows, (rows + 1 + torch.randint(VOCAB - 1, rows.shape)) % VOCAB)
    with torch.no_grad():
        seen, unseen = chunks(model, rows, None, cuts), chunks(model, others, None, cuts)
        assert_close(seen, model(rows), rtol=0, atol=1e-5)
    if name == "mixtral":  # an expert's share of the batch, and so its rounding, is the data's
        assert_close(seen[before], unseen[before], rtol=0, atol=1e-6)
    else:
        assert torch.equal(seen[before], unseen[before])
    assert not torch.isclose(seen[~before], unseen[~before]).all(-1).any()


def chunks(model: DecoderModel, tokens: Tensor, valid: Tensor | None, cuts: list[int]) -> Tensor:
    """The logits of `tokens` read piece by piece through a cache."""
    cache, out = model.new_cache(), []
    for start, end in zip([0, *cuts], [*cuts, tokens.shape[1]], strict=True):
        seen = None if valid is None else valid[:, :end]
        out.append(model(tokens[:, start:end], valid=seen, cache=cache))
        assert cache.length == end
    return torch.cat(out, dim=1)


@settings(max_examples=8)
@every_family
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    side=st.sampled_from(["left", "right"]),
    data=st.data(),
)
def test_cached_equals_uncached(
    name: str, lengths: list[int], side: str, data: st.DataObject
) -> None:
    model, (tokens, valid) = shared(name), padded(sentences(lengths), side)
    width = tokens.shape[1]
    cuts = sorted(data.draw(st.sets(st.integers(1, width - 1), max_size=6))) if width > 1 else []
    with torch.no_grad():
        got, expected = chunks(model, tokens, valid, cuts), model(tokens, valid)
    assert_close(got[valid], expected[valid], rtol=0, atol=1e-5)


@settings(max_examples=8)
@every_family
@given(
    lengths=st.lists(st.integers(1, 12), min_size=2, max_size=5),
    side=st.sampled_from(["left", "right"]),
)
def test_batch_mates_and_padding_change_nothing(name: str, lengths: list[int], side: str) -> None:
    model, rows = shared(name), sentences(lengths)
    with torch.no_grad():
        together = model(*padded(rows, side))
        for i, row in enumerate(rows):
            place = slice(-len(row), None) if side == "left" else slice(len(row))
            assert_close(together[i, place], model(row[None])[0], rtol=0, atol=1e-5)


@every_family
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
def test_values_at_padding_change_no_bit(name: str, side: str, garbage: float) -> None:
    model, (tokens, valid) = build(name), padded(sentences([7, 3, 1]), side)
    clean = model(tokens, valid)
    with torch.no_grad():
        model.embed.tokens.weight[0] = garbage
    assert torch.equal(model(tokens, valid)[valid], clean[valid])
    cached = chunks(model, tokens, valid, [2, 3])
    assert_close(cached[valid], clean[valid], rtol=0, atol=1e-5)


@every_family
def test_a_row_of_padding_is_finite(name: str) -> None:
    model, tokens = build(name), torch.zeros(2, 4, dtype=torch.long)
    valid = torch.tensor([[True] * 4, [False] * 4])
    out = model(tokens, valid)
    assert out.isfinite().all()
    out.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@settings(max_examples=10)
@every_family
@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4), tail=st.integers(0, 3))
@pytest.mark.long
def test_a_packed_row_equals_each_document_alone(name: str, lengths: list[int], tail: int) -> None:
    model, rows = shared(name), sentences(lengths)
    ids = torch.cat([torch.full((n,), i) for i, n in enumerate([*lengths, tail])])[None]
    tokens = torch.cat([*rows, torch.zeros(tail, dtype=torch.long)])[None]
    valid = (ids != len(lengths)) if tail else None
    with torch.no_grad():
        packed = model(tokens, valid, segments=ids)[0]
        for i, row in enumerate(rows):
            assert_close(packed[ids[0] == i], model(row[None])[0], rtol=0, atol=1e-5)


def test_packed_rows_through_a_cache() -> None:
    model, ids = build("llama"), torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2]])
    tokens, cache = sentences([8])[0][None], build("llama").new_cache()
    first = model(tokens[:, :5], segments=ids[:, :5], cache=cache)
    rest = model(tokens[:, 5:], segments=ids, cache=cache)
    assert_close(torch.cat((first, rest), 1), model(tokens, segments=ids), rtol=0, atol=1e-5)


@every_family
def test_selected_rows_of_a_cache_continue_their_texts(name: str) -> None:
    model, (tokens, valid) = build(name), padded(sentences([6, 4, 5]), "left")
    cache, rows = model.new_cache(), torch.tensor([2, 0, 2, 1])
    with torch.no_grad():
        model(tokens[:, :5], valid=valid[:, :5], cache=cache)
        cache.select(rows)
        got = model(tokens[rows, 5:], valid=valid[rows], cache=cache)
        assert_close(got, model(tokens, valid)[rows, 5:], rtol=0, atol=1e-5)


@every_family
def test_greedy_ids_with_and_without_a_cache(name: str) -> None:
    """Reliability check 5, at a length for the fast lane."""
    model = build(name, max_len=256)
    tokens, cache = sentences([3])[0][None], build(name).new_cache()
    new = tokens
    with torch.no_grad():
        for _ in range(24):
            cached, whole = model(new, cache=cache)[:, -1], model(tokens)[:, -1]
            assert_close(cached, whole, rtol=0, atol=1e-5)
            assert torch.equal(cached.argmax(-1), whole.argmax(-1))
            new = whole.argmax(-1, keepdim=True)
            tokens = torch.cat((tokens, new), 1)


@pytest.mark.slow
@every_family
def test_greedy_ids_for_256_tokens(name: str) -> None:
    model = build(name, max_len=300)
    tokens = torch.stack(sentences([4, 4]))
    new, cache = tokens, model.new_cache()
    with torch.no_grad():
        for _ in range(256):
            cached, whole = model(new, cache=cache)[:, -1], model(tokens)[:, -1]
            assert_close(cached, whole, rtol=0, atol=1e-5)
            new = whole.argmax(-1, keepdim=True)
            assert torch.equal(cached.argmax(-1, keepdim=True), new)
            tokens = torch.cat((tokens, new), 1)


@pytest.mark.parametrize("name", ["original", "llama"])
def test_far_positions_in_bfloat16(name: str) -> None:
    """A model in bfloat16 keeps no phase in a buffer that the conversion could round."""
    model = build(name).to(torch.bfloat16)
    assert not [*model.buffers()]
    tokens = sentences([5])[0][None]
    assert model(tokens).isfinite().all()


def test_learned_positions_end() -> None:
    model = build("gpt2", max_len=6)
    assert model(torch.ones(1, 6, dtype=torch.long)).shape[1] == 6
    with pytest.raises(ValueError, match="knows 6 positions"):
        model(torch.ones(1, 7, dtype=torch.long))
    tokens, valid = padded(sentences([6, 2]), "left")
    wide = torch.nn.functional.pad(tokens, (3, 0)), torch.nn.functional.pad(valid, (3, 0))
    assert_close(model(*wide)[:, 3:][valid], model(tokens, valid)[valid], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["original", "llama", "nope"])
def test_other_positions_run_past_max_len(name: str) -> None:
    assert build(name, max_len=4)(torch.ones(1, 9, dtype=torch.long)).isfinite().all()


def test_tied_weights_are_one() -> None:
    tied, untied = SMALL.build(VOCAB), build("original")
    assert tied.head.weight is tied.embed.tokens.weight
    assert untied.head.weight is not untied.embed.tokens.weight
    difference = sum(p.numel() for p in untied.parameters()) - sum(
        p.numel() for p in tied.parameters()
    )
    assert difference == VOCAB * 16


def test_autocast_keeps_the_residual_stream_in_float32() -> None:
    model, tokens = build("llama"), sentences([6])[0][None]
    streams: list[torch.dtype] = []
    for block in model.stack.blocks:
        block.register_forward_hook(lambda _m, _i, out: streams.append(out.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        out = model(tokens)
    assert streams == [torch.float32] * 2
    assert_close(out.float(), model(tokens), rtol=0, atol=5e-2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("d_model", 15),
        ("d_model", 0),
        ("n_layers", 0),
        ("max_len", 0),
        ("dropout", 1.0),
        ("init", "best"),
    ],
)
def test_impossible_values_are_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        DecoderConfig(**{"attention": AttentionConfig(n_heads=2), field: value})  # type: ignore[arg-type]


@every_family
def test_a_prefix_is_seen_from_everywhere(name: str) -> None:
    """Raffel et al. 2020, §3.2.1: within the prefix later tokens reach earlier ones."""
    if FAMILIES[name].attention.kind != "attention":
        pytest.skip("a recurrence or a convolution that looks back has no prefix to look ahead in")
    model, tokens = build(name), torch.stack(sentences([9, 9]))
    others = tokens.clone()
    others[:, 4] = tokens[:, 4] % (VOCAB - 1) + 1
    prefix = torch.tensor([5, 3])
    seen, changed = model(tokens, prefix=prefix), model(others, prefix=prefix)
    assert not torch.isclose(seen[0, 3], changed[0, 3]).all() or name in {"mistral", "blocks"}
    assert_close(seen[1, :4], changed[1, :4], rtol=0, atol=1e-6)
    assert_close(model(tokens, prefix=torch.tensor([0, 1])), model(tokens), rtol=0, atol=1e-5)
    left = torch.cat([torch.zeros(2, 2, dtype=torch.long), tokens], dim=1)
    valid = torch.arange(11).expand(2, -1) >= 2
    assert_close(model(left, valid=valid, prefix=prefix)[:, 2:], seen, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["transformer_xl", "bloom", "t5", "llama", "nope"])
def test_segments_with_a_memory_equal_one_pass(name: str) -> None:
    """Dai et al. 2019, §3.2: a memory as long as the past gives each segment all that it saw."""
    model, tokens = build(name), torch.stack(sentences([12, 12]))
    memory = model.new_memory(12)
    parts = [model(tokens[:, i : i + 4], cache=memory) for i in (0, 4, 8)]
    assert_close(torch.cat(parts, 1), model(tokens), rtol=0, atol=1e-5)
    assert memory.length == 12


def test_a_short_memory_forgets_and_a_gradient_stays_in_its_segment() -> None:
    model, tokens = build("transformer_xl"), torch.stack(sentences([12]))
    memory = model.new_memory(3)
    first = model.embed.tokens.weight.grad
    assert first is None
    model(tokens[:, :6], cache=memory)
    model(tokens[:, 6:], cache=memory).sum().backward()
    touched = model.embed.tokens.weight.grad.abs().sum(-1) > 0  # type: ignore[union-attr]
    expected = torch.zeros(VOCAB).bool().index_fill(0, tokens[0, 6:], True)
    assert torch.equal(touched, expected)
    assert memory.length == 3


def test_next_is_the_last_of_all_logits() -> None:
    model = DecoderConfig(d_model=16, n_layers=2, attention=AttentionConfig(n_heads=2)).build(11)
    model.eval()
    tokens = torch.randint(11, (3, 7))
    valid = torch.arange(7) >= torch.tensor([[0], [2], [6]])
    want = model(tokens, valid)
    torch.testing.assert_close(model.next_token_logits(tokens, valid), want[:, -1])
    cache = model.new_cache()
    torch.testing.assert_close(
        model.next_token_logits(tokens[:, :5], valid[:, :5], cache), want[:, 4]
    )
    torch.testing.assert_close(model.next_token_logits(tokens[:, 5:], valid, cache), want[:, 6])
