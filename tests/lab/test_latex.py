"""LaTeX tables: every text is printed as it is, and numbers are those of mathematics."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.lab import latex
from addnorm.lab.statistics import Interval

SPECIAL = r"\{}$&#%_^~<>|\"[]"


@given(st.text(alphabet=SPECIAL + "ab\n\t中−±…–", max_size=30))
def test_escaped_text_has_no_commands_and_comes_back(text: str) -> None:
    shown = latex.escaped(text)
    back, rest = "", shown
    inverse = {form: letter for letter, form in latex.ESCAPES.items()}
    while rest:
        form = next((f for f in sorted(inverse, key=len, reverse=True) if rest.startswith(f)), "")
        if not form:
            assert rest[0] not in SPECIAL, shown
        back += inverse.get(form, rest[0])
        rest = rest[len(form) or 1 :]
    assert back == text.replace("\n", " ").replace("\t", " ")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1.23456, "$1.235$"),
        (-0.5, "$-0.5$"),
        (1e-7, r"$1 \cdot 10^{-7}$"),
        (2.5e12, r"$2.5 \cdot 10^{12}$"),
        (math.inf, r"$\infty$"),
        (math.nan, "--"),
        (None, "--"),
        (0.0, "$0$"),
    ],
)
def test_numbers(value: float | None, shown: str) -> None:
    assert latex.number(value) == shown


def test_signs_intervals_and_p_values() -> None:
    assert latex.number(0.25, sign=True) == "$+0.25$"
    assert latex.interval(Interval(mean=0, low=-1, high=2, n=3), sign=True) == "[$-1$, $+2$]"
    assert latex.interval(Interval(mean=0, low=-math.inf, high=math.inf, n=1), sign=True) == "--"
    assert (latex.p(0.0123), latex.p(1e-9)) == ("$0.012$", "$< 0.001$")


def test_a_table_has_the_rules_and_as_many_cells_everywhere() -> None:
    text = latex.table(["a", "b", "c"], [["x", "1", "2"], ["[0, 1]", "3", "4"]], "two rows")
    assert text.startswith("% two rows; needs \\usepackage{booktabs}\n\\begin{tabular}{lrr}\n")
    assert re.findall(r"\\(toprule|midrule|bottomrule)\n", text) == [
        "toprule",
        "midrule",
        "bottomrule",
    ]
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert [line.count("&") for line in rows] == [2, 2, 2]
    assert rows[2].startswith("{}[0, 1]")  # which \\ would take for its argument
