"""What is kept of a text is what would be made of it now, whatever happens on the disk."""

import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from tests.disks import fill
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models, pre_tokenizers

from addnorm.data import DataConfig, LinesConfig, TableConfig, TextConfig
from addnorm.data.batches.buckets import WindowsConfig
from addnorm.data.ids import cache as text_cache
from addnorm.data.ids.cache import TextStore, append_checksum, can_keep, digest, is_intact
from addnorm.data.ids.encoding import EncodedCorpus, id_type
from addnorm.data.tokenizing.codecs import SPECIALS
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import (
    BPEConfig,
    CharConfig,
    Tokenizer,
    TokenizerConfig,
    WordConfig,
)
from addnorm.errors import InputError
from addnorm.runs.encoded_data import encode

TEXT = (
    "To be, or not to be:\r\nthat is the question. Grüße! e\u0301\u2028\n\n  Once \n more 😀\n" * 9
)

CHAR = CharConfig()

pytestmark = pytest.mark.usefixtures("types_unchecked")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which things are kept, of small texts too."""
    monkeypatch.setattr(text_cache, "SMALLEST", 0)
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data"


@pytest.fixture
def play(tmp_path: Path) -> Path:
    file = tmp_path / "play.txt"
    file.write_bytes(TEXT.encode())
    return file


@pytest.fixture
def no_reading(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, whoever reads a text fails."""

    def refuse(self: object) -> None:
        raise AssertionError("the text is read")

    return lambda: monkeypatch.setattr(TextConfig, "load", refuse)


@contextmanager
def show(what: str, characters: int) -> Iterator[Callable[[int], None]]:
    yield lambda _: None


def store_of(data: DataConfig, said: list[str] | None = None, show=show) -> TextStore:
    def say(line: str) -> None:
        assert said is not None, line
        said.append(line)

    assert isinstance(data, TextConfig | TableConfig)
    return TextStore(data, say=say, show=show)


def made(
    data: DataConfig, config: TokenizerConfig = CHAR, said: list[str] | None = None
) -> EncodedCorpus:
    store = store_of(data, said)
    return store.encoded(store.tokenizers(config))


def plain(data: TextConfig | TableConfig, config: TokenizerConfig = CHAR) -> EncodedCorpus:
    corpus = data.load()
    return encode(corpus, Tokenizers.train(config, corpus))


def same(found: EncodedCorpus, expected: EncodedCorpus) -> None:
    assert found.splits == expected.splits
    assert found.reports == expected.reports
    assert (found.bos_id, found.pad_id) == (expected.bos_id, expected.pad_id)
    assert found.characters.keys() == expected.characters.keys()
    for split, characters in found.characters.items():
        assert characters.tolist() == expected.characters[split].tolist()


def in_files(corpus: EncodedCorpus) -> bool:
    """Whether the ids are in no memory of ours."""
    owner = corpus.train.tokens.ids.base
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return type(owner).__name__ == "mmap"


# Kept and found


@pytest.mark.parametrize("unit", ["file", "line", "paragraph"])
@pytest.mark.parametrize("config", [CharConfig(), BPEConfig(vocab_size=300), WordConfig()])
def test_cached_ids_equal_encoded_ones(
    play: Path, unit, config: TokenizerConfig, no_reading
) -> None:
    data = TextConfig(train=play, unit=unit, valid_fraction=0.2, test_fraction=0.1, lowercase=True)
    expected = plain(data, config)
    corpus = data.load()
    learnt = Tokenizers.train(config, corpus).source.inner.to_str(pretty=True)
    first = made(data, config)
    same(first, expected)
    no_reading()
    store = store_of(data)
    tokenizers = store.tokenizers(config)
    found = store.encoded(tokenizers)
    same(found, expected)
    assert in_files(first)
    assert in_files(found)
    assert tokenizers.source is tokenizers.target
    assert tokenizers.source.inner.to_str(pretty=True) == learnt


def test_a_table_of_texts_is_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("n,text\n1,ab\n2,\n3,ba b\n")
    data = TableConfig(train=tmp_path / "a.csv", text="text")
    assert can_keep(data)
    same(made(data), plain(data))
    expected = plain(data)
    monkeypatch.setattr(TableConfig, "load", None)
    same(made(data), expected)
    assert not can_keep(TableConfig(train=tmp_path / "a.csv", text="text", label="n"))
    assert not can_keep(LinesConfig(train=tmp_path / "a.csv"))


def test_small_texts_and_missing_ones_are_left_to_others(
    play: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = play.stat().st_size
    monkeypatch.setattr(text_cache, "SMALLEST", size)
    assert can_keep(TextConfig(train=play))
    monkeypatch.setattr(text_cache, "SMALLEST", size + 1)
    assert not can_keep(TextConfig(train=play))
    assert can_keep(TextConfig(train=play, valid=play))
    assert not can_keep(TextConfig(train=play, valid=play.parent / "none"))
    assert not can_keep(None)


def test_what_does_not_come_from_us_is_not_kept(play: Path, cache: Path) -> None:
    """Whose code may change without our knowledge."""

    class Mine(TextConfig):
        pass

    assert not can_keep(Mine(train=play))


# Never a wrong answer


def test_another_text_of_the_same_size_and_time_is_another(play: Path) -> None:
    data = TextConfig(train=play)
    first = made(data)
    times = play.stat()
    play.write_bytes(TEXT.replace("Once", "Ecno").encode())
    os.utime(play, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (play.stat().st_size, play.stat().st_mtime_ns) == (times.st_size, times.st_mtime_ns)
    same(made(data), plain(data))
    assert made(data).splits != first.splits


@pytest.mark.parametrize(
    "option",
    [
        {"unit": "line"},
        {"lowercase": True},
        {"encoding": "latin-1"},
        {"valid_fraction": 0.1},
        {"test_fraction": 0.1},
    ],
)
def test_every_option_counts(play: Path, option: dict[str, object]) -> None:
    data = TextConfig(train=play)
    other = replace(data, **option)
    same(made(data), plain(data))
    same(made(other), plain(other))


def test_every_tokenizer_counts(play: Path) -> None:
    data = TextConfig(train=play)
    for config in (CharConfig(), BPEConfig(vocab_size=290), BPEConfig(vocab_size=300)):
        same(made(data, config), plain(data, config))
    made_here = CharConfig().train([TEXT]).inner
    for ids in ({"bos_id": 3}, {"eos_ids": (2,)}, {"before": (5,), "after": ()}):
        tokenizer = Tokenizer(made_here, **ids)
        both = Tokenizers(tokenizer, tokenizer)
        same(store_of(data).encoded(both), encode(data.load(), both))


def test_a_tokenizer_learnt_from_a_sample_is_kept_as_one(play: Path) -> None:
    config = BPEConfig(vocab_size=290, sample=len(TEXT) // 2)
    lines = list[str]()
    first, again = (store_of(TextConfig(train=play), lines).tokenizers(config) for _ in range(2))
    assert [first.sampled] == lines
    assert again.sampled == first.sampled != ""


def test_our_own_code_counts(play: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = TextConfig(train=play)
    before = text_cache.cache_key(data)
    assert text_cache.cache_key(data) == before
    monkeypatch.setattr(text_cache, "PACKAGE", play.parent)
    assert text_cache.cache_key(data) != before


def test_a_text_that_changes_while_it_is_read_is_not_kept(
    play: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = TextConfig.load

    def change(self: TextConfig):
        play.write_bytes(TEXT.encode() + b"and more")
        return load(self)

    monkeypatch.setattr(TextConfig, "load", change)
    said: list[str] = []
    data = TextConfig(train=play)
    found = made(data, CharConfig(), said)
    same(found, encode(data.load(), Tokenizers.train(CharConfig(), data.load())))
    [line] = said
    assert line.startswith("its files changed while they were read: the text is not cached")
    assert not cache.exists()


# Damage


@pytest.mark.parametrize("damage", ["bit", "short", "empty", "folder", "longer"])
@pytest.mark.parametrize("suffix", ["ids", "tokenizer"])
def test_damaged_files_are_rebuilt(play: Path, cache: Path, damage: str, suffix: str) -> None:
    data = TextConfig(train=play, valid_fraction=0.1)
    expected = plain(data)
    made(data)
    [file] = cache.glob(f"*.{suffix}")
    good = file.read_bytes()
    places = range(0, len(good), len(good) // 5) if damage == "bit" else [0]
    for place in places:
        bad = bytearray(good)
        bad[place] ^= 1
        bad = {"bit": bad, "short": good[:-1], "empty": b"", "longer": good + b"x"}.get(damage, b"")
        file.unlink()
        if damage == "folder":
            file.mkdir()
            said: list[str] = []
            same(made(data, CharConfig(), said), expected)
            assert len(said) == 1
            return
        file.write_bytes(bad)
        same(made(data), expected)
        assert file.read_bytes() == good


def test_a_seal_is_of_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_cache, "BLOCK", 10)
    file = tmp_path / "f"
    for size in (0, 9, 10, 11, 25):
        file.write_bytes(bytes(range(size)))
        plain = digest(file)
        append_checksum(file)
        assert is_intact(file)
        assert digest(file, size) == plain
        good = file.read_bytes()
        for i in range(len(good)):
            file.write_bytes(good[:i] + bytes([good[i] ^ 4]) + good[i + 1 :])
            assert not is_intact(file)
        for i in range(0, len(good), 5):
            file.write_bytes(good[:i])
            assert not is_intact(file)
    assert not is_intact(tmp_path / "none")


# Disks that cannot


def test_a_folder_that_cannot_be_written_to_costs_a_note(
    play: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path / "file"))
    data, said = TextConfig(train=play), list[str]()
    same(made(data, CharConfig(), said), plain(data))
    [line] = said
    assert line.startswith(f"{tmp_path}/file/data cannot be written: Not a directory: the text is")


def test_a_user_without_a_home_costs_a_note(play: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(text_cache, "cache_folder", nowhere)
    data, said = TextConfig(train=play), list[str]()
    same(made(data, CharConfig(), said), plain(data))
    assert len(said) == 1


def test_a_full_disk_costs_a_note(
    tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADDNORM_CACHE", str(disk))
    (tmp_path / "long.txt").write_text("some text " * 8000)
    fill(disk, left=64 * 1024)
    data, said = TextConfig(train=tmp_path / "long.txt"), list[str]()
    same(made(data, CharConfig(), said), plain(data))
    [line] = said
    assert "No space left on device" in line
    left = [file.name for file in disk.rglob("*") if file.is_file()]
    assert [name for name in left if not name.endswith(".tokenizer")] == ["ballast"]


# Others at the same time, and ends before the time


def test_an_interrupted_one_leaves_nothing_and_the_next_is_whole(play: Path, cache: Path) -> None:
    data = TextConfig(train=play)

    @contextmanager
    def stop(what: str, characters: int) -> Iterator[Callable[[int], None]]:
        def advance(_: int) -> None:
            raise KeyboardInterrupt

        yield advance

    store = store_of(data, show=stop)
    with pytest.raises(KeyboardInterrupt):
        store.encoded(store.tokenizers(CharConfig()))
    assert [file.suffix for file in cache.iterdir()] == [".tokenizer"]
    same(made(data), plain(data))


def test_two_at_once_do_not_hurt_each_other(play: Path, cache: Path) -> None:
    data = TextConfig(train=play)
    others: list[EncodedCorpus] = []

    @contextmanager
    def meanwhile(what: str, characters: int) -> Iterator[Callable[[int], None]]:
        def advance(_: int) -> None:
            others.append(made(data))

        yield advance

    store = store_of(data, show=meanwhile)
    found = store.encoded(store.tokenizers(CharConfig()))
    assert others
    for one in (found, *others, made(data)):
        same(one, plain(data))
    assert sorted(file.suffix for file in cache.iterdir()) == [".ids", ".tokenizer"]


def test_mapped_ids_stay_when_their_file_is_replaced(play: Path, cache: Path) -> None:
    data = TextConfig(train=play)
    found = made(data)
    [file] = cache.glob("*.ids")
    file.unlink()
    file.write_bytes(b"")
    made(data)
    same(found, plain(data))


KILLED = """
import os, signal, sys
from contextlib import contextmanager
from pathlib import Path
from addnorm.data import TextConfig
from addnorm.data.ids import cache as text_cache
from addnorm.data.tokenizing.tokenizers import CharConfig
text_cache.SMALLEST = 0

@contextmanager
def show(what, characters):
    yield lambda _: os.kill(os.getpid(), signal.SIGKILL)

store = text_cache.TextStore(TextConfig(train=Path(sys.argv[1])), say=print, show=show)
store.encoded(store.tokenizers(CharConfig()))
"""


@pytest.mark.slow
def test_one_that_is_killed_leaves_no_answer_and_its_rest_is_removed(
    play: Path, cache: Path
) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(play)])
    assert done.returncode == -9
    [rest] = cache.glob("tmp*")
    assert not [*cache.glob("*.ids")]
    data = TextConfig(train=play)
    same(made(data), plain(data))
    assert rest.exists()  # somebody may be at work there
    for path in (rest, *rest.iterdir()):
        os.utime(path, (time.time() - 90_000,) * 2)
    made(data, WordConfig())
    assert not rest.exists()


def test_what_nobody_used_for_a_month_is_removed(play: Path, cache: Path) -> None:
    data = TextConfig(train=play)
    made(data)
    made(data, WordConfig())
    for file in cache.iterdir():
        os.utime(file, (time.time() - 31 * 86_400,) * 2)
    used = {file.name for file in cache.iterdir()}
    made(data)  # a hit writes nothing, so nothing goes; what it used is new again
    assert {file.name for file in cache.iterdir()} == used
    made(data, BPEConfig(vocab_size=300))
    left = {file.name for file in cache.iterdir()}
    assert len(left & used) == 2
    assert len(left - used) == 2
    made(data)
    assert {file.name for file in cache.iterdir()} == left


# Two bytes or four


@pytest.mark.parametrize(("size", "dtype"), [(65_535, np.uint16), (65_536, np.uint32)])
def test_an_id_takes_two_bytes_or_four(tmp_path: Path, size: int, dtype: type, no_reading) -> None:
    vocab = {token: i for i, token in enumerate([*SPECIALS, *(f"w{i}" for i in range(4, size))])}
    inner = LibraryTokenizer(models.WordLevel(vocab, SPECIALS[1]))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    both = Tokenizers(*2 * [Tokenizer(inner)])
    assert both.source.vocab_size == size
    (tmp_path / "a.txt").write_text(f"w4 w{size - 1} w99 nothing")
    data = TextConfig(train=tmp_path / "a.txt")
    for _ in range(2):
        found = store_of(data).encoded(both)
        assert id_type(both) == dtype
        assert found.train.tokens.ids.dtype == dtype
        assert found.train[0].tokens == [2, 4, size - 1, 99, 1]
        assert found.train[0].targets == [4, size - 1, 99, 1, 3]
        no_reading()
    loaders = WindowsConfig(batch_size=1, seq_len=9).build(found)
    [batch] = loaders.train.batches()
    assert sorted(batch.inputs["tokens"].flatten().tolist()) == [1, 2, 3, 4, 99, size - 1]
    assert batch.inputs["tokens"].dtype == torch.int64


# Memory


def taken(work: Callable[[], object]) -> tuple[object, int]:
    """What a work returns, and the bytes that it leaves in memory."""
    tracemalloc.start()
    try:
        result = work()
        return result, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_a_token_takes_three_bytes_at_most(tmp_path: Path, no_reading) -> None:
    draw = Random(0)
    text = "".join(draw.choice("abcdefgh \n") for _ in range(200_000))
    (tmp_path / "a.txt").write_text(text)
    data = TextConfig(train=tmp_path / "a.txt", valid_fraction=0.1)

    def batches(corpus: EncodedCorpus):
        loaders = WindowsConfig(batch_size=4, seq_len=64).build(corpus)
        return corpus, loaders, next(iter(loaders.train.batches()))

    plain(data)
    _, in_memory = taken(lambda: batches(plain(data)))
    assert 2.0 <= in_memory / len(text) < 3.0
    made(data)
    no_reading()
    _, on_disk = taken(lambda: batches(made(data)))
    assert on_disk / len(text) < 0.5


def test_a_file_that_cannot_be_read_is_named(play: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(file: Path, size: int | None = None) -> str:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(text_cache, "digest", denied)
    with pytest.raises(InputError, match=r"play\.txt cannot be read: Permission denied"):
        made(TextConfig(train=play))
