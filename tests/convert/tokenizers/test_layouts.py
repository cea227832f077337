"""Tokenizer files: every layout is read, and damage is reported."""

import json
from base64 import b64encode
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.convert.vocabularies import write
from tokenizers import models

from addnorm.convert.tokenizers.files import load_tokenizers
from addnorm.errors import InputError


@pytest.mark.parametrize(
    ("there", "says"),
    [
        (["vocab.json"], "has vocab.json, but no merges.txt"),
        (["merges.txt"], "has merges.txt, but no vocab.json"),
        (["vocab.json", "source.spm"], "has source.spm and vocab.json, but no target.spm"),
    ],
)
def test_an_incomplete_layout_is_refused_with_the_missing_files(
    there: list[str], says: str, tmp_path: Path
) -> None:
    for name in there:
        (tmp_path / name).write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=says):
        load_tokenizers(tmp_path, "any", {})


VOCAB = {"a": 0, "b": 1, "ab": 2}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("vocab.json", b"{", "vocab.json is not JSON"),
        ("vocab.json", b"\xff", "vocab.json is not JSON"),
        ("vocab.json", b"[" * 100_000, "vocab.json is not JSON"),
        ("vocab.json", rb'{"\ud800": 0}', "vocab.json is not JSON: .*surrogate"),
        ("vocab.json", b"[]", "vocab.json holds list, not an object"),
        ("vocab.json", b'{"a": 0, "b": 0}', "'a' and 'b' have one id: 0"),
        ("vocab.json", b'{"a": 0, "b": 2}', "'b' has id 2, not one of 0 to 1"),
        ("vocab.json", b'{"a": -1}', "'a' has id -1"),
        ("vocab.json", b'{"a": true}', "'a' has id True"),
        ("vocab.json", b'{"a": "0"}', "'a' has id '0'"),
        ("vocab.json", b'{"a": 0, "b": 1}', "merges.txt, line 2: 'ab' is not in vocab.json"),
        ("merges.txt", b"\xff", "merges.txt is not UTF-8 text"),
        ("merges.txt", b"#version: 0.2\na b c\n", "merges.txt, line 2: 'a b c' is not two parts"),
        ("merges.txt", b"a\n", "merges.txt, line 1: 'a' is not two parts"),
        ("merges.txt", b"a \n", "merges.txt, line 1: 'a ' is not two parts"),
        ("merges.txt", b"a x\n", "merges.txt, line 1: 'x' is not in vocab.json"),
        ("tokenizer_config.json", b'{"add_prefix_space": 1}', "add_prefix_space is 1, not a bool"),
        ("tokenizer_config.json", b"nan", "tokenizer_config.json is not JSON"),
        (
            "tokenizer_config.json",
            b'{"added_tokens_decoder": {"x": {}}}',
            "added token x is {}",
        ),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"3": 7}}', "added token 3 is 7"),
        ("special_tokens_map.json", b"7", "special_tokens_map.json holds int"),
        ("generation_config.json", b"{]", "generation_config.json is not JSON"),
        ("added_tokens.json", b'{"x": "y"}', "added_tokens.json: 'x' has no id"),
        ("tokenizer.json", b"{}", "tokenizer.json is not a tokenizer"),
        ("tokenizer.json", b"\xff", "tokenizer.json is not a tokenizer"),
    ],
)
def test_a_damaged_file_is_named(name: str, content: bytes, says: str, tmp_path: Path) -> None:
    write(tmp_path, vocab=VOCAB)
    (tmp_path / "merges.txt").write_bytes(b"#version: 0.2\na b\n")
    found = load_tokenizers(tmp_path, "gpt2", {})
    assert found is not None
    assert found.source.encode("ab") == [2]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=says):
        load_tokenizers(tmp_path, "gpt2", {})


def test_one_id_for_two_tokens_is_refused(tmp_path: Path) -> None:
    model = {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}
    write(tmp_path, tokenizer={"model": model, "added_tokens": []})
    with pytest.raises(InputError, match=r"tokenizer\.json: '.' and '.' have one id: 0"):
        load_tokenizers(tmp_path, "gpt2", {})


@pytest.mark.parametrize(
    ("content", "says"),
    [("a\nb\n", r"has no \[UNK\]"), (b"[UNK]\n\xff", "is not UTF-8 text")],
)
def test_a_damaged_list_of_pieces(content: str | bytes, says: str, tmp_path: Path) -> None:
    raw = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "vocab.txt").write_bytes(raw)
    with pytest.raises(InputError, match=f"vocab.txt {says}"):
        load_tokenizers(tmp_path, "bert", {})


def test_lines_of_another_system(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"[UNK]\r\nthe\r\n##re\r\n")
    found = load_tokenizers(tmp_path, "bert", {})
    assert found is not None
    assert found.source.encode("there") == [1, 2]
    assert found.source.decode([1, 2, 1]) == "there the"


@pytest.mark.parametrize("name", ["spiece.model", "tokenizer.model"])
def test_a_damaged_model_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"IQ== 0\nIg== 1\n")
    with pytest.raises(InputError, match=f"{name} is not a SentencePiece model"):
        load_tokenizers(tmp_path, "llama", {})


def test_a_vocabulary_without_an_unknown_token(tmp_path: Path) -> None:
    write(tmp_path, vocab={"a": 0})
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(InputError, match=r"vocab\.json has no <unk>"):
        load_tokenizers(tmp_path, "marian", {})


def test_merges_of_unknown_tokens_are_refused(tmp_path: Path) -> None:
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]]}
    write(tmp_path, tokenizer={"model": model, "added_tokens": []})
    with pytest.raises(InputError, match=r"tokenizer\.json is not a tokenizer"):
        load_tokenizers(tmp_path, "gpt2", {})


@pytest.mark.parametrize("deep", [False, True])
def test_a_damaged_table_of_characters_is_refused(deep: bool, tmp_path: Path) -> None:
    table = b64encode((4).to_bytes(4, "little") + bytes([0, 0, 1, 0]) + b"x").decode()
    step = {"type": "Precompiled", "precompiled_charsmap": table}
    state = json.loads(tokenizers.Tokenizer(models.BPE({"a": 0}, [])).to_str())
    state["normalizer"] = {"type": "Sequence", "normalizers": [step]} if deep else step
    write(tmp_path, tokenizer=state)
    with pytest.raises(InputError, match=r"tokenizer\.json .* leads out of its table"):
        load_tokenizers(tmp_path, "t5", {})


def test_the_best_layout_is_read(tmp_path: Path) -> None:
    vocab = {"a": 0, "b": 1, "ab": 2}
    for expected, files in (
        ([0], {"vocab.txt": "a\n[UNK]\n"}),
        ([2], {"vocab.json": json.dumps(vocab), "merges.txt": "a b\n"}),
        ([7], {"tokenizer.json": tokenizers.Tokenizer(models.BPE({"ab": 9, "a": 7}, [])).to_str()}),
    ):
        for name, content in files.items():
            (tmp_path / name).write_text(content, encoding="utf-8")
        found = load_tokenizers(tmp_path, "any", {})
        assert found is not None
        assert found.source.encode("a" if expected != [2] else "ab") == expected


KEYS = [
    "add_bos_token",
    "add_prefix_space",
    "added_tokens_decoder",
    "additional_special_tokens",
    "bos_token_id",
    "bos_token",
    "cls_token",
    "content",
    "do_lower_case",
    "eos_token_id",
    "eos_token",
    "extra_special_tokens",
    "pad_token",
    "special",
    "unk_token",
    "1",
    "9",
]
values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.sampled_from(["a", "ab", "<x>", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
)


@pytest.mark.long
@settings(max_examples=100)
@given(*[st.dictionaries(st.sampled_from(KEYS), values)] * 3)
def test_any_settings_are_used_or_refused(tmp_path_factory, config, generation, said) -> None:
    folder = write(
        tmp_path_factory.getbasetemp() / "any",
        vocab=VOCAB,
        generation_config=generation,
        tokenizer_config=said,
    )
    (folder / "merges.txt").write_text("a b\n", encoding="utf-8")
    (folder / "vocab.txt").write_text("[UNK]\na\n##b\n", encoding="utf-8")
    for model_type in ("gpt2", "qwen2"):
        try:
            found = load_tokenizers(folder, model_type, config)
        except InputError:
            continue
        assert found is not None
        found.source.decode(found.source.encode("ab <x>"))


def test_qwen_without_tokenizer_json_is_refused(tmp_path: Path) -> None:
    write(tmp_path, vocab=VOCAB)
    (tmp_path / "merges.txt").write_text("a b\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"has no tokenizer\.json"):
        load_tokenizers(tmp_path, "qwen2", {})
