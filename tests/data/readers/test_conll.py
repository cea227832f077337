"""CoNLL columns; CoNLL-U by its specification, and files that only look like it unchanged."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from addnorm.data import ConllConfig, Labelled, LinesConfig, Tagged
from addnorm.data.readers.conll import conllu_columns
from addnorm.errors import InputError

UNIVERSAL = """# newdoc id = a
# sent_id = 1
# text = # vámonos al mar 5
1\t#\t#\tSYM\t_\t_\t2\tpunct\t_\t_
2-3\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
2\tvamos\tir\tVERB\t_\t_\t0\troot\t_\t_
3\tnos\tnosotros\tPRON\t_\t_\t2\tobj\t_\tSpaceAfter=No
3.1\tir\tir\tVERB\t_\t_\t_\t_\t2:conj\t_
4\t5\t5\tNUM\t_\t_\t2\tobl\t_\t_

# sent_id = 2
1\tNew York\t_\tPROPN\t_\t_\t0\troot\t_\t_

# a comment at the end
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "a.conllu"
    file.write_text(text, encoding="utf-8")
    return file


def test_words_alone_are_read_and_others_counted(tmp_path: Path) -> None:
    file = write(tmp_path, UNIVERSAL)
    corpus = ConllConfig(train=file, token_column=1, tag_column=3).load()
    assert corpus.train == [
        Tagged(("#", "vamos", "nos", "5"), ("SYM", "VERB", "PRON", "NUM")),
        Tagged(("New York",), ("PROPN",)),
    ]
    assert corpus.labels == ("NUM", "PRON", "PROPN", "SYM", "VERB")
    report = corpus.reports["train"]
    assert report.skipped == {"comments": 5, "ranges of words": 1, "empty nodes": 1}
    assert report.left_out == {"comments without words": [f"{file}:14"]}
    assert str(report).endswith(
        "5 comments skipped, 1 ranges of words skipped, 1 empty nodes skipped"
    )


@pytest.mark.parametrize("column", [0, -10])
def test_word_numbers_are_refused_as_words(column: int, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="CoNLL-U, whose first column numbers the words: give data"
    ):
        ConllConfig(train=write(tmp_path, UNIVERSAL), token_column=column).load()


def test_a_damaged_line_is_reported(tmp_path: Path) -> None:
    good = "".join(f"{n}\tw\tw\tX\t_\t_\t0\troot\t_\t_\n" for n in range(1, 20))
    file = write(tmp_path, f"{good}\n# c\n1 w w X\n")
    report = ConllConfig(train=file, token_column=1, tag_column=3).load().reports["train"]
    assert report.used == 1
    assert report.read == 2


PLAIN = {
    "WNUT-17": "#\tO\n@user\tO\n1\tO\n\n4-5\tO\n# x\tO\n",
    "CoNLL-2003": "-DOCSTART- -X- O O\n\n# SYM B-NP O\n1 CD I-NP O\n4-5 CD I-NP O\n",
    "columns of numbers": "1\t2\tX\n2\t3\tY\n",
    "comments in other files": "# a comment\nAnna B-PER\n",
}


@pytest.mark.parametrize("name", PLAIN)
def test_files_of_other_kinds_keep_every_line(name: str, tmp_path: Path) -> None:
    text = PLAIN[name]
    assert conllu_columns(text.split("\n")) is None
    corpus = ConllConfig(train=write(tmp_path, text)).load()
    words = [word for one in corpus.train for word in one.tokens]  # pyright: ignore[reportAttributeAccessIssue]
    lines = [line for line in text.split("\n") if line and not line.startswith("-DOCSTART-")]
    cut = "\t" if "\t" in text else " "
    assert words == [line.split(cut)[0] for line in lines]
    assert not corpus.reports["train"].skipped


def with_columns(*columns: int | str, first: str = "") -> str:
    """The file with other columns: numbers are those of CoNLL-U, texts are cells of all lines."""
    lines = []
    for line in UNIVERSAL.splitlines():
        cells = line.split("\t")
        found = [cells[c] if isinstance(c, int) else c for c in columns if len(cells) > 1]
        lines.append("\t".join(found) if found else line)
    return first + "\n".join(lines) + "\n"


KIN = {
    "cupt": (with_columns(*range(10), "*"), 1, 3),
    "CoNLL 2009": (with_columns(*range(10), "_", "_", "_", "_"), 1, 3),
    "three": (with_columns(0, 1, 3), 1, 2),
    "Plus": (with_columns(0, 1, 3, first="# global.columns = ID FORM UPOS\n"), 1, 2),
    "Plus, id last": (with_columns(1, 3, 0, first="# global.columns = FORM UPOS ID\n"), 0, 1),
}


@pytest.mark.parametrize("kind", KIN)
def test_kin_of_conllu_have_the_same_words(tmp_path: Path, kind: str) -> None:
    """More columns or fewer, in another order that the first line names."""
    text, token, tag = KIN[kind]
    read = ConllConfig(train=write(tmp_path, text), token_column=token, tag_column=tag)
    assert [one.tokens for one in read.load().train if isinstance(one, Tagged)] == [
        ("#", "vamos", "nos", "5"),
        ("New York",),
    ]
    assert read.load().reports["train"].skipped["ranges of words"] == 1
    at = 2 if kind.endswith("last") else 0
    wrong = ConllConfig(train=write(tmp_path, text), token_column=at, tag_column=tag)
    with pytest.raises(InputError, match="column numbers the words: give data"):
        wrong.load()


def test_columns_without_an_id_have_comments(tmp_path: Path) -> None:
    """A word may be `#` there, which its columns tell from a comment."""
    words = UNIVERSAL.replace("2-3\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_\n", "")
    words = "\n".join(line for line in words.splitlines() if not line.startswith("3.1"))
    lines = [line.split("\t") for line in words.splitlines()]
    text = "\n".join("\t".join([c[1], c[3]] if c[1:] else c) for c in lines)
    file = write(tmp_path, f"# global.columns = FORM UPOS\n{text}\n")
    corpus = ConllConfig(train=file, token_column=0, tag_column=1).load()
    assert corpus.train[0] == Tagged(("#", "vamos", "nos", "5"), ("SYM", "VERB", "PRON", "NUM"))
    assert corpus.reports["train"].skipped == {"comments": 6}


def test_numbers_that_count_nothing_are_words(tmp_path: Path) -> None:
    file = write(tmp_path, "7\tx\tNUM\n4-5\tx\tNUM\n5\tx\tNUM\n")
    [one] = ConllConfig(train=file, token_column=0, tag_column=2).load().train
    assert one == Tagged(("7", "4-5", "5"), ("NUM", "NUM", "NUM"))


def test_sentences_end_at_blank_lines(put) -> None:
    path = put("a", "-DOCSTART- -X- O\n\nAnn NN B-per\nruns VB O\n\n\t\nHi UH O")
    corpus = ConllConfig(train=path).load()
    assert corpus.train == [Tagged(("Ann", "runs"), ("B-per", "O")), Tagged(("Hi",), ("O",))]
    assert corpus.labels == ("B-per", "O")
    assert corpus.reports["train"].left_out == {"document mark": [f"{path}:1"]}
    columns = ConllConfig(train=path, token_column=1, tag_column=0).load()
    assert columns.train[0] == Tagged(("NN", "VB"), ("Ann", "runs"))


def test_several_files_are_learnt_from_one_after_another(put) -> None:
    first, second = put("a", "Ann B-per"), put("b", "runs O\n\nin O\nx")
    corpus = ConllConfig(train=(first, second), valid=first).load()
    assert corpus.train == [Tagged(("Ann",), ("B-per",)), Tagged(("runs",), ("O",))]
    assert corpus.valid == [Tagged(("Ann",), ("B-per",))]
    assert corpus.reports["train"].left_out == {"a line without word and tag": [f"{second}:4"]}
    first, second = put("c", "0 bad"), put("d", "1 good\n1")
    with pytest.raises(ValidationError, match="names no file: name one at least"):
        LinesConfig(train=())
    lines = LinesConfig(train=(first, second), test=first).load()
    assert lines.train == [Labelled("bad", "0"), Labelled("good", "1")]
    assert lines.test == [Labelled("bad", "0")]
    assert lines.reports["train"].left_out == {"a line without the separator": [f"{second}:2"]}


def test_tabs_separate_where_there_are_any(put) -> None:
    corpus = ConllConfig(train=put("a", "New York\tB\nx\u2028y\tO\n\na\u0085b O\n")).load()
    assert corpus.train == [
        Tagged(("New York", "x\u2028y"), ("B", "O")),
        Tagged(("a\u0085b",), ("O",)),
    ]


@pytest.mark.parametrize("line", ["b", "\tO", "b\t", "\u2028"])
def test_a_sentence_with_a_broken_line_is_left_out_whole(put, line) -> None:
    path = put("x", f"a O\n{line}\nc O\n\nd O\n")
    corpus = ConllConfig(train=path).load()
    assert corpus.train == [Tagged(("d",), ("O",))]
    assert corpus.reports["train"].left_out == {"a line without word and tag": [f"{path}:2"]}


def test_a_tag_that_training_lacks_is_refused_at_its_sentence(put) -> None:
    train, test = put("a", "a O\nb B-x\n"), put("b", "a O\n\nb O\nc I-x\n")
    with pytest.raises(InputError, match=r"b:3: the label 'I-x'"):
        ConllConfig(train=train, test=test).load()
