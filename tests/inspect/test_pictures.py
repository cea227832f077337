"""Plots: labels, values and missing characters in the figure."""

import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest
import torch
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib.figure import Figure
from matplotlib.font_manager import FontEntry, fontManager

from addnorm.errors import InputError
from addnorm.inspect.pictures import Lettering, Panel, attention_picture, position_picture


def panel(source: list[str], target: list[str], title: str = "") -> Panel:
    weights = torch.rand(len(target), len(source)).softmax(-1)
    return Panel(weights=weights, source=source, target=target, title=title)


def labels(figure: Figure, index: int = 0) -> tuple[list[str], list[str]]:
    ax = figure.axes[index]
    return (
        [label.get_text() for label in ax.get_xticklabels()],
        [label.get_text() for label in ax.get_yticklabels()],
    )


@pytest.fixture
def fonts_of_matplotlib_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [
        f for f in fontManager.ttflist if Path(matplotlib.get_data_path()) in Path(f.fname).parents
    ]
    monkeypatch.setattr(fontManager, "ttflist", own)


def test_rows_are_produced_pieces_and_columns_are_read_ones(tmp_path: Path) -> None:
    shown = panel(["the", " 5", "th", "\n"], ["5", "."])
    figure = attention_picture([shown], tmp_path / "new" / "a.png", "Where each word looked")
    assert labels(figure) == (["the", "␣5", "th", "⏎"], ["5", "."])
    assert torch.equal(torch.tensor(figure.axes[0].images[0].get_array()), shown.weights)
    rings = [tuple(map(int, line.get_xydata()[0])) for line in figure.axes[0].lines]
    assert rings == [(int(row.argmax()), i) for i, row in enumerate(shown.weights)]
    assert figure.get_suptitle() == "Where each word looked"
    assert (tmp_path / "new" / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
@pytest.mark.parametrize("n_panels", [1, 2, 3, 4, 7])
def test_panels_share_one_scale_and_one_size_of_cell(n_panels: int, tmp_path: Path) -> None:
    panels = [
        panel(["x"] * (i + 1), ["long piece"] * (2 * i + 1), f"no. {i}") for i in range(n_panels)
    ]
    figure = attention_picture(panels, tmp_path / "a.png")
    drawn = [ax for ax in figure.axes if ax.images and ax.get_visible()]
    assert [ax.get_title(loc="left") for ax in drawn] == [f"no. {i}" for i in range(n_panels)]
    assert len({ax.images[0].get_clim() for ax in drawn}) == 1
    cells = [ax.transData.transform((1, 1)) - ax.transData.transform((0, 0)) for ax in drawn]
    for across, down in cells:
        assert abs(across) == pytest.approx(abs(down), rel=0.01)
        assert across == pytest.approx(cells[0][0], rel=0.02)


def test_dollar_signs_are_drawn_literally(tmp_path: Path) -> None:
    figure = attention_picture(
        [panel(["$x", "^$"], ["\\frac$"])], tmp_path / "a.svg", "$\\nonsense$"
    )
    assert labels(figure) == (["$x", "^$"], ["\\frac$"])


@pytest.mark.usefixtures("fonts_of_matplotlib_alone")
def test_characters_without_a_font_become_code_points_with_a_note(tmp_path: Path) -> None:
    figure = attention_picture(
        [panel(["March", "日"], ["月 ", "\u200f", "3"], "三月")], tmp_path / "a.png", "三"
    )
    assert labels(figure) == (["March", "‹65E5›"], ["‹6708›␣", "‹200F›", "3"])
    assert figure.get_suptitle() == "‹4E09›"
    assert "code point" in figure.get_supxlabel()


@pytest.mark.usefixtures("fonts_of_matplotlib_alone")
def test_an_installed_font_with_the_characters_is_used(tmp_path: Path) -> None:
    fontManager.ttflist.append(_font_with("月日", tmp_path / "moon.ttf"))
    lettering = Lettering.of(["März", "3月5日", "星"])
    assert lettering.families == ("DejaVu Sans", "Moon Sans")
    assert lettering.missing == {"星"}
    assert lettering.line("3月5日星") == "3月5日‹661F›"


def test_latin_needs_no_other_font() -> None:
    assert Lettering.of(["März ␣ 5"]) == Lettering(("DejaVu Sans",), frozenset())


def test_a_position_picture_shows_encodings_and_their_products(tmp_path: Path) -> None:
    table = torch.randn(7, 4)
    figure = position_picture(table, tmp_path / "p.pdf", "Learned")
    encoding, products = (ax.images[0].get_array() for ax in figure.axes[:2])
    assert torch.equal(torch.tensor(encoding), table)
    torch.testing.assert_close(torch.tensor(products), table @ table.T)
    assert figure.axes[1].images[0].get_clim()[0] == -figure.axes[1].images[0].get_clim()[1]
    assert (tmp_path / "p.pdf").read_bytes().startswith(b"%PDF")


def test_weights_still_being_trained_and_in_half_precision_can_be_drawn() -> None:
    weights = torch.eye(2, dtype=torch.bfloat16, requires_grad=True)
    shown = Panel(weights=weights, source=["a", "b"], target=["c", "d"])
    assert labels(attention_picture([shown])) == (["a", "b"], ["c", "d"])
    assert position_picture(weights).axes
    assert position_picture(torch.zeros(1, 2)).axes


def test_pieces_must_fit_the_weights() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\) do not fit 2 target and 2 source"):
        Panel(weights=torch.rand(2, 3), source=["a", "b"], target=["c", "d"])
    with pytest.raises(ValueError, match="do not fit 0 target"):
        Panel(weights=torch.rand(0, 1), source=["a"], target=[])
    with pytest.raises(ValueError, match="at least one panel"):
        attention_picture([])


def test_an_unknown_suffix_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.txt: end the name in \.png"):
        attention_picture([panel(["a"], ["b"])], tmp_path / "a.txt")


@pytest.mark.long
def test_without_matplotlib_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "matplotlib").mkdir()
    (tmp_path / "matplotlib" / "__init__.py").write_text("raise ImportError('not installed')")
    done = subprocess.run(
        [sys.executable, "-c", "import addnorm.inspect.pictures"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert "InputError: Pictures need matplotlib: pip install 'addnorm[plots]'" in done.stderr


def _font_with(characters: str, path: Path) -> FontEntry:
    names = [".notdef", *(f"g{ord(c):X}" for c in characters)]
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap({ord(c): f"g{ord(c):X}" for c in characters})
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    pen.lineTo((0, 700))
    pen.lineTo((700, 700))
    pen.closePath()
    builder.setupGlyf(dict.fromkeys(names, pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (800, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Moon Sans", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    return FontEntry(fname=str(path), name="Moon Sans", style="normal", weight=400)
