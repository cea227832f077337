import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from addnorm.convert.exporters.ctranslate2 import check_ctranslate2, export_ctranslate2
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import BOS_ID, EOS_ID, BPEConfig, Tokenizer, WordConfig
from addnorm.errors import InputError
from addnorm.generate import BeamConfig, GreedyConfig, generate, translate
from addnorm.models import DecoderConfig, DecoderModel, EncoderDecoderConfig, EncoderDecoderModel
from addnorm.nn.attention import AttentionConfig, DotConfig, ScaledDotConfig
from addnorm.nn.attention.outputs import GatedOutputConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.norms import LayerNormConfig, OffsetRMSNormConfig, RMSNormConfig
from addnorm.nn.positions import (
    ALiBiConfig,
    LearnedConfig,
    LinearScaling,
    NoPositionConfig,
    NTKScaling,
    RotaryConfig,
    SinusoidalConfig,
    T5BiasConfig,
)
from addnorm.nn.residuals import ParallelConfig, PreNormConfig, SandwichNormConfig

SMALL = {"d_model": 32, "n_layers": 2}
FOUR = AttentionConfig(n_heads=4)
WORDS = WordConfig().train([" ".join(f"w{i}" for i in range(93))])
BOTH = Tokenizers(WORDS, WORDS)
NAMES = [WORDS.inner.id_to_token(i) or "" for i in range(WORDS.vocab_size)]


def _built(config: Any, *sizes: int) -> Any:
    """The model with every parameter away from where it starts."""
    model = config.build(*(sizes or [WORDS.vocab_size])).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def _opened(kind: str, folder: Path) -> Any:
    ctranslate2 = pytest.importorskip("ctranslate2")
    return getattr(ctranslate2, kind)(str(folder), compute_type="float32", intra_threads=1)


def _rows(*lengths: int) -> list[list[int]]:
    return [torch.randint(4, WORDS.vocab_size, (n,)).tolist() for n in lengths]


def _tokens(rows: Sequence[Sequence[int]]) -> list[list[str]]:
    return [[NAMES[i] for i in row] for row in rows]


TRANSLATORS = {
    "original": EncoderDecoderConfig(**SMALL, attention=FOUR),
    "rotary, RMSNorm, SwiGLU": EncoderDecoderConfig(
        **SMALL,
        position=RotaryConfig(),
        attention=AttentionConfig(n_heads=4, bias=False),
        feedforward=GatedFeedForwardConfig(),
        norm=RMSNormConfig(eps=1e-3),
        residual=PreNormConfig(),
    ),
    "learned, GELU, norm of embeddings, not tied": EncoderDecoderConfig(
        **SMALL,
        position=LearnedConfig(),
        attention=FOUR,
        feedforward=FeedForwardConfig(activation="gelu"),
        embedding=EmbeddingConfig(scale="one", norm=LayerNormConfig()),
        head=TokenHeadConfig(tied=False, bias=True),
    ),
    "T5": EncoderDecoderConfig(
        **SMALL,
        position=T5BiasConfig(buckets=8, max_distance=20),
        attention=AttentionConfig(n_heads=4, bias=False, score=DotConfig()),
        feedforward=FeedForwardConfig(bias=False, activation="gelu_tanh"),
        norm=RMSNormConfig(),
        residual=PreNormConfig(),
        embedding=EmbeddingConfig(scale="one"),
        head=TokenHeadConfig(scale="sqrt"),
    ),
    "two tables, fewer layers, shared heads, half of each turned": EncoderDecoderConfig(
        **SMALL,
        n_decoder_layers=1,
        share_embeddings=False,
        position=RotaryConfig(layout="interleaved", fraction=0.5),
        attention=AttentionConfig(n_heads=4, n_kv_heads=2),
        decoder_attention=AttentionConfig(n_heads=2, n_kv_heads=1),
        decoder_feedforward=FeedForwardConfig(d_ff=24),
        norm=LayerNormConfig(bias=False),
        residual=PreNormConfig(),
    ),
    "sandwich, narrow heads": EncoderDecoderConfig(
        **SMALL,
        position=RotaryConfig(scaling=LinearScaling(factor=4.0)),
        attention=AttentionConfig(n_heads=2, d_head=12),
        norm=OffsetRMSNormConfig(),
        residual=SandwichNormConfig(),
    ),
    "qk norm, softcap, one key head": EncoderDecoderConfig(
        **SMALL,
        position=NoPositionConfig(),
        attention=AttentionConfig(
            n_heads=4, n_kv_heads=1, qk_norm=LayerNormConfig(), score=ScaledDotConfig(factor=0.5)
        ),
        cross_attention=AttentionConfig(n_heads=4, n_kv_heads=1),
        feedforward=FeedForwardConfig(activation="silu"),
        head=TokenHeadConfig(softcap=3.0),
    ),
    "halves": EncoderDecoderConfig(
        **SMALL,
        position=SinusoidalConfig(layout="halves"),
        attention=FOUR,
        feedforward=GatedFeedForwardConfig(activation="sigmoid", bias=True),
    ),
}


@pytest.mark.long
@pytest.mark.parity
@pytest.mark.parametrize("name", TRANSLATORS)
def test_a_translator_scores_and_translates_as_ours_does(name: str, tmp_path: Path) -> None:
    model = _built(TRANSLATORS[name])
    assert isinstance(model, EncoderDecoderModel)
    export_ctranslate2(model, TRANSLATORS[name], BOTH, tmp_path / "out")
    translator = _opened("Translator", tmp_path / "out")
    sources, targets = _rows(1, 5, 12, 40), _rows(4, 1, 9, 20)
    scored = translator.score_batch(_tokens(sources), _tokens(targets))
    for source, target, theirs in zip(sources, targets, scored, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([[*source, EOS_ID]]), torch.tensor([[BOS_ID, *target]]))
        ours = logits[0].log_softmax(-1).gather(-1, torch.tensor([*target, EOS_ID])[:, None])
        torch.testing.assert_close(torch.tensor(theirs.log_probs), ours[:, 0], atol=1e-4, rtol=1e-4)
    limits = {"max_decoding_length": 20, "min_decoding_length": 0, "return_scores": True}
    read = [[*source, EOS_ID] for source in sources]
    for decoding, theirs in (
        (GreedyConfig(), {"beam_size": 1, "length_penalty": 0}),
        (BeamConfig(beams=5, length_penalty=0.0), {"beam_size": 5, "length_penalty": 0}),
    ):
        found = translator.translate_batch(_tokens(sources), **theirs, **limits)
        ours = translate(model, read, decoding, max_new_tokens=20)
        for mine, other in zip(ours, found, strict=True):
            assert other.hypotheses[0] == [NAMES[i] for i in mine[0].ids]
            assert other.scores[0] == pytest.approx(mine[0].score, abs=1e-3)


DECODERS = {
    "GPT-2": DecoderConfig(
        **SMALL,
        position=LearnedConfig(),
        attention=FOUR,
        feedforward=FeedForwardConfig(activation="gelu_tanh"),
        residual=PreNormConfig(),
        embedding=EmbeddingConfig(scale="one"),
    ),
    "LLaMA": DecoderConfig(
        **SMALL,
        position=RotaryConfig(theta=500_000.0),
        attention=AttentionConfig(n_heads=4, n_kv_heads=2, bias=False),
        feedforward=GatedFeedForwardConfig(),
        norm=RMSNormConfig(),
        residual=PreNormConfig(),
        head=TokenHeadConfig(tied=False),
    ),
    "Qwen 3": DecoderConfig(
        **SMALL,
        position=RotaryConfig(scaling=NTKScaling(factor=4.0)),
        attention=AttentionConfig(n_heads=4, n_kv_heads=2, bias=False, qk_norm=RMSNormConfig()),
        feedforward=GatedFeedForwardConfig(),
        norm=RMSNormConfig(),
        residual=PreNormConfig(),
    ),
    "GPT-NeoX": DecoderConfig(
        **SMALL,
        position=RotaryConfig(fraction=0.5),
        attention=FOUR,
        feedforward=FeedForwardConfig(activation="gelu"),
        residual=ParallelConfig(norms="each"),
        head=TokenHeadConfig(tied=False),
    ),
    "GPT-J": DecoderConfig(
        **SMALL,
        position=RotaryConfig(fraction=0.5, layout="interleaved"),
        attention=FOUR,
        residual=ParallelConfig(),
        head=TokenHeadConfig(tied=False, bias=True),
    ),
    "PaLM": DecoderConfig(
        **SMALL,
        position=RotaryConfig(),
        attention=AttentionConfig(n_heads=4, n_kv_heads=1, bias=False),
        norm=RMSNormConfig(),
        residual=ParallelConfig(),
    ),
    "BLOOM, six heads": DecoderConfig(
        d_model=48,
        n_layers=2,
        position=ALiBiConfig(),
        attention=AttentionConfig(n_heads=6),
        residual=PreNormConfig(),
    ),
    "Gemma 2, without softcap of scores": DecoderConfig(
        **SMALL,
        position=RotaryConfig(),
        attention=AttentionConfig(n_heads=4, n_kv_heads=1, d_head=16, bias=False),
        feedforward=GatedFeedForwardConfig(activation="gelu_tanh"),
        norm=OffsetRMSNormConfig(),
        residual=SandwichNormConfig(),
        head=TokenHeadConfig(softcap=5.0),
    ),
    "T5": DecoderConfig(**SMALL, position=T5BiasConfig(), attention=FOUR, residual=PreNormConfig()),
    "original": DecoderConfig(**SMALL, attention=FOUR),
}


@pytest.mark.parity
@pytest.mark.parametrize("name", DECODERS)
def test_a_language_model_continues_prompts_as_ours_does(name: str, tmp_path: Path) -> None:
    model = _built(DECODERS[name])
    assert isinstance(model, DecoderModel)
    export_ctranslate2(model, DECODERS[name], BOTH, tmp_path / "out")
    generator = _opened("Generator", tmp_path / "out")
    prompts = _rows(3, 5, 12, 40)
    logits = torch.tensor(np.array(generator.forward_batch(prompts)))
    for row, prompt in zip(logits, prompts, strict=True):
        with torch.inference_mode():
            ours = model(torch.tensor([prompt]))[0]
        torch.testing.assert_close(row[: len(prompt)], ours, atol=1e-4, rtol=1e-4)
    found = generator.generate_batch(
        _tokens(prompts), max_length=20, min_length=0, beam_size=1, include_prompt_in_result=False
    )
    ours = generate(model, prompts, GreedyConfig(), max_new_tokens=20)
    assert [f.sequences_ids[0] for f in found] == [list(o[0].ids) for o in ours]


@pytest.mark.parity
def test_text_goes_through_the_tokenizers_of_the_folder(tmp_path: Path) -> None:
    texts = [f"the {n}th day of year {n * 37 % 100}" for n in range(40)]
    source = BPEConfig(vocab_size=300).train(texts)
    target = BPEConfig(vocab_size=320).train([text.upper() for text in texts])
    config = EncoderDecoderConfig(**SMALL, attention=FOUR, share_embeddings=False)
    model = _built(config, source.vocab_size, target.vocab_size)
    tokenizers = Tokenizers(source, target)
    export_ctranslate2(model, config, tokenizers, tmp_path)
    read = Tokenizers.load(tmp_path)
    text = "the 7th day, unlike any other"
    tokens = read.source.inner.encode(text, add_special_tokens=False).tokens
    translator = _opened("Translator", tmp_path)
    [found] = translator.translate_batch(
        [tokens], beam_size=1, max_decoding_length=12, min_decoding_length=0
    )
    ids = [*source.encode(text), EOS_ID]
    [[ours]] = translate(model, [ids], GreedyConfig(), max_new_tokens=12)
    theirs = [read.target.inner.token_to_id(token) for token in found.hypotheses[0]]
    assert theirs == list(ours.ids)


@pytest.mark.parity
def test_what_a_foreign_source_begins_and_ends_with_is_added(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    config = TRANSLATORS["original"]
    model = _built(config)
    for before, after in (((BOS_ID,), (EOS_ID,)), ((), ())):
        own = Tokenizer(WORDS.inner, before=before, after=after)
        export_ctranslate2(model, config, Tokenizers(own, own), tmp_path)
        settings = json.loads((tmp_path / "config.json").read_text())
        assert settings["add_source_bos"] == bool(before)
        assert settings["add_source_eos"] == bool(after)
        assert settings["decoder_start_token"] == settings["bos_token"] == "<bos>"
    own = Tokenizer(WORDS.inner, before=(7,), after=(EOS_ID,))
    with pytest.raises(InputError, match="between its start and its end"):
        export_ctranslate2(model, config, Tokenizers(own, own), tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parity
def test_an_export_replaces_the_vocabularies_of_an_earlier_one(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    other = WordConfig().train([" ".join(f"v{i}" for i in range(40))])
    config = EncoderDecoderConfig(**SMALL, attention=FOUR, share_embeddings=False)
    model = _built(config, WORDS.vocab_size, other.vocab_size)
    export_ctranslate2(model, config, Tokenizers(WORDS, other), tmp_path)
    assert {"source_vocabulary.json", "target_vocabulary.json"} < _files(tmp_path)
    config = DECODERS["GPT-2"]
    export_ctranslate2(_built(config, WORDS.vocab_size + 3), config, BOTH, tmp_path)
    assert _files(tmp_path) == {"config.json", "model.bin", "tokenizer.json", "vocabulary.json"}
    vocabulary = json.loads((tmp_path / "vocabulary.json").read_text())
    assert vocabulary == [*NAMES, *(f"<unused {WORDS.vocab_size + i}>" for i in range(3))]


def _files(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


@pytest.mark.parity
def test_a_quantized_folder_is_smaller_and_close(tmp_path: Path) -> None:
    config = DECODERS["LLaMA"]
    model = _built(config)
    export_ctranslate2(model, config, BOTH, tmp_path / "whole")
    export_ctranslate2(model, config, BOTH, tmp_path / "small", quantization="int8")
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("small", "whole")]
    assert sizes[0] < 0.4 * sizes[1]
    [prompt] = _rows(12)
    logits = _opened("Generator", tmp_path / "small").forward_batch([prompt])
    with torch.inference_mode():
        ours = model(torch.tensor([prompt]))
    difference = torch.tensor(np.array(logits)) - ours
    assert difference.std() < 0.05 * ours.std()


@pytest.mark.parity
@pytest.mark.parametrize(
    ("config", "says"),
    [
        (DecoderConfig(**SMALL, attention=FOUR, norm=LayerNormConfig(eps=2e-5)), None),
        (
            DecoderConfig(
                **SMALL, attention=FOUR, embedding=EmbeddingConfig(norm=LayerNormConfig(eps=2e-5))
            ),
            "one eps for all",
        ),
        (DecoderConfig(**SMALL, attention=FOUR, residual=PreNormConfig(first=False)), "without a"),
        (
            DecoderConfig(**SMALL, attention=FOUR, embedding=EmbeddingConfig(n_types=2)),
            "sentence types",
        ),
        (
            DecoderConfig(
                **SMALL,
                attention=FOUR,
                embedding=EmbeddingConfig(d_embed=8),
                head=TokenHeadConfig(tied=False),
            ),
            "no table of another width: an embedding without d_embed",
        ),
        (
            EncoderDecoderConfig(**SMALL, attention=FOUR, position=ALiBiConfig()),
            "a decoder-only model with it",
        ),
    ],
)
def test_what_concerns_the_whole_model_is_refused(
    config: Any, says: str | None, tmp_path: Path
) -> None:
    pytest.importorskip("ctranslate2")
    if says is None:
        export_ctranslate2(_built(config), config, BOTH, tmp_path / "out")
        return
    with pytest.raises(InputError, match=says):
        export_ctranslate2(_built(config), config, BOTH, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    config = DECODERS["GPT-2"]
    with pytest.raises(InputError, match=r"pip install 'addnorm\[ctranslate2\]'"):
        export_ctranslate2(_built(config), config, BOTH, tmp_path)
    assert not list(tmp_path.iterdir())


CONFIGS = [
    DecoderConfig(**SMALL, attention=FOUR),
    EncoderDecoderConfig(**SMALL, attention=FOUR),
]


def _exported(config: Any, folder: Path) -> Any:
    pytest.importorskip("ctranslate2")
    model = config.build(WORDS.vocab_size).eval()
    export_ctranslate2(model, config, BOTH, folder)
    return model


@pytest.mark.parity
@pytest.mark.parametrize("config", CONFIGS)
def test_reading_back_refuses_a_model_with_other_weights(config: Any, tmp_path: Path) -> None:
    model = _exported(config, tmp_path / "out")
    check_ctranslate2(tmp_path / "out", model, BOTH, None)
    stack = model.decoder if isinstance(config, EncoderDecoderConfig) else model.stack
    stack.blocks[0].attention.v_proj.weight.data *= 1.5
    with pytest.raises(InputError, match="CTranslate2 cannot hold this model: read back"):
        check_ctranslate2(tmp_path / "out", model, BOTH, None)


@pytest.mark.parity
@pytest.mark.parametrize("config", CONFIGS)
def test_a_gate_is_refused_in_any_layer(config: Any, tmp_path: Path) -> None:
    model = _exported(config, tmp_path / "out")
    stack = model.decoder if isinstance(config, EncoderDecoderConfig) else model.stack
    gated = AttentionConfig(n_heads=4, output=GatedOutputConfig())
    part = gated.build_parts(32, layer=1)["output"]
    stack.blocks[1].attention.output = part
    with pytest.raises(
        InputError, match=r"CTranslate2 cannot hold attention.output \(GatedOutput\) of layer 1"
    ):
        export_ctranslate2(model, config, BOTH, tmp_path / "new")
    assert not (tmp_path / "new").exists()
