"""GGUF files as llama.cpp's converter writes them: vocabularies, YaRN, each key accounted for."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.convert.gguf_writer import Value, write_gguf
from tests.convert.vocabularies import TEXTS, byte_pairs, sentence_pieces

from addnorm.cli.main import status
from addnorm.convert.folder import load_gguf
from addnorm.convert.importers.gguf import describe_gguf
from addnorm.convert.importers.gguf_tokenizer import SPLITTINGS
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.positions import LinearScaling, RotaryConfig, YaRNScaling

D, FF, HEADS, KV_HEADS = 16, 24, 4, 2
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

WRITTEN: dict[str, Value] = {
    "general.architecture": "llama",
    "general.type": "model",
    "general.name": "Tiny",
    "general.basename": "tiny",
    "general.size_label": "20K",
    "general.license": "apache-2.0",
    "general.base_model.count": 1,
    "general.base_model.0.name": "Tinier",
    "general.tags": ["text-generation"],
    "general.languages": ["en"],
    "general.sampling.temp": 0.6,
    "general.file_type": 0,
    "general.quantization_version": 2,
    "general.alignment": 32,
    "quantize.imatrix.file": "imatrix.dat",
    "quantize.imatrix.entries_count": 14,
    "split.no": 0,
    "split.count": 1,
    "split.tensors.count": 21,
    "llama.block_count": 2,
    "llama.context_length": 128,
    "llama.embedding_length": D,
    "llama.feed_forward_length": FF,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.key_length": D // HEADS,
    "llama.attention.value_length": D // HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": D // HEADS,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.chat_template": "{{ messages[0].content }}",
    "tokenizer.chat_template.tool_use": "{{ tools }}",
    "tokenizer.chat_templates": ["tool_use"],
}
"""The keys of a converted and quantised model, without its vocabulary."""


def tensors(size: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"token_embd": (size, D), "output_norm": (D,), "output": (size, D)}
    kv = D // HEADS * KV_HEADS
    for i in range(2):
        block = f"blk.{i}."
        shapes |= {f"{block}{name}": (D, D) for name in ("attn_q", "attn_output")}
        shapes |= {f"{block}{name}": (kv, D) for name in ("attn_k", "attn_v")}
        shapes |= {f"{block}{name}": (D,) for name in ("attn_norm", "ffn_norm")}
        shapes |= {f"{block}{name}": (FF, D) for name in ("ffn_gate", "ffn_up")}
        shapes |= {f"{block}ffn_down": (D, FF)}
    return {f"{k}.weight": torch.randn(s, generator=generator) for k, s in shapes.items()}


def of_sentencepiece(tmp_path: Path) -> tuple[Any, dict[str, Value]]:
    """A trained model of SentencePiece, and the keys of it with one token that is not used."""
    spm = pytest.importorskip("sentencepiece")
    options = {"vocab_size": 340, "model_type": "bpe", "byte_fallback": True}
    pieces = sentence_pieces(
        tmp_path / "m.model",
        **options,
        user_defined_symbols=["<tool>"],
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )
    theirs = spm.SentencePieceProcessor(str(tmp_path / "m.model"))
    kinds = [
        UNKNOWN
        if theirs.is_unknown(i)
        else CONTROL
        if theirs.is_control(i)
        else BYTE
        if theirs.is_byte(i)
        else USER_DEFINED
        if piece == "<tool>"
        else NORMAL
        for i, piece in enumerate(pieces)
    ]
    scores = [theirs.get_score(i) for i in range(len(pieces))]
    return theirs, {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [*pieces, "[PAD340]"],
        "tokenizer.ggml.scores": [*scores, -1000.0],
        "tokenizer.ggml.token_type": [*kinds, UNUSED],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.seperator_token_id": 2,
        "tokenizer.ggml.fim_pre_token_id": 3,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": True,
    }


def of_byte_pairs(tmp_path: Path, pre: str) -> dict[str, Value]:
    """The keys of a byte-level vocabulary."""
    byte_pairs(tmp_path, "<|endoftext|>")
    vocab = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    lines = (tmp_path / "merges.txt").read_text(encoding="utf-8").splitlines()
    tokens = sorted(vocab, key=vocab.__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL, *[NORMAL] * (len(tokens) - 1)],
        "tokenizer.ggml.merges": [line for line in lines if not line.startswith("#")],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
    }


def written(tmp_path: Path, **changes: Value) -> Path:
    """A file whose vocabulary is byte-level, with keys changed."""
    keys = WRITTEN | of_byte_pairs(tmp_path, "gpt-2") | changes
    file = tmp_path / "model.gguf"
    write_gguf(file, keys, tensors(len(keys["tokenizer.ggml.tokens"])))  # pyright: ignore
    return file


def test_a_vocabulary_of_sentencepiece_gives_its_ids(tmp_path: Path) -> None:
    """Except after a symbol, where llama.cpp puts another space."""
    theirs, vocabulary = of_sentencepiece(tmp_path)
    file = tmp_path / "model.gguf"
    write_gguf(file, WRITTEN | vocabulary, tensors(341))
    tokenizer = describe_gguf(file)[1].source
    for text in (*TEXTS[:6], "a <tool>", "  two  spaces", "Ωmega"):
        assert tokenizer.encode(text) == theirs.encode(text), text
        assert tokenizer.decode(theirs.encode(text)) == theirs.decode(theirs.encode(text))
    assert (tokenizer.before, tokenizer.eos_ids, tokenizer.unk_id) == ((1,), (2,), 0)
    for role in ("bos", "eos", "unknown"):  # which have usual ids
        del vocabulary[f"tokenizer.ggml.{role}_token_id"]
    write_gguf(file, WRITTEN | vocabulary, tensors(341))
    again = describe_gguf(file)[1].source
    assert (again.before, again.eos_ids, again.unk_id) == ((1,), (2,), 0)


SPLIT = {
    "gpt-2": ["the", " year", " 1234", " don", "'t", " DON", "'", "T", "  ", " x"],
    "smollm": ["the", " year", " ", "1", "2", "3", "4", " don", "'t", " DON", "'", "T", "  ", " x"],
    "smaug-bpe": ["the", " year", " ", "123", "4", " don", "'t", " DON", "'T", "  ", " x"],
    "deepseek-r1-qwen": [
        *("the", " year", " ", "1", "2", "3", "4", " don", "'t", " DON", "'T", "  ", " x")
    ],
}


@pytest.mark.parametrize("pre", SPLIT)
def test_words_are_split_as_the_key_says(pre: str) -> None:
    text = "the year 1234 don't DON'T   x"
    words = [
        text[start:end]
        for _, (start, end) in SPLITTINGS[pre].pre_tokenizer().pre_tokenize_str(text)
    ]
    assert words == SPLIT[pre]


def test_yarn_is_that_of_the_keys(tmp_path: Path) -> None:
    yarn: dict[str, Value] = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32,
        "llama.rope.scaling.finetuned": True,
    }

    def scaling(**changes: Value) -> object:
        spec, _ = describe_gguf(written(tmp_path, **yarn, **changes))
        assert isinstance(spec.model, DecoderConfig)
        assert isinstance(spec.model.position, RotaryConfig)
        return spec.model.position.scaling

    assert scaling() == YaRNScaling(factor=4.0, original_max_len=32)
    more: dict[str, Value] = {
        "llama.rope.scaling.attn_factor": 0.8,
        "llama.rope.scaling.yarn_beta_fast": 8.0,
    }
    changed = scaling(**more)
    assert isinstance(changed, YaRNScaling)
    assert changed.beta_fast == 8.0
    assert changed.temperature == pytest.approx(
        0.8 * YaRNScaling(factor=4.0, original_max_len=32).temperature
    )
    with pytest.raises(InputError, match=r"yarn_log_multiplier = 0\.1.* is not supported"):
        scaling(**{"llama.rope.scaling.yarn_log_multiplier": 0.1})


@pytest.mark.parametrize(
    ("keys", "scaling"),
    [
        ({"factor": 4.0}, LinearScaling(factor=4.0)),
        ({"factor": 0.0}, None),
        ({"type": "linear", "factor": 4.0}, LinearScaling(factor=4.0)),
        ({"type": "none", "factor": 4.0}, None),
    ],
)
def test_a_factor_without_a_type_is_linear(
    keys: dict[str, Value], scaling: object, tmp_path: Path
) -> None:
    """As in llama.cpp, where `none` overrules the factor and zero is no factor."""
    given = {f"llama.rope.scaling.{key}": value for key, value in keys.items()}
    spec, _ = describe_gguf(written(tmp_path, **given))
    assert isinstance(spec.model, DecoderConfig)
    assert isinstance(spec.model.position, RotaryConfig)
    assert spec.model.position.scaling == scaling


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("general.type", "adapter", r"general\.type = 'adapter' is not supported: only a whole"),
        ("split.count", 3, r"file 1 of 3 of one model: join them"),
        ("llama.expert_count", 8, r"llama\.expert_count = 8 is not supported"),
        ("llama.stray", 3, r"llama\.stray = 3 is not supported"),
        ("tokenizer.ggml.stray", 3, r"tokenizer\.ggml\.stray = 3 is not supported"),
        ("tokenizer.ggml.precompiled_charsmap", [1, 2], "precompiled_charsmap"),
        ("stray", "x", r"stray = 'x' is not supported"),
        ("general.architecture", "bert", r"'bert' is not supported"),
        ("tokenizer.ggml.model", "bert", r"'bert' is not supported\..*gpt2"),
    ],
)
def test_a_key_that_nothing_reads_is_refused(
    key: str, value: Value, match: str, tmp_path: Path
) -> None:
    describe_gguf(written(tmp_path))
    with pytest.raises(InputError, match=match):
        describe_gguf(written(tmp_path, **{key: value}))


@pytest.mark.slow
def test_commands_take_such_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = str(written(tmp_path))
    (tmp_path / "text.txt").write_text("\n\n".join(TEXTS), encoding="utf-8")
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        f"[data]\nkind = 'text'\ntrain = '{tmp_path}/text.txt'\nvalid_fraction = 0.2\n"
        f"[train]\nstart = '{file}'\nsteps = 1\n"
        "batching = { kind = 'windows', batch_size = 2, seq_len = 16 }\n",
        encoding="utf-8",
    )
    for words in (
        ["generate", file, "--prompt", "the cat", "--max-new-tokens", "3"],
        ["info", file],
        ["look", file, "--text", "the cat sat"],
        ["quantize", file, "--to", "int8", "--out", str(tmp_path / "int8")],
        ["train", str(recipe), "--out", str(tmp_path / "run")],
    ):
        assert status(words) == 0, (words, capfd.readouterr().err)


def test_weights_have_their_places(tmp_path: Path) -> None:
    model = load_gguf(written(tmp_path))
    assert model.state_dict()["embed.tokens.weight"].shape[1] == D
