"""`generate` and `translate`: order, limits, end tokens, seeds and errors."""

import copy
from itertools import takewhile
from math import inf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.errors import InputError
from addnorm.generate import BeamConfig, GreedyConfig, SampleConfig, generate, translate
from addnorm.generate.decode import decode
from addnorm.generate.next_token import Continuation
from addnorm.models import DecoderConfig, DecoderModel, EncoderDecoderConfig, EncoderDecoderModel
from addnorm.nn.attention import AttentionConfig

VOCAB, EOS = 11, 3


@pytest.fixture(scope="module")
def decoder() -> DecoderModel:
    torch.manual_seed(0)
    config = DecoderConfig(d_model=16, n_layers=1, attention=AttentionConfig(n_heads=2))
    return config.build(VOCAB).eval()


@pytest.fixture(scope="module")
def translator() -> EncoderDecoderModel:
    torch.manual_seed(0)
    config = EncoderDecoderConfig(d_model=16, n_layers=1, attention=AttentionConfig(n_heads=2))
    return config.build(VOCAB).eval()


@pytest.mark.long
@settings(max_examples=20)
@given(
    prompts=st.lists(st.lists(st.integers(0, VOCAB - 1), max_size=6), max_size=6),
    batch_size=st.integers(1, 4),
    sampled=st.booleans(),
)
def test_each_score_is_the_log_probability_of_its_tokens(
    decoder, prompts, batch_size, sampled
) -> None:
    """So each result stands at the place of its prompt, and nothing is lost."""
    decoding = SampleConfig(temperature=2.0, seed=1) if sampled else GreedyConfig()
    results = generate(decoder, prompts, decoding, max_new_tokens=5, batch_size=batch_size)
    assert len(results) == len(prompts)
    for prompt, [g] in zip(prompts, results, strict=True):
        written = [*g.ids, EOS] if g.finished == "eos" else [*g.ids]
        assert EOS not in g.ids
        assert len(written) <= 5
        assert (len(written) == 5) or g.finished == "eos"
        row = [*(prompt or [EOS]), *written]
        with torch.inference_mode():
            log_p = decoder(torch.tensor([row])).log_softmax(-1)[0]
        places = range(len(row) - len(written) - 1, len(row) - 1)
        assert g.score == pytest.approx(sum(float(log_p[i, row[i + 1]]) for i in places), abs=1e-4)


def test_beam_scores_are_normalised_by_the_length_with_its_end(translator) -> None:
    sources, config = [[5, 6, 7], [8, 9]], BeamConfig(beams=6, n_best=4, length_penalty=0.9)
    results = translate(translator, sources, config, max_new_tokens=4)
    for source, best in zip(sources, results, strict=True):
        assert 1 <= len(best) <= 4
        for g in best:
            row = [2, *g.ids, EOS] if g.finished == "eos" else [2, *g.ids]
            with torch.inference_mode():
                log_p = translator(torch.tensor([source]), torch.tensor([row])).log_softmax(-1)[0]
            total = sum(float(log_p[i, token]) for i, token in enumerate(row[1:]))
            expected = total / ((5 + len(row) - 1) / 6) ** 0.9
            assert g.score == pytest.approx(expected, abs=1e-4)


def test_no_prompts_give_no_results(decoder, translator) -> None:
    assert generate(decoder, [], GreedyConfig(), max_new_tokens=3) == []
    assert translate(translator, [], BeamConfig()) == []


def test_an_empty_prompt_begins_with_the_start_token(decoder) -> None:
    empty, begun = generate(decoder, [[], [EOS]], GreedyConfig(), max_new_tokens=6)
    assert empty == begun
    [other] = generate(decoder, [[]], GreedyConfig(), max_new_tokens=6, start_id=7)
    [spelt] = generate(decoder, [[7]], GreedyConfig(), max_new_tokens=6)
    assert other == spelt
    with pytest.raises(InputError, match="prompt 2 is empty"):
        generate(decoder, [[1], []], GreedyConfig(), max_new_tokens=6, start_id=None)


@pytest.mark.parametrize("ends", [(1, 2), (9, 4, 0)])
def test_any_of_several_tokens_ends_a_text(decoder, translator, ends: tuple[int, ...]) -> None:
    def written(eos_id) -> list[tuple[int, ...]]:
        how = {"decoding": SampleConfig(temperature=3.0), "max_new_tokens": 12, "eos_id": eos_id}
        [[continuation]], [[other]] = (
            generate(decoder, [[5, 6]], **how),
            translate(translator, [[5, 6]], **how),
        )
        return [continuation.ids, other.ids]

    whole = written(None)
    cut = [tuple(takewhile(lambda token: token not in ends, ids)) for ids in whole]
    assert cut != whole
    assert written(ends) == cut


def test_an_empty_source_is_rejected(translator) -> None:
    with pytest.raises(InputError, match="prompt 2 has 0 tokens: this model reads at least 1"):
        translate(translator, [[5], []], GreedyConfig())


@pytest.mark.parametrize("n", [0, -5])
def test_a_limit_below_one_is_rejected(decoder, n: int) -> None:
    with pytest.raises(InputError, match=f"max_new_tokens = {n}`: must be at least 1"):
        generate(decoder, [[5]], GreedyConfig(), max_new_tokens=n)


def test_a_batch_size_of_zero_is_rejected(decoder) -> None:
    with pytest.raises(InputError, match="batch_size must be at least 1, got 0"):
        generate(decoder, [[5]], GreedyConfig(), max_new_tokens=1, batch_size=0)


def test_a_translation_may_be_50_longer_than_its_source(translator) -> None:
    with torch.no_grad():
        results = translate(translator, [[5] * 4, [6]], GreedyConfig(), eos_id=None)
    assert [(len(g.ids), g.finished) for [g] in results] == [(54, "length"), (51, "length")]


def test_a_seed_repeats_its_texts_and_another_seed_differs(decoder) -> None:
    def sample(seed: int, prompts: list[list[int]]) -> list[tuple[int, ...]]:
        config = SampleConfig(temperature=3.0, seed=seed)
        results = generate(decoder, prompts, config, max_new_tokens=30, eos_id=None, start_id=1)
        return [g.ids for [g] in results]

    state = torch.get_rng_state()
    assert sample(1, [[5], [5]]) == sample(1, [[5], [5]])
    assert torch.equal(torch.get_rng_state(), state)
    first, second = sample(1, [[5], [5]])
    assert first != second
    assert sample(2, [[5], [5]])[0] != first
    # Longer batch-mates change the order and the padding, but not the row.
    assert sample(1, [[5], [6, 7, 8], [9, 9, 9, 9]])[0] == first


def test_a_cold_sample_is_greedy(decoder) -> None:
    prompts = [[5], [6, 7]]
    greedy = generate(decoder, prompts, GreedyConfig(), max_new_tokens=9)
    for cold in (SampleConfig(temperature=1e-20), SampleConfig(top_k=1), SampleConfig(min_p=1.0)):
        assert generate(decoder, prompts, cold, max_new_tokens=9) == greedy


def test_filters_do_not_change_the_score(decoder) -> None:
    [[g]] = generate(decoder, [[5]], SampleConfig(top_k=2, seed=4), max_new_tokens=9)
    assert -inf < g.score < 0
    assert g.text == ""


@pytest.mark.gpu
@pytest.mark.parametrize("decoding", [GreedyConfig(), SampleConfig(seed=2), BeamConfig(n_best=2)])
def test_a_gpu_generates_the_same_as_the_cpu(decoder, translator, decoding) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    rows = [[5, 6, 7], [8], [9, 10]]
    for model, write in ((decoder, generate), (translator, translate)):
        cpu = write(model, rows, decoding, max_new_tokens=12)
        gpu = write(copy.deepcopy(model).cuda(), rows, decoding, max_new_tokens=12)
        assert [[g.ids for g in best] for best in gpu] == [[g.ids for g in best] for best in cpu]


def test_every_prompt_needs_a_limit() -> None:
    model = DecoderConfig(d_model=8, n_layers=1, attention=AttentionConfig(n_heads=1)).build(5)
    for limits in ([1], [1, 1, 1]):
        with pytest.raises(ValueError, match="zip"):
            decode(Continuation(model), [[1], [2]], GreedyConfig(), limits, eos_id=None)
