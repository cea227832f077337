"""Reports: every variant is accounted for in both languages, numbers are those of the summary."""

import json
import math
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.lab.small import small_study
from tests.lab.studies.test_summary import figures, put

from addnorm.lab.statistics import differences, mean_interval
from addnorm.lab.studies.report import (
    JSON,
    LATEX,
    MARKDOWN,
    WORDS,
    curves_picture,
    forest_picture,
    markdown,
    page,
    table_line,
    write_report,
)
from addnorm.lab.studies.summary import Row, Summary, summarise
from addnorm.lab.studies.variants import Variant


def row(name: str, values: list[float], first: list[float] | None = None, **more) -> Row:
    found = None if first is None or not values else differences([(values, first)])[0]
    facts = {
        "values": dict(enumerate(values)),
        "mean": mean_interval(values) if values else None,
        "difference": found,
        "examples": None,
        "bleu_p": None,
        "diverged": 0,
        "missing": 0,
        "parameters": 1234,
        "tokens": 99,
        "seconds": 2.0,
        "adjusted": {},
    }
    return Row(name=name, **{**facts, **more})


FIRST = [2.0, 2.1, 2.05]
ROWS = [
    row("first", FIRST),
    row("better", [1.0, 1.11, 1.04], FIRST),
    row("worse", [3.0, 3.1, 3.06], FIRST),
    row("open", [2.1, 1.9, 2.2], FIRST),
    row("equal", FIRST, FIRST),
    row("single", [1.0], [2.0]),
    row("broken", [], diverged=3),
    row("late", [2.1, 1.9], FIRST[:2], missing=1),
    row("dropped", [4.0], [2.0], dropped="loss +2 after 4 steps", missing=2),
    row("refused", [], refused="no such norm"),
    row("wide", [1.0, 1.2, 1.1], FIRST, adjusted={"model.feedforward.d_ff": "24"}),
]
SUMMARY = Summary(rows=ROWS, metric="loss", lower_is_better=True, splits=["valid"], n_seeds=3)


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        (
            "en",
            [
                "**better** is better: loss −1 on average",
                "**worse** is worse: loss +1.003",
                "**open** is undecided at 3 seeds",
                "**single** is undecided at 1 seed:",
                "**equal** is equal with every seed",
                "no interval with a single seed",
                "**broken** has no figure to compare",
                "**broken** met NaN or an infinite number with 3 of 3 seeds",
                "**late** is not finished with 1 of 3 seeds",
                "**dropped** was dropped early: loss +2 after 4 steps",
                "**refused** was refused before anything ran: no such norm",
                "`model.feedforward.d_ff = 24`",
            ],
        ),
        ("zh", ["**better** 更好", "**worse** 更差", "未定", "被拒绝", "被提前淘汰", "非有限数"]),
    ],
)
def test_every_variant_is_accounted_for(language, sentences, tmp_path) -> None:
    text = markdown(small_study(tmp_path), SUMMARY, language, [])
    for sentence in sentences:
        assert sentence in text
    for one in ROWS:
        assert one.name in text


def test_a_given_question_is_the_title(tmp_path) -> None:
    study = small_study(tmp_path)
    assert markdown(study, SUMMARY, "en", []).startswith("# Which norm is best?\n")
    assert markdown(study, SUMMARY, "zh", []).startswith("# 哪种 norm 最好？\n")
    asked = small_study(tmp_path, question="Is it true?")
    assert markdown(asked, SUMMARY, "zh", []).startswith("# Is it true?\n")
    assert "loss on the validation split" in markdown(study, SUMMARY, "en", [])


def test_higher_is_better_where_it_is(tmp_path) -> None:
    accuracy = replace(SUMMARY, metric="accuracy", lower_is_better=False)
    text = markdown(small_study(tmp_path), accuracy, "en", [])
    assert "**worse** is better: accuracy +1.003" in text
    assert "**better** is worse: accuracy −1" in text
    assert "higher is better" in text


def test_unequal_variants_are_warned_of(tmp_path) -> None:
    study = small_study(tmp_path)
    vary = {"data.valid_fraction": ("0.1", "0.2"), "train.batching.seq_len": ("16", "32")}
    study = replace(study, settings=replace(study.settings, vary=vary))
    less = replace(SUMMARY, rows=[*ROWS[:2], replace(ROWS[2], tokens=50)])
    text = markdown(study, less, "en", [])
    assert "`data.valid_fraction` changes the data" in text
    assert "did not see the same number of tokens: 50 to 99." in text
    assert "看到的词元数不同：50 至 99" in markdown(study, less, "zh", [])
    assert "equally many" not in markdown(study, SUMMARY, "en", [])


def test_a_first_variant_without_figures_is_named(tmp_path) -> None:
    broken = replace(SUMMARY, rows=[ROWS[6], replace(ROWS[1], difference=None)])
    text = markdown(small_study(tmp_path), broken, "en", [])
    assert "**better** cannot be compared: **broken**, the first, has no figure." in text


def test_a_line_of_the_table() -> None:
    cells = [one.strip() for one in table_line(ROWS[1]).strip("|").split("|")]
    assert cells[0] == "better"
    assert cells[1].startswith("1.05 ± ")
    assert cells[2] == "−1"
    assert cells[7:] == ["1,234", "99", "2.0"]
    assert table_line(ROWS[6]).count("–") == 6
    assert "a&#124;b" in table_line(replace(ROWS[0], name="a|b"))


def test_both_languages_have_the_same_sentences() -> None:
    import string

    assert WORDS["en"].keys() == WORDS["zh"].keys()
    for key, text in WORDS["en"].items():
        fields = {name for _, name, _, _ in string.Formatter().parse(text) if name}
        other = {name for _, name, _, _ in string.Formatter().parse(WORDS["zh"][key]) if name}
        assert fields == other, key


class Seen(HTMLParser):
    """What a page has: its languages, its pictures, and what it would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.languages: list[str] = []
        self.pictures: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "main":
            self.languages.append(values["lang"] or "")
        source = values.get("src") or values.get("href") or ""
        (self.pictures if source.startswith("data:image/svg") else self.fetched).append(source)


def test_the_page_holds_both_languages_and_all_pictures(tmp_path) -> None:
    study = small_study(tmp_path, seeds=3)
    losses = {0: FIRST, 1: [1.0, 1.11, 1.04]}
    put(study, {(v, s + 1): figures(x) for v, row in losses.items() for s, x in enumerate(row)})
    for cell in study.cells:
        lines = [{"step": n, "loss": 3 - n / 9, "lr": 0.1, "grad_norm": 1.0} for n in (1, 2, 3)]
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (cell.folder / "metrics.jsonl").write_text(text)
    written = write_report(study, summarise(study))
    assert {file.name for file in written} == {*MARKDOWN.values(), "report.html", JSON, LATEX}
    assert all(file.is_file() for file in written)
    seen = Seen()
    seen.feed((study.folder / "report.html").read_text("utf-8"))
    assert seen.languages == ["en", "zh-CN"]
    assert len(seen.pictures) == 4  # two in each language
    assert not any(seen.fetched)
    found = json.loads((study.folder / JSON).read_text("utf-8"))
    assert found["rows"][1]["difference"]["interval"]["mean"] == pytest.approx(-1.0)
    assert found["rows"][1]["difference"]["verdict"] == "lower"


def test_models_that_have_barely_learnt_are_named_and_the_table_is_latex(tmp_path) -> None:
    values = ("layernorm", '{kind = "rmsnorm", eps = 1e-3}')
    study = small_study(tmp_path, *values, seeds=2)
    put(study, {(v, s): figures(1.0 + v + s / 9) for v in (0, 1) for s in (1, 2)})
    for cell in study.cells:
        losses = [4.0, 3.9] if cell.variant else [4.0, 2.0]
        lines = [json.dumps({"step": n, "loss": loss}) for n, loss in enumerate(losses, 1)]
        (cell.folder / "metrics.jsonl").write_text("\n".join(lines))
    write_report(study, summarise(study))
    for language, word in (("en", "has barely learnt"), ("zh", "几乎没有学到东西")):
        text = (study.folder / MARKDOWN[language]).read_text("utf-8")
        assert text.count(word) == 1
        assert "3.9" in text
    table = (study.folder / LATEX).read_text("utf-8")
    first, second = [line for line in table.splitlines() if line.startswith("norm=")]
    assert first.split(" & ")[:2] == ["norm=layernorm", "$1.167$"]
    assert first.split(" & ")[3:6] == ["--", "--", "--"]
    assert second.startswith("norm=rmsnorm & $2.167$ & [")
    assert "$+1$" in second


def test_json_has_no_numbers_that_json_has_not(tmp_path) -> None:
    study = small_study(tmp_path, seeds=1)
    put(study, {(0, 1): figures(1.0), (1, 1): figures(2.0)})
    write_report(study, summarise(study))

    def refuse(name: str) -> None:
        raise AssertionError(name)

    text = (study.folder / JSON).read_text("utf-8")
    found = json.loads(text, parse_constant=refuse)
    assert found["rows"][1]["difference"]["interval"]["low"] is None
    assert math.isinf(summarise(study).rows[1].difference.interval.low)


def test_user_text_is_escaped(tmp_path) -> None:
    text = page("<b>&", {"en": "a <script>alert(1)</script>", "zh": "b"}, tmp_path)
    assert "<script>" not in text
    assert "<title>&lt;b&gt;&amp;</title>" in text


def test_a_variant_that_was_refused_has_no_row(tmp_path) -> None:
    study = small_study(tmp_path)
    study = replace(study, variants=[*study.variants, Variant(name="x", fields={}, refused="no")])
    text = markdown(study, summarise(study), "en", [])
    assert "**x** was refused before anything ran: no" in text
    assert "| x |" not in text


def test_chinese_is_chinese() -> None:
    for key, text in WORDS["zh"].items():
        assert any("一" <= letter <= "鿿" for letter in text), key
        assert text != WORDS["en"][key]


def test_nothing_is_drawn_without_measurements(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    assert forest_picture(study, summarise(study), tmp_path) == ""
    assert curves_picture(study, tmp_path) == ""
    study.cells[0].folder.mkdir(parents=True)
    (study.cells[0].folder / "metrics.jsonl").write_text("")
    assert curves_picture(study, tmp_path) == ""


def test_curves_of_seeds_that_stopped_at_different_steps(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    put(study, {(v, s): figures(1.0 + v + s / 9) for v in (0, 1) for s in (1, 2)})
    for index, cell in enumerate(study.cells):
        lines = [
            {"step": n, "loss": 1 / n, "lr": 0.1, "grad_norm": 1.0} for n in range(1, 5 + index)
        ]
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (cell.folder / "metrics.jsonl").write_text(text)
    assert curves_picture(study, tmp_path) == "curves.svg"
    assert forest_picture(study, summarise(study), tmp_path) == "differences.svg"
    for name in ("curves", "differences"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in (tmp_path / f"{name}.svg").read_bytes()
