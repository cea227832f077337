"""Compiled generation equals eager generation for all parts, or is refused."""

from pathlib import Path

import pytest
import torch

from addnorm.errors import InputError
from addnorm.generate import (
    BeamConfig,
    CompiledContinuation,
    CompiledTranslation,
    Continuation,
    GreedyConfig,
    NextToken,
    Translation,
    generate,
    graphs,
    translate,
)
from addnorm.generate.buffers import buffers
from addnorm.generate.decode import decode
from addnorm.models import (
    DecoderConfig,
    DecoderModel,
    EncoderDecoderConfig,
    EncoderDecoderModel,
)
from addnorm.nn.attention import AttentionConfig, BlocksPatternConfig, WindowPatternConfig
from addnorm.nn.attention.scores import AdditiveConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.per_layer_embedding import PerLayerEmbeddingConfig
from addnorm.nn.positions import (
    ALiBiConfig,
    DynamicScaling,
    RotaryConfig,
    SinusoidalConfig,
    T5BiasConfig,
    TransformerXLConfig,
)
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.residuals import ParallelConfig, PreNormConfig
from addnorm.quantize import Weights, quantize_int8, with_weights

VOCAB = 31

LLAMA = {
    "position": RotaryConfig(),
    "norm": RMSNormConfig(),
    "residual": PreNormConfig(),
    "feedforward": GatedFeedForwardConfig(),
    "attention": AttentionConfig(n_heads=4, n_kv_heads=2, pattern=WindowPatternConfig(size=5)),
}

OTHERS = {
    "values of the first layer": {
        "position": RotaryConfig(),
        "attention": AttentionConfig(n_heads=4, n_kv_heads=2, value_residual="learned"),
        "embedding": EmbeddingConfig(per_layer=PerLayerEmbeddingConfig(width=4)),
    },
    "alibi": {"position": ALiBiConfig(), "residual": ParallelConfig()},
    "t5": {"position": T5BiasConfig()},
    "transformer_xl": {"position": TransformerXLConfig()},
    "sinusoidal": {"position": SinusoidalConfig()},
    "dynamic": {"position": RotaryConfig(scaling=DynamicScaling(factor=2.0, original_max_len=4))},
    "blocks": {"attention": AttentionConfig(n_heads=2, pattern=BlocksPatternConfig(size=3))},
    "moe": {"feedforward": MixtureOfExpertsConfig(n_experts=3)},
    "additive": {"attention": AttentionConfig(n_heads=2, score=AdditiveConfig())},
}


pytestmark = pytest.mark.usefixtures("types_unchecked")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path))


def decoder(**fields) -> DecoderModel:
    fields = {"attention": AttentionConfig(n_heads=2), "max_len": 400} | fields
    model = DecoderConfig(**{"d_model": 16, "n_layers": 2} | fields).build(VOCAB).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model


def written(next_token, prompt: list[int], n: int) -> tuple[tuple[int, ...], float]:
    [[result]] = decode(next_token, [prompt], GreedyConfig(), [n], eos_id=None)
    return result.ids, result.score


def assert_the_same(model: DecoderModel, tolerance: float = 1e-4) -> None:
    compiled = CompiledContinuation(model)
    for prompt in ([3], [5, 1, 4, 1, 5, 9, 2, 6]):
        ids, score = written(Continuation(model), prompt, 20)
        got, got_score = written(compiled, prompt, 20)
        assert got == ids
        assert got_score == pytest.approx(score, abs=tolerance)


@pytest.mark.long
def test_a_compiled_model_generates_the_same_as_the_plain_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = decoder(**LLAMA, n_layers=1)
    assert_the_same(model)
    # Past the first buffers, too.
    prompt = torch.randint(VOCAB, (250,)).tolist()
    compiled = CompiledContinuation(model)
    assert written(compiled, prompt, 20)[0] == written(Continuation(model), prompt, 20)[0]
    # The graph holds no weights: those of the model count, and another of its kind needs no other.
    monkeypatch.setattr(graphs, "_compile", None)
    other = decoder(**LLAMA, n_layers=1)
    assert written(CompiledContinuation(other), [3], 9) != written(compiled, [3], 9)
    assert_the_same(other)


@pytest.mark.slow
def test_a_damaged_graph_is_rebuilt(tmp_path: Path) -> None:
    model = decoder()
    ids = written(CompiledContinuation(model), [3], 9)[0]
    [file] = tmp_path.glob("*.pt2")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert written(CompiledContinuation(model), [3], 9)[0] == ids
    assert file.stat().st_size > len(whole) // 2
    assert [*tmp_path.iterdir()] == [file]


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_every_kind_of_part_generates_the_same(name: str) -> None:
    assert_the_same(decoder(**OTHERS[name]))


@pytest.mark.slow
def test_bfloat16_is_within_its_precision() -> None:
    model = decoder(**LLAMA)
    plain, compiled = Continuation(model), CompiledContinuation(model.bfloat16())
    want = torch.stack([plain.start([[3, 1]]), plain.step(torch.tensor([4]))])
    got = torch.stack([compiled.start([[3, 1]]), compiled.step(torch.tensor([4]))])
    assert (got - want).abs().max() < 0.03 * want.abs().max()


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", ["llama", *OTHERS])
def test_keys_and_values_in_bfloat16_are_within_its_precision(
    name: str, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a graph is made of, for every kind of part; past the first buffers, too."""
    monkeypatch.setattr("addnorm.generate.compiled.compiled", lambda step, *_: step)
    model = decoder(**(LLAMA if name == "llama" else OTHERS[name]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)  # far from saturation, where a step would amplify rounding
    exact = Continuation(model)
    compiled = CompiledContinuation(model, several=several, cache_dtype=torch.bfloat16)
    prompts = [[3, 1, *[4] * 30]] * (1 + several)
    want, got = exact.start(prompts), compiled.start(prompts)
    torch.testing.assert_close(got, want)
    for token in range(8):
        tokens = torch.tensor([token, 9][: len(prompts)])
        want, got = exact.step(tokens), compiled.step(tokens)
        assert got.dtype == torch.float32
        assert 0 < (got - want).abs().max() < 0.02 * want.abs().max()
    assert {buffer.dtype for buffer in buffers(compiled._state.cache)} == {torch.bfloat16}


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
def test_a_graph_reads_keys_and_values_in_bfloat16(several: bool) -> None:
    model = decoder(**LLAMA, n_layers=1)
    exact = Continuation(model)
    compiled = CompiledContinuation(model, several=several, cache_dtype=torch.bfloat16)
    prompts = PROMPTS if several else PROMPTS[1:2]
    want = torch.cat([exact.start(prompts), exact.step(torch.arange(len(prompts)))])
    got = torch.cat([compiled.start(prompts), compiled.step(torch.arange(len(prompts)))])
    assert (got - want).abs().max() < 0.02 * want.abs().max()


def test_another_type_of_the_cache_is_rejected() -> None:
    with pytest.raises(InputError, match=r"kept in torch.bfloat16, not torch.float16"):
        CompiledContinuation(decoder(**LLAMA), cache_dtype=torch.float16)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_model_of_another_type_keeps_its_own(dtype: torch.dtype) -> None:
    with pytest.raises(InputError, match=f"a model in {dtype} keeps its keys and values in that"):
        CompiledContinuation(decoder(**LLAMA).to(dtype), cache_dtype=torch.bfloat16)


@pytest.mark.slow
def test_int8_in_a_graph_equals_its_definition() -> None:
    model = quantize_int8(decoder(**LLAMA))
    compiled = CompiledContinuation(model)
    compiled.start([[3, 1]])
    got = compiled.step(torch.tensor([4]))
    exact = Continuation(dequantized(model)).start([[3, 1, 4]])
    assert (got - exact).abs().max() < 0.02 * exact.abs().max()  # the prompt was rounded, too


def dequantized(model: DecoderModel) -> DecoderModel:
    plain = decoder(**LLAMA)
    state = model.state_dict()
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            matrix = f"{name.removesuffix('.weight')}.matrix"
            if name.endswith(".weight") and f"{matrix}.values" in state:
                parameter.copy_(state[f"{matrix}.values"] * state[f"{matrix}.scale"][:, None])
            else:
                parameter.copy_(state[name])
    return plain


PROMPTS = [[3], [5, 1, 4, 1, 5, 9, 2, 6], [5, 1, 4], [8, 8], [30, 2, 7, 1, 8]]


def assert_several_are_the_same(plain: NextToken, compiled: NextToken, prompts: list) -> None:
    """Greedy texts that end at different steps, and beams; each text alone, too."""
    for config in (GreedyConfig(), BeamConfig(beams=3, n_best=2)):
        for rows in (prompts, prompts[:1]):
            limits = [20] * len(rows)
            want = decode(plain, rows, config, limits, eos_id=7)
            got = decode(compiled, rows, config, limits, eos_id=7)
            assert [[g.ids for g in best] for best in got] == [
                [g.ids for g in best] for best in want
            ]
            scores = torch.tensor([[g.score for g in best] for best in got])
            torch.testing.assert_close(
                scores, torch.tensor([[g.score for g in best] for best in want])
            )


@pytest.mark.slow
def test_several_texts_and_beams_equal_the_plain_step() -> None:
    model = decoder(**LLAMA, n_layers=1)
    compiled = CompiledContinuation(model, several=True)
    assert_several_are_the_same(Continuation(model), compiled, PROMPTS)
    # Past the first buffers, too, and in the order asked for.
    long = torch.randint(VOCAB, (2, 120)).tolist()
    [a], [b] = generate(compiled, long, GreedyConfig(), max_new_tokens=20, eos_id=None)
    want = generate(model, long, GreedyConfig(), max_new_tokens=20, eos_id=None)
    assert [a.ids, b.ids] == [best.ids for [best] in want]


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_several_texts_equal_the_plain_step_for_every_kind_of_part(name: str) -> None:
    model = decoder(**OTHERS[name])
    compiled = CompiledContinuation(model, several=True)
    assert_several_are_the_same(Continuation(model), compiled, PROMPTS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_several_texts_in_fewer_bits_are_within_their_precision(kind: Weights) -> None:
    model, plain = with_weights(decoder(**LLAMA), kind), decoder(**LLAMA)
    if kind == "bfloat16":
        plain.load_state_dict(model.state_dict())
    exact = Continuation(plain if kind == "bfloat16" else dequantized(model))
    compiled = CompiledContinuation(model, several=True)
    want = torch.cat([exact.start(PROMPTS), exact.step(torch.arange(5))])
    got = torch.cat([compiled.start(PROMPTS), compiled.step(torch.arange(5))])
    assert (got - want).abs().max() < 0.04 * want.abs().max()


def translator(**fields) -> EncoderDecoderModel:
    fields = {"attention": AttentionConfig(n_heads=4, n_kv_heads=2), "max_len": 400} | fields
    model = EncoderDecoderConfig(**{"d_model": 16, "n_layers": 2} | fields).build(VOCAB).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model


TRANSLATORS = {
    "original": {},
    "rotary": {"position": RotaryConfig(), "norm": RMSNormConfig(), "residual": PreNormConfig()},
    "alibi": {"position": ALiBiConfig()},
    "t5": {"position": T5BiasConfig()},
    "transformer_xl": {"position": TransformerXLConfig()},
}


def assert_it_translates_the_same(model: EncoderDecoderModel, beams: int) -> None:
    plain, never = Translation(model, 1, never=[4]), [4]
    compiled = CompiledTranslation(model, 1, several=True, beams=beams, never=never)
    config = BeamConfig(beams=beams, n_best=min(beams, 2)) if beams > 1 else GreedyConfig()
    for sources in (PROMPTS, PROMPTS[1:2]):
        want = decode(plain, sources, config, [40] * len(sources), eos_id=7)
        got = decode(compiled, sources, config, [40] * len(sources), eos_id=7)
        for ours, theirs in zip(got, want, strict=True):
            assert [g.ids for g in ours] == [g.ids for g in theirs]
            assert [g.score for g in ours] == pytest.approx([g.score for g in theirs])


@pytest.mark.long
def test_steps_before_they_are_compiled_equal_the_plain_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a graph is made of; the slow tests compile it."""
    monkeypatch.setattr("addnorm.generate.compiled.compiled", lambda step, *_: step)
    with torch.no_grad():
        assert_it_translates_the_same(translator(n_layers=1), 3)
        model = decoder(**LLAMA, n_layers=1)
        several = CompiledContinuation(model, several=True)
        assert_several_are_the_same(Continuation(model), several, PROMPTS)


@pytest.mark.slow
def test_beams_of_a_translation_equal_the_plain_step() -> None:
    assert_it_translates_the_same(translator(n_layers=1), 3)


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 2, 9])
@pytest.mark.parametrize("name", TRANSLATORS)
def test_every_kind_of_translator_equals_the_plain_step(name: str, beams: int) -> None:
    assert_it_translates_the_same(translator(**TRANSLATORS[name]), beams)


@pytest.mark.slow
def test_a_translation_for_one_text_equals_the_plain_step_and_rejects_two() -> None:
    model = translator()
    compiled = CompiledTranslation(model, 1)
    for source in PROMPTS:
        [[want]] = translate(model, [source], GreedyConfig(), bos_id=1, eos_id=7)
        [[got]] = translate(compiled, [source], GreedyConfig(), bos_id=1, eos_id=7)
        assert got.ids == want.ids
    with pytest.raises(InputError, match="one text at a time, not 2"):
        compiled.start(PROMPTS[:2])


def test_another_number_of_beams_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("addnorm.generate.compiled.compiled", lambda *_: None)
    compiled = CompiledTranslation(translator(), 1, beams=3)
    with pytest.raises(InputError, match="compiled for 3 beams a source"):
        translate(compiled, PROMPTS, BeamConfig(beams=4), bos_id=1)


@pytest.mark.parametrize("part", ["target_embed", "decoder", "head"])
def test_a_hook_on_what_a_translation_traces_is_rejected(part: str) -> None:
    model = translator()
    model.get_submodule(part).register_forward_hook(lambda *_: None)
    with pytest.raises(InputError, match=r"a graph cannot hold .*hook"):
        CompiledTranslation(model, 1)


def test_parts_that_cannot_branch_are_rejected() -> None:
    window = AttentionConfig(n_heads=2, pattern=WindowPatternConfig(size=3))
    with pytest.raises(InputError, match="only if each layer sees all earlier tokens"):
        CompiledTranslation(translator(attention=window), 1)
    dynamic = RotaryConfig(scaling=DynamicScaling(factor=2.0, original_max_len=4))
    with pytest.raises(InputError, match="dynamic rotary"):
        CompiledTranslation(translator(position=dynamic), 1)


def test_a_graph_for_one_text_rejects_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("addnorm.generate.compiled.compiled", lambda *_: None)
    with pytest.raises(InputError, match="one text at a time, not 2"):
        CompiledContinuation(decoder()).start([[1], [2]])


def test_a_graph_for_one_text_rejects_beams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("addnorm.generate.compiled.compiled", lambda *_: None)
    compiled = CompiledContinuation(decoder())
    with pytest.raises(InputError, match="one text at a time, not 3"):
        generate(compiled, [[1, 2]], BeamConfig(beams=3), max_new_tokens=5)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"attention": RecurrentConfig()}, "mixers of kind 'attention'"),
    ],
)
def test_parts_that_do_not_compile_are_rejected_by_name(part: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        CompiledContinuation(decoder(**part))


def test_a_missing_compiler_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(InputError, match="needs a C\\+\\+ compiler"):
        CompiledContinuation(decoder())
