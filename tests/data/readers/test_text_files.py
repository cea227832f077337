"""Reading files: missing, empty, wrongly encoded, truncated, with unusual line ends."""

import gzip
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.data import (
    ConllConfig,
    Labelled,
    LinesConfig,
    Pair,
    ParallelConfig,
    Tagged,
    Text,
    TextConfig,
)
from addnorm.data.readers.rows import Row, assemble
from addnorm.data.readers.text_files import find, lines_of, read_text
from addnorm.errors import InputError


def written(folder: Path, data: bytes, name: str = "text.txt") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    data = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\rh\r\ni\r\n\nj".encode()
    text = read_text(written(tmp_path, data))
    assert lines_of(text) == ["a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\rh", "i", "", "j"]


@pytest.mark.parametrize(("text", "lines"), [("a\n", ["a"]), ("a", ["a"]), ("\n\n", ["", ""])])
def test_the_last_line_feed_ends_a_line(text: str, lines: list[str]) -> None:
    assert lines_of(text) == lines


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    assert read_text(written(tmp_path, b"\xef\xbb\xbfa\xef\xbb\xbf")) == "a\ufeff"


def test_bad_bytes_are_named_with_their_line_and_a_way_out(tmp_path: Path) -> None:
    path = written(tmp_path, "ä\nb\u2028\n".encode() + b"caf\xe9\n")
    with pytest.raises(InputError, match=r'text\.txt:3: byte 0xe9 is not utf-8.*"latin-1"'):
        read_text(path)
    assert read_text(path, "latin-1").endswith("café\n")


def test_a_nul_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"text\.txt:2: a NUL"):
        read_text(written(tmp_path, b"a\nb\0c\n"))


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_is_an_error(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InputError, match="is empty"):
        read_text(written(tmp_path, data))


@pytest.mark.parametrize("encoding", ["utf-88", "rot13", "undefined"])
def test_an_unknown_encoding_is_an_error(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(InputError, match=encoding):
        read_text(written(tmp_path, b"a"), encoding)


def test_gz_is_unpacked(tmp_path: Path) -> None:
    assert read_text(written(tmp_path, gzip.compress(b"a\nb\n"), "text.gz")) == "a\nb\n"


@pytest.mark.parametrize("keep", [3, 12, 30, -9, -1])
def test_a_truncated_gz_is_an_error(tmp_path: Path, keep: int) -> None:
    data = gzip.compress(bytes(range(1, 100)))[:keep]
    with pytest.raises(InputError, match=r"text\.gz is a damaged or truncated gzip"):
        read_text(written(tmp_path, data, "text.gz"))


@pytest.mark.parametrize("at", [0, 15, -6])
def test_a_corrupt_gz_is_an_error(tmp_path: Path, at: int) -> None:
    data = bytearray(gzip.compress(b"abc" * 100))
    data[at] ^= 0xFF
    with pytest.raises(InputError, match="damaged or truncated gzip"):
        read_text(written(tmp_path, bytes(data), "text.gz"))


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    written(tmp_path, b"a", "train.en.gz")
    with pytest.raises(InputError, match=r"Did you mean 'train\.en\.gz'"):
        find(Path("train.en"), tmp_path)
    with pytest.raises(InputError, match="nor does its folder"):
        find(Path("nowhere/train.en"), tmp_path)
    with pytest.raises(InputError, match="is a folder"):
        find(Path(), tmp_path)


def test_paths_start_at_root_then_the_environment_then_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("root", "env", "here"):
        (tmp_path / name).mkdir()
        written(tmp_path / name, b"a")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("ADDNORM_DATA", raising=False)
    assert find(Path("text.txt")).resolve().parent.name == "here"
    monkeypatch.setenv("ADDNORM_DATA", str(tmp_path / "env"))
    assert find(Path("text.txt")).parent.name == "env"
    assert find(Path("text.txt"), tmp_path / "root").parent.name == "root"
    assert find(tmp_path / "here/text.txt", tmp_path / "root").parent.name == "here"


def test_a_line_of_ten_megabytes_is_a_line(tmp_path: Path) -> None:
    long = b"x" * 10_000_000
    assert [
        len(line) for line in lines_of(read_text(written(tmp_path, b"a\n" + long + b"\nb")))
    ] == [
        1,
        10_000_000,
        1,
    ]


def test_lines_that_end_with_carriage_returns_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path, b"good one\r" * 9 + b"bad\n", "mac.txt")
    with pytest.raises(InputError, match=r"mac.txt: its lines end with .r, and lines end"):
        list(LinesConfig(train=file).load().train)
    with pytest.raises(InputError, match="its lines end with"):
        TextConfig(train=file, unit="line").load()
    assert len(TextConfig(train=file).load().train) == 1, "one document, whatever is in it"


def texts(examples) -> list[str]:
    return [example.text for example in examples]


# Text


def test_the_last_characters_are_held_out(put) -> None:
    text = "".join(chr(97 + i % 26) for i in range(1003))
    corpus = TextConfig(train=put("a.txt", text), valid_fraction=0.1).load()
    assert corpus.task == "language"
    assert texts(corpus.train) == [text[: int(0.9 * 1003)]]
    assert texts(corpus.valid) == [text[int(0.9 * 1003) :]]
    assert not corpus.test


def test_valid_comes_before_test(put) -> None:
    path = put("a.txt", "abcdefghij" * 10)
    corpus = TextConfig(train=path, valid_fraction=0.25, test_fraction=0.5).load()
    assert [len(s[0].text) for s in (corpus.train, corpus.valid, corpus.test)] == [25, 25, 50]


@given(
    st.lists(st.text("ab \u2028", max_size=6), max_size=9), st.sampled_from(["line", "paragraph"])
)
def test_holding_out_cuts_no_unit(tmp_path_factory, lines: list[str], unit) -> None:
    path = tmp_path_factory.mktemp("x") / "a.txt"
    path.write_bytes("\n".join(["a" * 300, "", *lines, "", "b" * 200, "", "c"]).encode())
    whole = TextConfig(train=path, unit=unit).load()
    parts = TextConfig(train=path, unit=unit, test_fraction=0.2).load()
    assert [*parts.train, *parts.test] == whole.train
    assert parts.test[-1] == Text("c")
    left_out = [r.left_out.get("empty line", []) for r in parts.reports.values()]
    assert [*chain(*left_out)] == whole.reports["train"].left_out.get("empty line", [])


def test_empty_lines_are_reported_with_their_numbers(put) -> None:
    path = put("a.txt", "one\n\n two \n \u2028\nthree")
    corpus = TextConfig(train=path, unit="line").load()
    assert texts(corpus.train) == ["one", " two ", "three"]
    report = corpus.reports["train"]
    assert (report.read, report.used) == (5, 3)
    assert report.left_out == {"empty line": [f"{path}:2", f"{path}:4"]}
    assert str(report) == f"5 read, 3 used, 2 left out: empty line ({path}:2, {path}:4)"


def test_paragraphs_stand_between_empty_lines(put) -> None:
    corpus = TextConfig(train=put("a.txt", "\n\na\nb\n\n \nc\n"), unit="paragraph").load()
    assert texts(corpus.train) == ["a\nb", "c"]


def test_a_split_both_given_and_held_out_is_refused(put) -> None:
    path = put("a.txt", "abc")
    with pytest.raises(InputError, match="either valid or valid_fraction"):
        TextConfig(train=path, valid=path, valid_fraction=0.1).load()
    with pytest.raises(InputError, match="either test or test_fraction"):
        TextConfig(train=path, test=path, test_fraction=0.1).load()
    lines = put("b.txt", "1 a\n1 b")
    with pytest.raises(InputError, match="either valid or valid_fraction"):
        LinesConfig(train=lines, valid=lines, valid_fraction=0.1).load()


def test_a_split_held_out_of_too_little_is_refused(put) -> None:
    with pytest.raises(InputError, match="valid has no usable row"):
        TextConfig(train=put("a.txt", "abc\n"), unit="line", valid_fraction=0.1).load()
    with pytest.raises(InputError, match="leaves a split empty"):
        LinesConfig(train=put("b.txt", "1 a\n1 b"), valid_fraction=0.1).load()


# Parallel


def test_pairs_are_aligned_across_odd_line_ends(put) -> None:
    source = put("a.en", "one\u2028still one\ntwo\u0085still two\r\nthree\n")
    target = put("a.de", "eins\nzwei\ndrei")
    corpus = ParallelConfig(train=(source, target)).load()
    assert corpus.train == [
        Pair("one\u2028still one", "eins"),
        Pair("two\u0085still two", "zwei"),
        Pair("three", "drei"),
    ]


@pytest.mark.parametrize(
    ("source", "target", "at"), [("a\nb\nc", "a\nb", "en:3"), ("a", "a\nb\nc", "de:2")]
)
def test_unequal_files_are_refused_at_the_first_line_without_partner(
    put, source, target, at
) -> None:
    pair = (put("x.en", source), put("x.de", target))
    with pytest.raises(InputError, match=rf"x\.{at} has no partner"):
        ParallelConfig(train=pair).load()


def test_pairs_with_an_empty_side_are_reported(put) -> None:
    source, target = put("x.en", "a\n\nc\n \ne\n"), put("x.de", "A\nB\n\n\t\nE\n")
    corpus = ParallelConfig(train=(source, target)).load()
    assert corpus.train == [Pair("a", "A"), Pair("e", "E")]
    assert corpus.reports["train"].left_out == {
        "empty source": [f"{source}:2"],
        "empty target": [f"{target}:3"],
        "empty source and target": [f"{source}:4"],
    }


def test_nothing_usable_is_refused(put) -> None:
    with pytest.raises(InputError, match=r"train has no usable row: 2 read, 0 used, 2 left out"):
        ParallelConfig(train=(put("x.en", "\n\n"), put("x.de", "a\nb"))).load()


@given(st.lists(st.tuples(st.text("a ", max_size=2), st.text("b ", max_size=2)), min_size=1))
def test_read_is_used_and_left_out(tmp_path_factory, pairs: list[tuple[str, str]]) -> None:
    folder = tmp_path_factory.mktemp("pairs")
    pairs = [("a", "b"), *pairs]
    for side, name in enumerate(("en", "de")):
        (folder / name).write_text("".join(f"{pair[side]}\n" for pair in pairs))
    corpus = ParallelConfig(root=folder, train=("en", "de")).load()
    report = corpus.reports["train"]
    assert report.read == len(pairs)
    assert report.used == len(corpus.train) == sum(bool(a.strip() and b.strip()) for a, b in pairs)


# Lines


def test_label_and_text(put) -> None:
    corpus = LinesConfig(train=put("a", "1 good film\n0 bad  one\n"), lowercase=True).load()
    assert corpus.train == [Labelled("good film", "1"), Labelled("bad  one", "0")]
    assert corpus.labels == ("0", "1")
    last = LinesConfig(train=put("b", "a\tb\tA\nc\tB"), separator="\t", label_first=False).load()
    assert last.train == [Labelled("a\tb", "A"), Labelled("c", "B")]


def test_lines_that_hold_no_example_are_reported(put) -> None:
    path = put("a", "1 a\n1\n1 \n b\n\n")
    assert LinesConfig(train=path).load().reports["train"].left_out == {
        "a line without the separator": [f"{path}:2"],
        "empty text": [f"{path}:3"],
        "no label": [f"{path}:4"],
        "empty line": [f"{path}:5"],
    }


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_label_that_training_lacks_is_refused(put, split) -> None:
    train, other = put("a", "positive a\nnegative b"), put("b", "negative a\n\npositiv c\n")
    with pytest.raises(InputError, match=r"b:3: the label 'positiv'.*Did you mean 'positive'"):
        LinesConfig(train=train, **{split: other}).load()


def test_labels_are_never_lowercased(put) -> None:
    corpus = LinesConfig(train=put("a", "POS Good\nNEG Bad"), lowercase=True).load()
    assert corpus.train == [Labelled("good", "POS"), Labelled("bad", "NEG")]


def test_a_random_share_is_held_out_by_seed(put) -> None:
    path = put("a", "".join(f"{i % 3} text {i}\n" for i in range(100)) + "\n")
    first, again, other = (
        LinesConfig(train=path, valid_fraction=0.2, seed=seed).load() for seed in (1, 1, 2)
    )
    assert first == again
    assert first.valid != other.valid
    assert (len(first.train), len(first.valid)) == (80, 20)
    assert {*first.train, *first.valid} == {*LinesConfig(train=path).load().train}
    assert [(r.read, r.used) for r in first.reports.values()] == [(81, 80), (20, 20)]


def test_a_label_of_which_all_examples_were_held_out_is_still_a_label() -> None:
    rows = [Row(str(i), Labelled("x", str(i))) for i in range(10)]
    assert len(assemble({"train": rows}, valid_fraction=0.5).labels) == 10


# All of them


def test_missing_files_and_unknown_fields_are_refused(put, tmp_path: Path) -> None:
    put("train.txt", "a")
    with pytest.raises(InputError, match=r"Did you mean 'train\.txt'"):
        TextConfig(root=tmp_path, train="trian.txt").load()
    with pytest.raises(ValueError, match="separater"):
        LinesConfig(train=tmp_path, separater=" ")
    with pytest.raises(ValueError, match="separator"):
        LinesConfig(train=tmp_path, separator="")


def test_a_fault_in_any_split_stops_before_anything_else(put) -> None:
    good, bad = put("good", "1 a"), put("bad", "1 a\n1 b\0")
    with pytest.raises(InputError, match="bad:2: a NUL"):
        LinesConfig(train=good, valid=good, test=bad).load()


def test_lower_case_spares_nothing_but_labels(put) -> None:
    assert TextConfig(train=put("a", "ÄB"), lowercase=True).load().train == [Text("äb")]
    pair = ParallelConfig(train=(put("b", "AB"), put("c", "Ö")), lowercase=True).load()
    assert pair.train == [Pair("ab", "ö")]
    assert ConllConfig(train=put("d", "Ann B-PER"), lowercase=True).load().train == [
        Tagged(("ann",), ("B-PER",))
    ]
