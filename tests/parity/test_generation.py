"""`generation_config.json`: the same tokens as transformers' `generate`."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.contracts import combined

from addnorm.convert.folder import load
from addnorm.generate import generate, translate
from addnorm.models import DecoderModel, EncoderDecoderModel
from addnorm.runs.files.folder import read_settings

pytestmark = pytest.mark.parity

N_TEXTS, VOCAB, PAD, EOS = 96, 48, 0, 2
SEQ2SEQ = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 40,
    "vocab_size": VOCAB,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
}
MODELS: dict[str, tuple[str, Any]] = {
    "marian": (
        "MarianMTModel",
        lambda: transformers.MarianConfig(**SEQ2SEQ, decoder_start_token_id=PAD),
    ),
    "bart": (
        "BartForConditionalGeneration",
        lambda: transformers.BartConfig(**SEQ2SEQ, decoder_start_token_id=EOS, bos_token_id=1),
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        lambda: transformers.GPT2Config(
            n_embd=16, n_layer=1, n_head=2, vocab_size=VOCAB, n_positions=40, eos_token_id=EOS
        ),
    ),
}
SEEDS = {"marian": 5, "bart": 2, "gpt2": 3}
ENDS = {"marian": 8.0, "bart": 2.5}
WIDTH = {"marian": 1.0, "bart": 0.5, "gpt2": 0.6}
SEARCH = {"num_beams": 4, "max_new_tokens": 14}
SEARCHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "penalty_0": {"length_penalty": 0.0},
    "penalty_2": {"length_penalty": 2.0},
    "penalty_less": {"length_penalty": -1.0},
    "stops": {"early_stopping": True},
    "stops_penalty": {"early_stopping": True, "length_penalty": 2.0},
    "never": {"early_stopping": "never"},
    "never_penalty": {"early_stopping": "never", "length_penalty": 2.0},
    "never_less": {"early_stopping": "never", "length_penalty": -0.5},
    "never_written": {"bad_words_ids": [[PAD], [7]]},
    "normalised": {"bad_words_ids": [[PAD], [7]], "renormalize_logits": True},
    "ngram": {"no_repeat_ngram_size": 2},
    "ngram_3": {"no_repeat_ngram_size": 3, "early_stopping": True},
    "repetition": {"repetition_penalty": 1.5},
    "short": {"min_new_tokens": 6},
    "least": {"min_length": 9},
    "forced_end": {"forced_eos_token_id": EOS},
    "forced": {"forced_bos_token_id": 5, "forced_eos_token_id": [EOS]},
    "suppressed": {"suppress_tokens": [3, 4, 8], "begin_suppress_tokens": [EOS, 9]},
    "suppressed_forced": {"begin_suppress_tokens": [EOS, 9], "forced_bos_token_id": 5},
    "most": {"max_new_tokens": None, "max_length": 12},
    "ends": {"eos_token_id": [EOS, 11, 12]},
    "greedy": {"num_beams": 1, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    "greedy_forced": {"num_beams": 1, "forced_eos_token_id": EOS, "min_length": 5},
    "one": {"num_beams": 1, "max_length": 9, "max_new_tokens": None},
}


def random_model(name: str, folder: Path) -> tuple[Any, Any]:
    """A random model of theirs, saved in a folder, and ours of it.

    Its weights are wide enough for texts to differ with what is read, and to end at any length.
    """
    kind, config = MODELS[name]
    generator = torch.Generator().manual_seed(SEEDS[name])
    theirs = getattr(transformers, kind)(config()).eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            if weight.ndim > 1 and weight.requires_grad:  # sinusoids stay
                weight.copy_(WIDTH[name] * torch.randn(weight.shape, generator=generator))
        if name == "gpt2":
            theirs.transformer.wte.weight[EOS] *= 3
        else:
            theirs.final_logits_bias[0, EOS] = ENDS[name]
    theirs.save_pretrained(folder)
    return theirs, load(folder).model


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A random model of theirs, its folder, and ours."""
    found: dict[str, Any] = {}

    def folder(name: str) -> Any:
        if name not in found:
            path = tmp_path_factory.mktemp(name)
            found[name] = (*random_model(name, path), path)
        return found[name]

    return folder


def texts() -> list[list[int]]:
    draw = random.Random(3)
    return [[draw.randrange(3, VOCAB) for _ in range(draw.randint(1, 8))] for _ in range(N_TEXTS)]


def theirs_of(model: Any, config: Any, text: list[int], start: int) -> list[int]:
    """What they write after the prompt or the start token, up to the first end."""
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    with torch.no_grad():
        ids = model.generate(torch.tensor([text]))[0, start:].tolist()
    first = [i for i, token in enumerate(ids) if token in ends]
    return ids[: first[0]] if first else ids


@pytest.mark.sampled(3)
@pytest.mark.long
@pytest.mark.parametrize(("name", "search"), combined(MODELS, SEARCHES))
def test_every_text_is_the_same(name: str, search: str, folder_of: Any) -> None:
    theirs, ours, folder = folder_of(name)
    asked = {**SEARCH, "pad_token_id": PAD, **SEARCHES[search]}
    asked.setdefault("eos_token_id", EOS)
    start = theirs.config.decoder_start_token_id if name != "gpt2" else None
    config = transformers.GenerationConfig(decoder_start_token_id=start, **asked)
    config.save_pretrained(folder)
    theirs.generation_config = config
    recipe = read_settings(folder).recipe
    ends = asked["eos_token_id"]
    never = [word[0] for word in asked.get("bad_words_ids", [])]
    decoding = with_never(recipe.eval.decoding, never)
    rows = texts()[: N_TEXTS if search in ("plain", "stops", "never") and name == "marian" else 12]
    if isinstance(ours, DecoderModel):
        found = generate(ours, rows, decoding, eos_id=ends)
        starts = [len(row) for row in rows]
    else:
        assert isinstance(ours, EncoderDecoderModel)
        found = translate(ours, rows, decoding, bos_id=start, eos_id=ends)
        starts = [1] * len(rows)
    expected = [
        theirs_of(theirs, config, row, start) for row, start in zip(rows, starts, strict=True)
    ]
    assert [list(best[0].ids) for best in found] == expected
    assert len({tuple(ids) for ids in expected}) > 2


def with_never(decoding: Any, never: list[int]) -> Any:
    """The decoding with what a tokenizer would say is never written; these folders have none."""
    tokens = (*never, *decoding.rules.suppress_tokens)
    return replace(decoding, rules=replace(decoding.rules, suppress_tokens=tokens))
