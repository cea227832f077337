"""Plain English: no phrase that must be read twice, and no name that names nothing, returns.

`python tests/test_language.py` lists the places.
"""

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

PHRASES = re.compile(
    r"\bof one'?s own\b|\bbeside\b|\bat hand\b|\banew\b|\bgone on with\b|\bpassed over\b"
    r"|\bgo(?:es|ing)? on\b|\bhears? of\b|\bwhole numbers?\b|\binside of\b"
    r"|\bsaid\b|\b(?:decoder|encoder|model|student|teacher|layer|network)s? (?:says?|tells?)\b"
    r"|\b(?:read|written|encoded|learned|learnt|tried|kept|them|texts|tell|told) apart\b"
    r"|(?<!\bexplain )\bwhat (?:is|are)\b(?! wrong\b)(?![^.:;,]*\?)"
    r"|(?<!\bthere )\b(?:is|are) no\b(?! (?:longer|more)\b)"
    r"|\bnobody knows\b|\bnumbers that are none\b|\bwith a point\b|\bdisappoint|\bto be sure by\b"
    r"|\btells of no\b|\bfit each other\b|^In place\.",
    re.IGNORECASE,
)
"""Use the field's noun instead: "the next token", "a custom codec", "is not", "resumes"."""

LOCALS = {"one", "found", "known", "kept", "told", "said", "some", "both"}
"""Words that name no thing; call a variable `name`, `file`, `matches`, `layer` …"""

FORMER = {
    *("Prepared", "Said", "OwnCodec", "Place", "Asked", "Choices", "End", "Skipped", "NotFollowed"),
    *("OTHER_NAMES", "Seen", "Attended", "watching", "tired", "dice", "twice", "damaged", "said"),
    *("saying_what_is_saved", "_taught", "_labelled", "_agreeing", "_own", "in_parts", "as_read"),
    *("apart_as_read", "words_as_read", "seal", "is_whole", "give_up", "mapped", "write_beside"),
    *("left_as_they_were", "prompts_as_read", "pairs_as_read", "made_of", "says_spans"),
}
"""Names of classes, functions and constants that have plainer ones now."""

PUBLIC = {
    ("data/batches/masked.py", "kept"),
    ("data/examples.py", "Said"),
    ("data/shards/account.py", "kept"),
    ("data/readers/labelled_files.py", "damaged"),
    ("lab/comparison.py", "damaged"),
    ("runs/files/quantization_file.py", "kept"),
}
"""Fields of configurations and files, and a former name that can still be imported."""


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The docstrings, messages and other strings of a module, each with its line."""
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values]
            yield node.lineno, "".join(parts)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in inside
        ):
            yield node.lineno, node.value


def comments(file: Path) -> Iterator[tuple[int, str]]:
    """The comments of a module; lines that follow each other are one text.

    Of a file without a phrase after any `#` they are left out: the tokens of a file take long.
    """
    lines = list[tuple[int, str]]()
    if not phrases(" ".join(re.findall("#(.*)", file.read_text("utf-8")))):
        return
    with tokenize.open(file) as source:
        for token in tokenize.generate_tokens(source.readline):
            if token.type == tokenize.COMMENT:
                text = token.string.lstrip("# ")
                if lines and lines[-1][0] == token.start[0] - 1:
                    text = f"{lines.pop()[1]} {text}"
                lines.append((token.start[0], text))
    yield from lines


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The variables of a module that name no thing, and its former names."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) if name in LOCALS | FORMER:
                yield node.lineno, name
            case ast.arg(arg=name) if name in LOCALS:
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if name in FORMER:
                yield node.lineno, name
            case _:
                pass


def phrases(text: str) -> list[str]:
    """The phrases of a text that must be read twice."""
    return [match[0] for match in PHRASES.finditer(" ".join(text.split()))]


def places_in_source() -> Iterator[tuple[Path, int, str]]:
    """The phrases and names of sources, examples and benchmarks: file, line and word."""
    rooms = (ROOT / "src" / "addnorm", ROOT / "examples", ROOT / "benchmarks")
    for file in sorted(path for room in rooms for path in room.rglob("*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        for line, text in [*texts(tree), *comments(file)]:
            yield from ((file, line, phrase) for phrase in phrases(text))
        module = file.relative_to(ROOT).as_posix().removeprefix("src/addnorm/")
        yield from (
            (file, line, name) for line, name in names(tree) if (module, name) not in PUBLIC
        )


def places_in_tests() -> Iterator[tuple[Path, int, str]]:
    """The phrases in the names of tests."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for i, line in enumerate(file.read_text("utf-8").splitlines(), 1):
            if name := re.match(r"\s*(?:async )?def (test_\w+)", line):
                yield from ((file, i, phrase) for phrase in phrases(name[1].replace("_", " ")))


def places_on_pages() -> Iterator[tuple[Path, int, str]]:
    """The phrases of the English pages."""
    for file in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for i, line in enumerate(file.read_text("utf-8").splitlines(), 1):
            yield from ((file, i, phrase) for phrase in phrases(line))


def places() -> Iterator[tuple[Path, int, str]]:
    """Every phrase and name that is banned, with its place."""
    yield from places_in_source()
    yield from places_in_tests()
    yield from places_on_pages()


def test_plain_sentences_have_no_such_phrase() -> None:
    assert not phrases("There is no file. What is wrong? It is no longer there, two tokens apart.")
    assert phrases("It goes on beside what is\n kept, which is no model") == [
        "goes on",
        "beside",
        "what is",
        "is no",
    ]


def test_no_phrase_or_name_must_be_read_twice() -> None:
    found = [f"{file.relative_to(ROOT)}:{line}: {word}" for file, line, word in places()]
    assert not found, "\n".join(found)


if __name__ == "__main__":
    for file, line, word in places():
        print(f"{file.relative_to(ROOT)}:{line}: {word}")
