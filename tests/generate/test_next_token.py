"""Cache, padding and batch-mates do not change next-token logits, for any architecture."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.errors import InputError
from addnorm.generate import BeamConfig, Continuation, GreedyConfig, SampleConfig, Translation
from addnorm.generate.decode import decode
from addnorm.generate.next_token import evaluating, padded
from addnorm.models import DecoderConfig, DecoderModel, EncoderDecoderConfig, EncoderDecoderModel
from addnorm.nn.attention import AttentionConfig, WindowPatternConfig
from addnorm.nn.positions import (
    AxialRotaryConfig,
    LearnedConfig,
    PositionConfig,
    RoundedALiBiConfig,
)
from addnorm.parts import members

pytestmark = pytest.mark.usefixtures("types_unchecked")

VOCAB, BOS = 13, 2
POSITIONS = [
    kind() for kind in members(PositionConfig) if kind is not AxialRotaryConfig
]  # pictures
ROWS = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=7), min_size=1, max_size=5)
DECODINGS = [
    GreedyConfig(),
    SampleConfig(temperature=1.5, top_k=9, top_p=0.9, min_p=0.01, seed=3),
    BeamConfig(beams=4, n_best=3),
]
A_DECODING = st.sampled_from(DECODINGS)


def decoder(seed: int = 0, **fields) -> DecoderModel:
    torch.manual_seed(seed)
    attention = fields.pop("attention", AttentionConfig(n_heads=2))
    config = DecoderConfig(d_model=16, n_layers=2, attention=attention, **fields)
    return config.build(VOCAB).eval()


def encoder_decoder(seed: int = 0, **fields) -> EncoderDecoderModel:
    torch.manual_seed(seed)
    attention = AttentionConfig(n_heads=2)
    config = EncoderDecoderConfig(
        d_model=16, n_layers=2, n_decoder_layers=1, attention=attention, **fields
    )
    return config.build(VOCAB).eval()


def ids(results) -> list[list[tuple[int, ...]]]:
    return [[g.ids for g in best] for best in results]


def scores(results) -> list[float]:
    return [g.score for best in results for g in best]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("position", POSITIONS, ids=lambda p: p.kind)
@settings(max_examples=6)
@pytest.mark.parametrize("architecture", ["decoder", "encoder_decoder"])
@given(rows=ROWS, decoding=A_DECODING, seed=st.integers(0, 99))
def test_the_cache_changes_nothing(architecture, position, rows, decoding, seed) -> None:
    if architecture != "decoder" and isinstance(position, RoundedALiBiConfig):
        pytest.skip("no encoder has these positions")

    def next_token(cached: bool) -> Continuation | Translation:
        if architecture == "decoder":
            return Continuation(decoder(seed, position=position), cached=cached)
        return Translation(encoder_decoder(seed, position=position), BOS, cached=cached)

    with_cache, without = (
        decode(next_token(cached), rows, decoding, [6] * len(rows), eos_id=3)
        for cached in (True, False)
    )
    assert ids(with_cache) == ids(without)
    assert scores(with_cache) == pytest.approx(scores(without), abs=1e-4)


@pytest.mark.sampled(3)
@pytest.mark.long
@pytest.mark.parametrize("position", POSITIONS, ids=lambda p: p.kind)
@settings(max_examples=3)
@given(rows=ROWS, decoding=A_DECODING, seed=st.integers(0, 99))
def test_batch_mates_change_nothing(position, rows, decoding, seed) -> None:
    """Whether a row is padded or alone, and how the rows fall into batches."""
    writers = [Continuation(decoder(seed, position=position))]
    if not isinstance(position, RoundedALiBiConfig):  # no encoder has those
        writers.append(Translation(encoder_decoder(seed, position=position), BOS))
    for next_token in writers:
        limits = [6] * len(rows)
        together = decode(next_token, rows, decoding, limits, eos_id=3)
        in_pairs = decode(next_token, rows, decoding, limits, eos_id=3, batch_size=2)
        one_by_one = decode(next_token, rows, decoding, limits, eos_id=3, batch_size=1)
        assert ids(together) == ids(in_pairs) == ids(one_by_one)
        assert scores(together) == pytest.approx(scores(one_by_one), abs=1e-4)


@pytest.mark.long
@pytest.mark.parametrize(
    "fields",
    [
        *(
            pytest.param({"position": position}, marks=() if i % 4 == 0 else pytest.mark.slow)
            for i, position in enumerate(POSITIONS)
        ),
        {"attention": AttentionConfig(n_heads=4, n_kv_heads=2)},
        {
            "attention": AttentionConfig(
                n_heads=4, n_kv_heads=1, pattern=WindowPatternConfig(size=5)
            )
        },
    ],
    ids=lambda fields: str(next(iter(fields.values()))).partition(", d_head")[0],
)
def test_256_cached_greedy_tokens_are_the_best_of_one_uncached_pass(fields) -> None:
    prompts = [[5, 6, 7], [8]]
    model = decoder(**fields)
    results = decode(Continuation(model), prompts, GreedyConfig(), [256, 256], eos_id=None)
    for prompt, [greedy] in zip(prompts, results, strict=True):
        with torch.inference_mode():
            best = model(torch.tensor([[*prompt, *greedy.ids]])).argmax(-1)[0]
        assert list(greedy.ids) == best[len(prompt) - 1 : -1].tolist()
        assert len(greedy.ids) == 256


@pytest.mark.parametrize("position", POSITIONS, ids=lambda p: p.kind)
def test_logits_of_single_steps_equal_those_of_one_pass(position) -> None:
    model, row = decoder(position=position), torch.randint(0, VOCAB, (1, 12))
    with torch.inference_mode():
        expected = model(row)[0, 3:]
    next_token = Continuation(model)
    # Two batch-mates: one longer, so that the row is padded, and one that is dropped on the way.
    logits = [next_token.start([row[0, :4].tolist(), [1] * 6, [2]])[0]]
    for i, token in enumerate(row[0, 4:].tolist()):
        if i == 3:
            next_token.select(torch.tensor([1, 0]))
        n, place = (3, 0) if i < 3 else (2, 1)
        logits.append(next_token.step(torch.full((n,), token))[place])
    assert (torch.stack(logits) - expected).abs().max() < 1e-5


def test_the_source_is_encoded_once() -> None:
    model, encoded = encoder_decoder(), []
    model.encoder.register_forward_hook(lambda *_: encoded.append(1))
    decode(Translation(model, BOS), [[5, 6], [7]], BeamConfig(), [6, 6], eos_id=3)
    assert len(encoded) == 1


@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
def test_every_module_keeps_its_mode(kind: str) -> None:
    """Dropout is off while decoding, though the model was training, and even where it fails."""
    model = decoder(dropout=0.5) if kind == "decoder" else encoder_decoder(dropout=0.5)
    next_token = Continuation(model) if isinstance(model, DecoderModel) else Translation(model, BOS)
    still = decode(next_token, [[5, 6]], GreedyConfig(), [20], eos_id=None)
    model.train()
    next(model.children()).eval()
    modes = [module.training for module in model.modules()]
    assert decode(next_token, [[5, 6]], GreedyConfig(), [20], eos_id=None) == still
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(KeyError), evaluating(model):
        raise KeyError
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_damaged_weights_are_rejected() -> None:
    model = decoder()
    with torch.no_grad():
        next(model.parameters())[4] = float("nan")
    with pytest.raises(InputError, match="NaN"):
        Continuation(model).start([[4]])


def test_remaining_length_is_that_of_learned_positions() -> None:
    model = Continuation(decoder(position=LearnedConfig(), max_len=8))
    assert model.remaining_length(0, [1] * 3) == 6
    [[full]] = decode(model, [[1] * 8], GreedyConfig(), [99], eos_id=None)
    assert (len(full.ids), full.finished) == (1, "length")
    [[g]] = decode(model, [[1] * 3], GreedyConfig(), [99], eos_id=None)
    assert (len(g.ids), g.finished) == (6, "length")
    with pytest.raises(InputError, match=r"prompt 2 has 9 tokens.*at most 8"):
        decode(model, [[1], [1] * 9], GreedyConfig(), [9, 9], eos_id=None)


def test_remaining_length_of_a_translation_is_that_of_its_target() -> None:
    model = Translation(encoder_decoder(position=LearnedConfig(), max_len=8), BOS)
    assert model.remaining_length(0, [1] * 8) == 8
    [[g]] = decode(model, [[1] * 8], GreedyConfig(), [99], eos_id=None)
    assert (len(g.ids), g.finished) == (8, "length")
    with pytest.raises(InputError, match="prompt 1 has 9 tokens"):
        model.remaining_length(1, [1] * 9)


def test_tokens_outside_the_vocabulary_are_rejected() -> None:
    model = Continuation(decoder())
    for bad in ([VOCAB], [1, -1]):
        with pytest.raises(InputError, match=f"token {bad[-1]}: this model knows 0 to 12"):
            model.remaining_length(0, bad)
    with pytest.raises(InputError, match="prompt 4 has 0 tokens"):
        model.remaining_length(4, [])


@given(ROWS, st.booleans())
def test_padding_keeps_every_token(rows: list[list[int]], left: bool) -> None:
    tokens, valid = padded(rows, torch.device("cpu"), left=left)
    valid = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
    assert [row[real].tolist() for row, real in zip(tokens, valid, strict=True)] == rows
    edge = valid[:, -1] if left else valid[:, 0]
    assert edge.all()
