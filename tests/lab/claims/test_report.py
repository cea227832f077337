"""The report of the claims: both languages, every figure, and what is missing is said."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from addnorm.lab.claims import laboratory
from addnorm.lab.claims.claim import Panel, Results, Row
from addnorm.lab.claims.laboratory import jobs_of, measured
from addnorm.lab.claims.report import (
    WORDS,
    claim_page,
    overview,
    picture_name,
    table,
    write_claims_report,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All of claim 9, and a part of claim 2."""
    for job in jobs_of(["rmsnorm"], "quick"):
        norm, seed = job.settings.get("norm"), job.seed
        rows = [Row("loss", "loss", norm or "", 1.5 + seed / 1000)] if norm else []
        for name, time in (("layernorm", 10.0), ("rmsnorm", 12.0)):
            if "d" in job.settings:
                rows.append(Row("time", name, job.settings["d"], time + seed / 10))
        laboratory._save(tmp_path, job, rows)
    some = jobs_of(["word_order"], "quick")[0]
    laboratory._save(tmp_path, some, [Row("accuracy", "accuracy", "encoder without", 50.5)])
    return tmp_path


def test_a_page_has_every_figure_and_the_verdict(folder: Path) -> None:
    page = claim_page("rmsnorm", measured(folder, "rmsnorm"), "en")
    assert "## Generated data: refuted" in page
    assert "- **supported** After equal steps RMSNorm's loss is 0 nats above" in page
    assert "- **refuted** A step with RMSNorm takes 1.2 of the time" in page
    assert "| loss | 1.502 ± 0.0025 | 1.502 ± 0.0025 |" in page
    assert "| rmsnorm | 12.2 ± 0.25 | 12.2 ± 0.25 |" in page
    assert "3 seeds (quick)" in page


def test_the_chinese_page_is_chinese(folder: Path) -> None:
    page = claim_page("rmsnorm", measured(folder, "rmsnorm"), "zh")
    assert "## 生成的数据：被否定" in page
    assert "**成立** 相同步数后" in page
    assert "supported" not in page


def test_cells_that_are_missing_leave_a_claim_undecided(folder: Path) -> None:
    page = claim_page("word_order", measured(folder, "word_order"), "en")
    assert "**undecided** 26 cells are not measured yet." in page
    assert "| accuracy | 50.5 |" in page


def test_the_overview_lists_all_ten(folder: Path) -> None:
    found = {name: measured(folder, name) for name in ("word_order", "rmsnorm")}
    lines = overview(found, "en").splitlines()
    assert sum(line.startswith("| ") and "|" in line[4:] for line in lines) >= 10
    assert sum("not measured |" in line for line in lines) == 8
    [line] = [line for line in lines if "RMSNorm and LayerNorm" in line]
    assert "(rmsnorm.md) | Generated data | quick | 3 | **refuted** (1 of 2 parts" in line


class Pictures(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for key, value in attrs if (tag, key) == ("img", "src")]


def test_all_files_are_written_and_the_page_needs_no_other(folder: Path) -> None:
    written = write_claims_report(folder)
    assert {file.name for file in written} == {
        "word_order.md", "word_order.zh-CN.md", "rmsnorm.md", "rmsnorm.zh-CN.md", "README.md",
        "README.zh-CN.md", "report.html",
    }  # fmt: skip
    for name in ("word_order", "rmsnorm"):
        for ending in (".svg", ".png"):
            assert (folder / f"{name}{ending}").stat().st_size > 1000
    pictures = Pictures()
    pictures.feed((folder / "report.html").read_text("utf-8"))
    assert len(pictures.sources) == 4
    assert all(source.startswith("data:image/svg+xml;base64,") for source in pictures.sources)


def test_pictures_of_natural_language_have_names_of_their_own() -> None:
    assert picture_name("heads", "chain") == "heads"
    assert picture_name("heads", "tinyshakespeare") == "heads-tinyshakespeare"


def test_a_wide_table_shows_a_few_values() -> None:
    rows = [(1, Row("loss", "loss", x, 1.0)) for x in range(1, 33)]
    panel = Panel(("layer", ""), ("loss", ""))
    head = table(Results(rows), "loss", panel, "en")[2]
    assert head == "| layer | 1 | 5 | 9 | 13 | 17 | 20 | 24 | 28 | 32 |"
    head = table(Results(rows[:13]), "loss", panel, "en")[2]
    assert head.count("|") == 13 + 2


def test_a_single_value_has_whiskers_and_long_labels_are_wrapped() -> None:
    from addnorm.inspect.pictures import blank_figure
    from addnorm.lab.claims.report import _lines

    panel = Panel(("x", "x"), ("y " * 40, "y"))
    for xs, n_bands, n_whiskers in (((12,), 0, 2), ((12, 24), 2, 0)):
        results = Results(
            (seed, Row("loss", name, x, x + seed / 10))
            for seed in (1, 2, 3)
            for x in xs
            for name in ("post", "pre")
        )
        ax = blank_figure(4, 3).subplots()
        _lines(ax, results, "loss", panel, {"post": "red", "pre": "blue"})
        kinds = [type(one).__name__ for one in ax.collections]
        assert kinds.count("FillBetweenPolyCollection") == n_bands
        assert kinds.count("LineCollection") == n_whiskers


def test_both_languages_have_the_same_fields() -> None:
    assert WORDS["en"].keys() == WORDS["zh"].keys()
    for key, sentence in WORDS["en"].items():
        places = [sorted(re.findall(r"{\w*}", one)) for one in (sentence, WORDS["zh"][key])]
        assert places[0] == places[1], key
