"""What the pages say is there: their commands, their files, and the messages that they quote."""

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from cyclopts import CycloptsError, MissingArgumentError

from addnorm.cli.main import app

ROOT = Path(__file__).parents[1]
WRITTEN = [
    page
    for folder in (".", "howto", "tutorials")
    for page in sorted((ROOT / "docs" / folder).glob("*.md"))
]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *WRITTEN]
SOURCES = sorted((ROOT / "src" / "addnorm").rglob("*.py"))


def prose_of(page: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)


def commands_of(page: str) -> Iterator[str]:
    """The commands in the prose of a page and in its blocks, of which a test may run none."""
    for block in re.findall(r"^```(?:console|sh|bash)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        lines = block.replace("\\\n", " ").splitlines()
        yield from re.findall(r"^(?:\$ |srun )?(addnorm .*)$", "\n".join(lines), re.MULTILINE)
    yield from re.findall(r"`(addnorm [^`]+)`", prose_of(page))


def what_is_wrong(command: str) -> str:
    """Why a command cannot be read; one that only names an option may lack the rest."""
    words = shlex.split(re.sub(r"(?<= )[>|&].*", "", command), comments=True)[1:]
    words = [word for i, word in enumerate(words) if word != "…" or words[i - 1].startswith("--")]
    try:
        app.parse_args(words, print_error=False, exit_on_error=False)
    except MissingArgumentError as error:
        named = len(words) < 2 or words[1].startswith("--")
        return "" if named else str(error)
    except CycloptsError as error:
        return str(error)
    return ""


def test_the_commands_of_every_page_can_be_read() -> None:
    for page in PAGES:
        for command in commands_of(page.read_text("utf-8")):
            wrong = what_is_wrong(" ".join(command.split()).replace("COMMAND", "train"))
            assert not wrong, f"{page.name}: {command}: {wrong}"
    assert "--outt" in what_is_wrong("addnorm tokenize texts --outt shards")
    assert "--out" in what_is_wrong("addnorm export RUN --to onnx")


def test_the_files_that_pages_name_exist() -> None:
    """Those of the project; what a reader writes, such as `my.toml`, begins with `my`."""
    for page in PAGES:
        for name in re.findall(
            r"`([\w./*-]+\.(?:py|cpp|md|toml))`", prose_of(page.read_text("utf-8"))
        ):
            if name.startswith("my") or name == "NAME.cpp":
                continue
            folder, _, last = name.rpartition("/")
            places = (ROOT, *(ROOT / place for place in ("src/addnorm", "recipes", "tests")))
            found = any(True for place in places for _ in (place / folder).glob(last))
            found |= not folder and any(True for place in places[1:] for _ in place.rglob(last))
            found |= (ROOT / "examples" / "own_tasks" / name).is_file()
            assert found, f"{page.name}: {name}"


def quotes_of(page: str) -> Iterator[str]:
    """The messages that a page quotes, clause by clause, if there are words enough to know them."""
    for quote in re.findall(r'^- \*"(.+?)"\*', prose_of(page), re.DOTALL | re.MULTILINE):
        yield from (clause for clause in " ".join(quote.split()).split(": ") if " " in clause)


def sources() -> list[str]:
    """The text of every file, with each message in one piece, and `¤` for what is put into it."""
    one_piece = re.compile(r"""["']\s*\n\s*f?["']""")
    texts = [one_piece.sub("", path.read_text("utf-8")) for path in SOURCES]
    return [re.sub(r"[\w']*\{[^{}\n]*\}[\w':,]*", "¤", text) for text in texts]


def is_said(quote: str, texts: Sequence[str]) -> bool:
    """Whether a message has these words; numbers, names in quotes and `…` are any others."""
    words = re.sub(r"^(\S*[\d…'<]\S* )+", "", quote).split()
    pattern = re.compile(
        " ".join(
            r"\S.{0,80}?" if re.search(r"[\d…'<]", word) else f"(?:{re.escape(word)}|¤)"
            for word in words
        )
    )
    return any(map(pattern.search, texts))


@pytest.mark.long
def test_the_messages_that_pages_quote_are_those_of_the_source() -> None:
    texts = sources()
    quotes = [(page, quote) for page in PAGES for quote in quotes_of(page.read_text("utf-8"))]
    assert len(quotes) > 20
    for page, quote in quotes:
        assert is_said(quote, texts), f'{page.name}: "{quote}"'
    assert not is_said("audio with classes have no tokenizer", texts)
