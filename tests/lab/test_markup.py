"""Text of any kind in Markdown and HTML is seen as it was given, and formats nothing."""

import json
import math
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from tests.lab.small import small_study
from tests.lab.studies.test_report import ROWS, SUMMARY

from addnorm.lab.comparison import (
    Comparison,
    Facts,
    comparison_markdown,
    comparison_table,
    write_comparison,
)
from addnorm.lab.markup import code, finite, plain
from addnorm.lab.studies.ablation import Cost, cost_table
from addnorm.lab.studies.report import markdown, page
from addnorm.lab.studies.study import Study

RENDER = MarkdownIt("commonmark", {"html": True}).enable("table")
"""As a page of GitHub does, where what looks like HTML is HTML."""

texts = st.text(st.characters(exclude_categories=["Cc", "Cs"], include_characters="\t\n"))
names = texts.filter(bool) | st.text("\\`*_[]<>&#|~$!-+.()\n \tab1é中", min_size=1)
HARD = [
    "a|b",
    "\\|",
    "a\\",
    "<script>alert(1)</script>",
    "<b>",
    "&lt;",
    "**x**",
    "_x_",
    "d_ff",
    "`a` and ``b``",
    "a\nb\n\n# c",
    " two  spaces ",
    "[a](b)",
    "![a](b)",
    "1. a",
    "- a",
    "tail #",
    "\u2028",
    "\u3000",
    "https://x.org/_a_",
    '{kind = "window", size = 64}',
]


def hard(test):
    for text in HARD:
        test = example(text)(test)
    return test


class Seen(HTMLParser):
    """The text within each element, by tag; pictures by their words."""

    def __init__(self, body: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, str]] = []
        self.open: list[tuple[str, list[str]]] = []
        self.feed(body)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.found.append((tag, dict(attrs)["alt"] or ""))
        elif tag != "input":
            self.open.append((tag, []))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_data(self, data: str) -> None:
        for _, inner in self.open:
            inner.append(data)

    def handle_endtag(self, tag: str) -> None:
        name, inner = self.open.pop()
        assert name == tag
        self.found.append((tag, "".join(inner)))

    def of(self, tag: str) -> list[str]:
        return [text for name, text in self.found if name == tag]


@hard
@given(names)
def test_any_text_is_seen_as_it_is(text: str) -> None:
    """In a sentence, in bold, at the end of a heading, as the words of a picture, in a table."""
    it = plain(text)
    body = f"# {it}\n\nOf {it}, it.\n\n- **{it}** is\n\n![{it}](a.svg)\n\n| {it} | {it} |\n"
    seen = Seen(RENDER.render(f"{body}|---|---|\n| {it} | {it} |\n"))
    assert seen.of("h1") == seen.of("strong") == seen.of("img") == [text]
    assert seen.of("p")[0] == f"Of {text}, it."
    assert seen.of("th") == seen.of("td") == [text] * 2
    tags = {tag for tag, _ in seen.found}
    assert tags == {
        "h1", "p", "ul", "li", "strong", "img", "table", "thead", "tbody", "tr", "th", "td",
    }  # fmt: skip
    assert "\n" not in it


@hard
@given(names)
def test_any_text_is_code_or_as_it_is(text: str) -> None:
    seen = Seen(RENDER.render(f"of {code(text)}; the"))
    assert seen.of("p") == [f"of {text}; the"]
    assert seen.of("code") in ([], [text])


def test_control_characters_have_a_mark_and_names_stay_readable() -> None:
    assert plain("a\x00b\x1b[0m\x85") == "a\ufffdb\ufffd\\[0m\ufffd"
    assert plain("norm=layernorm, d_ff=64") == "norm=layernorm, d_ff=64"
    assert code("model.feedforward.d_ff = 24") == "`model.feedforward.d_ff = 24`"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return small_study(tmp_path_factory.mktemp("names"))


@hard
@settings(max_examples=40, deadline=None)
@given(names)
def test_a_report_shows_any_name_question_and_reason(study: Study, text: str) -> None:
    facts = {"refused": text, "dropped": text, "adjusted": {"a": text}}
    rows = [
        replace(row, name=text, **{k: v for k, v in facts.items() if getattr(row, k)})
        for row in ROWS
    ]
    asked = replace(study, settings=replace(study.settings, question=text, recipe=text))
    summary = replace(SUMMARY, rows=rows)
    for language in ("en", "zh"):
        written = markdown(asked, summary, language, ["differences.svg", "curves.svg"])
        for body in (RENDER.render(written), page(text, {language: written}, Path("nowhere"))):
            seen = Seen(body.split("<body>")[-1].removesuffix("</body></html>\n"))
            assert seen.of("h1") == [text]
            assert {*seen.of("strong")} == {text}
            assert seen.of("td")[::10] == [text] * 10
            assert any(text in alt for alt in seen.of("img"))
            assert sum(text in line.replace(text, "", 1) for line in seen.of("li")) >= 3
            assert not seen.of("script")


@hard
@settings(max_examples=40, deadline=None)
@given(names)
def test_a_comparison_shows_any_name_and_value(text: str) -> None:
    facts = {"folder": "", "parameters": 1, "flops": None, "steps": 1, "tokens": 1, "seconds": 1.0}
    facts |= {"metric": "loss", "best": 1.0, "best_step": 1, "last_loss": None}
    runs = [Facts(name=name, **facts) for name in (text, "other")]
    found = Comparison(runs=runs, fields={text: [text, "2"]})
    seen = Seen(RENDER.render(comparison_markdown(found)))
    assert seen.of("th") == ["", text, "other"]
    assert seen.of("td")[:3] == [text, text, "2"]
    assert len(seen.of("tr")) == 9
    assert comparison_table(found).row_count == 8


def test_the_tables_of_a_terminal_show_brackets(study: Study, capsys) -> None:
    from rich.console import Console

    text = "pattern=[/red]"
    variants = [replace(study.variants[0], name=text), study.variants[1]]
    costs = {0: Cost(parameters=1, flops=1.0, seconds=1.0)}
    facts = {"folder": "", "parameters": 1, "flops": None, "steps": 1, "tokens": 1, "seconds": 1.0}
    facts |= {"metric": "loss", "best": 1.0, "best_step": 1, "last_loss": None}
    runs = [Facts(name=name, **facts) for name in ("a", "b")]
    console = Console(width=200)
    console.print(cost_table(replace(study, variants=variants), costs, 1))
    console.print(comparison_table(Comparison(runs=runs, fields={text: [text, 1]})))
    assert capsys.readouterr().out.count(text) == 3


def test_names_that_are_long_are_folded_and_not_cut(study: Study, capsys) -> None:
    from rich.console import Console

    facts = {"folder": "", "parameters": 1, "flops": None, "steps": 1, "tokens": 1, "seconds": 1.0}
    facts |= {"metric": "loss", "best": 1.0, "best_step": 1, "last_loss": None}
    runs = [Facts(name="norm-seed-1-" + 20 * end, **facts) for end in "abcd"]
    fields = {"model.norm.bias_of_a_long_name": ["x", "y", "z", "u"]}
    console = Console(width=60)
    console.print(comparison_table(Comparison(runs=runs, fields=fields)))
    out = capsys.readouterr().out
    assert "…" not in out
    assert all(out.count(end) >= 20 for end in "abcd")


def test_numbers_that_json_has_not_are_null(tmp_path: Path) -> None:
    tree = {"a": [1.0, math.inf, (math.nan, "x")], "b": {"c": -math.inf, "d": None, "e": 1}}
    assert finite(tree) == {"a": [1.0, None, [None, "x"]], "b": {"c": None, "d": None, "e": 1}}
    facts = {"folder": "", "parameters": 1, "flops": None, "steps": 1, "tokens": 1, "seconds": 1.0}
    facts |= {"metric": "loss", "best": math.inf, "best_step": 1, "last_loss": math.nan}
    (tmp_path / "metrics.jsonl").write_text("")
    runs = [Facts(name="a", **{**facts, "folder": str(tmp_path)})] * 2
    [_, file, _] = write_comparison(Comparison(runs=runs, fields={}), tmp_path / "out")
    tree = json.loads(file.read_text(), parse_constant=pytest.fail)
    assert tree["runs"][0]["best"] is None
