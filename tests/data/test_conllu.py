"""CoNLL-U as its specification says, and files that only look like it left as they are."""

from pathlib import Path

import pytest

from addnorm.data import ConllConfig, Tagged
from addnorm.data.conllu import is_conllu
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


def put(folder: Path, text: str) -> Path:
    file = folder / "a.conllu"
    file.write_text(text, encoding="utf-8")
    return file


def test_words_alone_are_read_and_others_counted(tmp_path: Path) -> None:
    file = put(tmp_path, UNIVERSAL)
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
def test_numbers_are_no_words(column: int, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="CoNLL-U, whose first column numbers the words: give data"
    ):
        ConllConfig(train=put(tmp_path, UNIVERSAL), token_column=column).load()


def test_a_damaged_line_is_reported(tmp_path: Path) -> None:
    good = "".join(f"{n}\tw\tw\tX\t_\t_\t0\troot\t_\t_\n" for n in range(1, 20))
    file = put(tmp_path, f"{good}\n# c\n1 w w X\n")
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
    assert not is_conllu(text.split("\n"))
    corpus = ConllConfig(train=put(tmp_path, text)).load()
    words = [word for one in corpus.train for word in one.tokens]  # pyright: ignore[reportAttributeAccessIssue]
    lines = [line for line in text.split("\n") if line and not line.startswith("-DOCSTART-")]
    cut = "\t" if "\t" in text else " "
    assert words == [line.split(cut)[0] for line in lines]
    assert not corpus.reports["train"].skipped
