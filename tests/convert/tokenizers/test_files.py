"""Tokenizers of Hugging Face folders: the same ids and texts as transformers."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.convert.vocabularies import (
    FAMILIES,
    TEXTS,
    bert,
    byte_pairs,
    distilbert,
    gpt2,
    roberta,
    word_pieces,
    write,
)
from tokenizers import processors

from addnorm.convert.tokenizers.files import load_tokenizers, save_tokenizer, special_ids
from addnorm.data.ids.framing import encode_for_task, encode_words
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import (
    SPECIALS,
    BPEConfig,
    CharConfig,
    Tokenizer,
    WordConfig,
)
from addnorm.errors import InputError

words = st.lists(
    st.sampled_from(["the", "cat", "  ", "\n", "é", "猫", "🐈", "'s", ".", "123", "ros"])
)
anything = st.text() | words.map("".join) | words.map(" ".join)

EACH = pytest.mark.parametrize("family", FAMILIES)

Made = Callable[[str], Path]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A folder of old vocabulary files, as each family was first released."""

    @cache
    def make(family: str) -> Path:
        folder = tmp_path_factory.mktemp(family)
        FAMILIES[family](folder)
        return folder

    return make


def load(folder: Path) -> Tokenizers:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    found = load_tokenizers(folder, config["model_type"], config)
    assert found is not None
    return found


def theirs(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def same(ours: Tokenizer, other: Any, text: str) -> None:
    """The ids that a model reads, and their text, are those of transformers."""
    assert ours.before is not None
    assert ours.after is not None
    # Tokenizers without a fast version read special tokens out of a text.
    kind = {"split_special_tokens": True} if other.is_fast else {}
    ids = [*ours.before, *ours.encode(text), *ours.after]
    assert ids == other.encode(text, **kind)
    # Marian's decoding strips a text.
    bare = str if other.is_fast else str.strip
    assert bare(ours.decode(ids)) == bare(other.decode(ids, skip_special_tokens=True))


HF = [pytest.mark.parity, pytest.mark.filterwarnings("default")]


def hf(function: Any) -> Any:
    """Compared with transformers, whose warnings are its own."""
    for mark in HF:
        function = mark(function)
    return function


@hf
@EACH
def test_ids_and_texts_are_those_of_transformers(family: str, made: Made) -> None:
    ours, other = load(made(family)).source, theirs(made(family))
    assert ours.vocab_size == len(other)

    @settings(max_examples=150)
    @given(anything)
    def check(text: str) -> None:
        if family in (
            "t5",
            "xlm-roberta",
            "camembert",
        ):  # a line separator within words ends one there
            text = text.replace("\x85", "")
        if family == "llama":  # spaces before a text are lost there
            text = text.lstrip(" ▁")
        if family != "marian" or "\0" not in text:
            same(ours, other, text)

    check()


@hf
@pytest.mark.parametrize("family", [*FAMILIES][:-1])
def test_a_folder_that_transformers_saved(family: str, made: Made, tmp_path: Path) -> None:
    old = theirs(made(family))
    old.save_pretrained(tmp_path)
    config = json.loads((made(family) / "config.json").read_text(encoding="utf-8"))
    ours, other = load(write(tmp_path, config=config)).source, theirs(tmp_path)
    before = load(made(family)).source
    for name in ("pad_id", "unk_id", "bos_id", "eos_ids", "before", "after", "special_ids"):
        assert getattr(ours, name) == getattr(before, name), name

    @settings(max_examples=40)
    @given(anything)
    def check(text: str) -> None:
        same(ours, other, text)

    check()


@hf
def test_marian_writes_with_the_pieces_of_the_target(made: Made) -> None:
    tokenizers, other = load(made("marian")), theirs(made("marian"))

    @settings(max_examples=40)
    @given(anything)
    def check(text: str) -> None:
        text = text.replace("\0", "")
        ids = encode_for_task("translation", tokenizers.target, [text])[0]
        assert ids == other(text_target=text).input_ids
        assert tokenizers.target.decode(ids).strip() == other.decode(
            ids, skip_special_tokens=True, use_source_tokenizer=False
        )

    check()
    text = ">>fra<< the cat"
    same(tokenizers.source, other, text)
    assert tokenizers.source.decode(tokenizers.source.encode(text)) == text


@hf
@EACH
def test_what_was_read_is_written(family: str, made: Made, tmp_path: Path) -> None:
    found = load(made(family))
    write(tmp_path, config={"model_type": family, **special_ids(found, family)})
    save_tokenizer(tmp_path, found, model_type=family, max_len=77)
    again, other = load(tmp_path), theirs(tmp_path)
    assert other.is_fast
    assert other.model_max_length == 77
    for name in ("vocab_size", "pad_id", "unk_id", "bos_id", "eos_ids", "before", "after"):
        assert getattr(again.source, name) == getattr(found.source, name), name

    @settings(max_examples=40)
    @given(anything)
    def check(text: str) -> None:
        same(found.source, other, text)
        assert again.source.encode(text) == found.source.encode(text)
        assert again.target.encode(text) == found.target.encode(text)

    check()


TASKS: dict[str, str] = {
    "gpt2": "language",
    "llama": "language",
    "bert": "classification",
    "roberta": "tagging",
    "distilbert": "classification",
    "xlm-roberta": "classification",
    "camembert": "classification",
    "t5": "translation",
    "marian": "translation",
}


@hf
@EACH
@pytest.mark.parametrize("config", [BPEConfig(vocab_size=400), CharConfig(), WordConfig()])
def test_ours_in_transformers(family: str, config: Any, tmp_path: Path) -> None:
    ours = config.train(TEXTS)
    both = Tokenizers(ours, ours)
    write(tmp_path, config={"model_type": family, **special_ids(both, family)})
    save_tokenizer(tmp_path, both, model_type=family, max_len=64)
    other, again = theirs(tmp_path), load(tmp_path)
    assert (other.pad_token, other.unk_token, other.bos_token, other.eos_token) == SPECIALS
    assert again.source is again.target
    assert (again.source.pad_id, again.source.unk_id) == (0, 1)
    assert (again.source.bos_id, again.source.eos_ids) == (2, (3,))

    @settings(max_examples=40)
    @given(anything)
    def check(text: str) -> None:
        [ids] = encode_for_task(TASKS[family], ours, [text])
        assert other.encode(text) == ids
        assert encode_for_task(TASKS[family], again.source, [text]) == [ids]
        assert other.decode(ids, skip_special_tokens=True) == ours.decode(ids)
        assert again.source.decode(ids) == ours.decode(ids)

    check()
    if not isinstance(config, WordConfig):  # of which a word may be spelt as a special token
        assert other.encode("a <eos>") == encode_for_task(TASKS[family], ours, ["a <eos>"])[0]


@hf
def test_a_target_of_its_own(tmp_path: Path) -> None:
    source, target = CharConfig().train(TEXTS), CharConfig().train(["xyz"])
    both = Tokenizers(source, target)
    write(tmp_path, config={"model_type": "marian", **special_ids(both, "marian")})
    save_tokenizer(tmp_path, both, model_type="marian", max_len=9)
    again = load(tmp_path)
    assert again.target.decode(again.target.encode("zyx")) == "zyx"
    assert again.target.vocab_size == target.vocab_size == 7
    assert again.source.vocab_size == source.vocab_size
    assert theirs(tmp_path).encode("the") == encode_for_task("translation", source, ["the"])[0]
    save_tokenizer(tmp_path, Tokenizers(source, source), model_type="marian", max_len=9)
    assert load(tmp_path).target.vocab_size == source.vocab_size


def test_what_the_ids_of_gpt2_mean(tmp_path: Path) -> None:
    gpt2(tmp_path)
    ours = load(tmp_path).source
    assert (ours.unk_id, ours.bos_id, ours.eos_ids) == (None, 0, (0,))
    assert (ours.before, ours.after) == ((), ())
    assert ours.special_ids == {0}
    text = "a<|endoftext|>"
    assert ours.decode(ours.encode(text)) == text
    assert encode_for_task("language", ours, ["the"]) == [ours.encode("the")]


@pytest.mark.parametrize("make", [roberta, bert, distilbert])
def test_what_the_ids_of_an_encoder_mean(make: Any, tmp_path: Path) -> None:
    make(tmp_path)
    ours = load(tmp_path).source
    first, last = ("<s>", "</s>") if make is roberta else ("[CLS]", "[SEP]")
    assert ours.end_id is not None
    assert ours.pieces([ours.bos_id, ours.end_id]) == [first, last]
    assert (ours.before, ours.after) == ((ours.bos_id,), (ours.end_id,))
    assert ours.pieces([ours.unk_id or 0])[0].lower() in ("<unk>", "[unk]")
    assert ours.pieces([ours.pad_id])[0].lower() in ("<pad>", "[pad]")
    [ids] = encode_for_task("classification", ours, ["the cat </s> [SEP]"])
    assert ids.count(ours.bos_id) == ids.count(ours.end_id) == 1


def test_words_between_the_ends(tmp_path: Path) -> None:
    bert(tmp_path)
    ours = load(tmp_path).source
    ids, first = encode_words(ours, ["the", "quartz", "\0", "cat"])
    assert ids[0] == ours.bos_id
    assert ids[-1] == ours.end_id
    assert first[0] == 1
    assert ids[first[2]] == ours.unk_id
    assert ours.decode(ids[first[3] : -1]) == "cat"


@pytest.mark.parametrize(
    ("given", "eos", "end"),
    [
        ({}, (), 0),
        ({"config": {"eos_token_id": 7}}, (7,), 0),
        ({"config": {"eos_token_id": [8, 7]}}, (8, 7), 0),
        ({"config": {"eos_token_id": 50256}}, (), 0),
        ({"config": {"eos_token_id": -1}}, (), 0),
        ({"config": {"eos_token_id": [50256, 9]}}, (9,), 0),
        ({"config": {"eos_token_id": None}}, (), 0),
        ({"config": {"eos_token_id": 7}, "generation_config": {"eos_token_id": [6, 7]}}, (6, 7), 0),
        ({"config": {"eos_token_id": 7}, "generation_config": {}}, (), 0),
        ({"generation_config": {"eos_token_id": 6}}, (6,), 0),
        ({"tokenizer_config": {"eos_token": "!"}}, (), 1),
        ({"tokenizer_config": {"eos_token": {"content": "!", "lstrip": True}}}, (), 1),
        ({"special_tokens_map": {"eos_token": "!"}}, (), 1),
        ({"special_tokens_map": {"eos_token": "!"}, "tokenizer_config": {"sep_token": "#"}}, (), 1),
        ({"tokenizer_config": {"sep_token": "#"}}, (), 0),
        ({"tokenizer_config": {"sep_token": "#", "eos_token": None}}, (), 3),
        (
            {"special_tokens_map": {"eos_token": "!"}, "tokenizer_config": {"eos_token": None}},
            (),
            1,
        ),
        ({"tokenizer_config": {"eos_token": "no such"}}, (), 0),
    ],
)
def test_generation_ends_and_text_ends_are_read_from_their_own_files(
    given: dict[str, Any], eos: tuple[int, ...], end: int, tmp_path: Path
) -> None:
    """The ids of generation, and the token that the tokenizer names."""
    byte_pairs(tmp_path, "<|endoftext|>")
    write(tmp_path, **given)
    found = load_tokenizers(tmp_path, "gpt2", given.get("config", {}))
    assert found is not None
    assert found.source.eos_ids == eos
    assert found.source.end_id == end
    learnt = found.ending()
    assert learnt.source is learnt.target
    assert learnt.source.eos_ids == (eos if end in eos else (*eos, end))


@pytest.mark.parametrize("end", ["5", 5.0, [[5]], [5, "6"], True, {"id": 5}])
def test_an_end_that_is_not_an_id_is_refused(end: Any, tmp_path: Path) -> None:
    byte_pairs(tmp_path, "<|endoftext|>")
    write(tmp_path, generation_config={"eos_token_id": end})
    with pytest.raises(InputError, match=r"eos_token_id = .* must be the id of a token"):
        load_tokenizers(tmp_path, "gpt2", {})


@pytest.mark.parametrize(
    ("flags", "before", "after"),
    [
        ({}, (), ()),
        ({"add_bos_token": True}, (0,), ()),
        ({"add_eos_token": True}, (), (1,)),
        ({"add_bos_token": True, "add_eos_token": True}, (0,), (1,)),
        ({"add_bos_token": False, "add_eos_token": True}, (), (1,)),
    ],
)
def test_the_settings_may_say_what_goes_around_a_text(
    flags: dict[str, bool], before: tuple[int, ...], after: tuple[int, ...], tmp_path: Path
) -> None:
    byte_pairs(tmp_path, "<s>", "</s>")
    write(tmp_path, config={"model_type": "gpt2"}, tokenizer_config=flags)
    ours = load(tmp_path).source
    assert (ours.before, ours.after) == (before, after)
    # In a tokenizer.json too, where they would not have to.
    ours.inner.save(str(tmp_path / "tokenizer.json"))
    ours = load(tmp_path).source
    assert (ours.before, ours.after) == (before, after)


def test_padding_and_truncation_of_a_file_are_disabled(tmp_path: Path) -> None:
    bert(tmp_path)
    inner = load(tmp_path).source.inner
    inner.enable_padding(length=12)
    inner.enable_truncation(3)
    inner.save(str(tmp_path / "tokenizer.json"))
    ours = load(tmp_path).source
    assert ours.decode(ours.encode("the cat sat on the mat")) == "the cat sat on the mat"
    assert (ours.before, ours.after) == ((2,), (3,))


def test_processors_in_a_row_are_all_asked(tmp_path: Path) -> None:
    byte_pairs(tmp_path, "<s>", "</s>")
    write(tmp_path, config={"model_type": "llama"})
    inner = load(tmp_path).source.inner
    template = processors.TemplateProcessing(
        single="<s> <s> $A </s>", pair="$A $B", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    inner.post_processor = processors.Sequence([processors.ByteLevel(), template])
    inner.save(str(tmp_path / "tokenizer.json"))
    ours = load(tmp_path).source
    assert (ours.before, ours.after) == ((0, 0), (1,))


@pytest.mark.parametrize("legacy", [True, False])
def test_tokens_that_were_added_later(legacy: bool, tmp_path: Path) -> None:
    word_pieces(tmp_path)
    write(tmp_path, config={"model_type": "bert"})
    n = len((tmp_path / "vocab.txt").read_text(encoding="utf-8").splitlines())
    if legacy:
        write(tmp_path, added_tokens={"zyx": n + 1, "<new>": n})
        write(tmp_path, tokenizer_config={"additional_special_tokens": ["<new>"]})
    else:
        tokens = {str(n): {"content": "<new>", "special": True}, str(n + 1): {"content": "zyx"}}
        write(tmp_path, tokenizer_config={"added_tokens_decoder": tokens})
    ours = load(tmp_path).source
    assert ours.vocab_size == n + 2
    assert ours.encode("thezyx") == [*ours.encode("the"), n + 1]
    assert n not in ours.encode("<new>")
    assert ours.decode([n + 1, n]) == "zyx"
    assert n in ours.special_ids


def test_an_added_token_with_another_id_is_refused(tmp_path: Path) -> None:
    word_pieces(tmp_path)
    write(tmp_path, added_tokens={"zyx": 999})
    with pytest.raises(InputError, match=r"'zyx' has id .*, expected 999"):
        load_tokenizers(tmp_path, "bert", {})


def test_a_folder_without_a_tokenizer_gives_none(tmp_path: Path) -> None:
    write(tmp_path, config={"model_type": "vit"})
    assert load_tokenizers(tmp_path, "vit", {}) is None


def test_ids_with_a_gap_count_to_the_last(tmp_path: Path) -> None:
    model = {"type": "BPE", "vocab": {"a": 0, "b": 9}, "merges": []}
    write(tmp_path, tokenizer={"model": model, "added_tokens": []})
    found = load_tokenizers(tmp_path, "gpt2", {})
    assert found is not None
    assert found.source.vocab_size == 10
    assert found.source.eos_ids == ()
    assert special_ids(found, "gpt2") == {"bos_token_id": 0}


def test_a_run_keeps_what_was_read(tmp_path: Path) -> None:
    gpt2(tmp_path)
    found = load(tmp_path)
    run = write(tmp_path / "run")
    found.save(run)
    again = Tokenizers.load(run).source
    for name in ("pad_id", "unk_id", "bos_id", "eos_ids", "before", "after", "special_ids"):
        assert getattr(again, name) == getattr(found.source, name), name
    assert again.encode("the <|endoftext|>") == found.source.encode("the <|endoftext|>")
