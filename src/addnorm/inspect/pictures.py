"""Pictures of attention weights and positions, and the style of all pictures; extra `plots`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from addnorm.atomic import atomic_file, make_folder
from addnorm.errors import InputError

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize, PowerNorm
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.font_manager import FontEntry, FontProperties, fontManager
    from matplotlib.ft2font import FT2Font
    from matplotlib.image import AxesImage
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
except ImportError as error:
    raise InputError("Pictures need matplotlib: pip install 'addnorm[plots]'.") from error

INK, FAINT, GRID = "#1f2933", "#7b8794", "#e4e9ee"
SHARE = LinearSegmentedColormap.from_list(
    "share", ["#f7f9fb", "#cfe3ee", "#79b4cf", "#2b7ba6", "#0f4a76", "#08263f"]
)
SIGNED = LinearSegmentedColormap.from_list(
    "signed", ["#7a2a12", "#d0714a", "#f2cdb8", "#fafafa", "#b9d7e6", "#3f8db5", "#0d3f66"]
)
SHARES = PowerNorm(0.5, 0, 1)
"""A scale for many maps at once; its square root makes small shares visible next to large ones."""

SHARE_TICKS = {0: "0", 0.01: "1 %", 0.05: "5 %", 0.2: "20 %", 0.5: "50 %", 1: "100 %"}
WHITE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥"})
"""Visible symbols for white space in labels."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """The attention of one sentence: a row for each target token, a column for each source token.

    Raises `ValueError` if the numbers of tokens do not match the shape of the weights.
    """

    weights: Float[Tensor, "target source"]
    source: Sequence[str]
    target: Sequence[str]
    title: str = ""

    def __post_init__(self) -> None:
        n_target, n_source = len(self.target), len(self.source)
        if tuple(self.weights.shape) != (n_target, n_source) or 0 in (n_target, n_source):
            raise ValueError(
                f"weights of shape {tuple(self.weights.shape)} do not fit "
                f"{n_target} target and {n_source} source pieces"
            )


def attention_picture(
    panels: Sequence[Panel], path: Path | None = None, title: str = "", columns: int = 3
) -> Figure:
    """Plot a heat map of attention weights for each sentence, on a common scale.

    A ring marks the largest weight of each row. Characters missing from all installed fonts are
    shown as code points, with a note below the figure. `path` ends in .png, .pdf or .svg.
    """
    if not panels:
        raise ValueError("attention_picture needs at least one panel, got 0")
    columns = min(columns, len(panels))
    rows = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    widths = [max(len(p.source) for p in panels[i::columns]) for i in range(columns)]
    heights = [max(len(p.target) for p in row) for row in rows]
    cell = min(0.34, max(0.15, 13 / sum(widths)))
    pieces = [piece for p in panels for piece in (*p.source, *p.target)]
    lettering = Lettering.of([title, *pieces, *(p.title for p in panels)])
    left = room_for(lettering, (piece for p in panels for piece in p.target))
    above = room_for(lettering, (piece for p in panels for piece in p.source))
    figure = blank_figure(
        cell * sum(widths) + left * columns + 1.1,
        cell * sum(heights) + (above + 0.35) * len(rows) + 0.6,
    )
    grid = figure.subplots(
        len(rows), columns, squeeze=False, width_ratios=widths, height_ratios=heights
    )
    brightest = max(float(p.weights.detach().max()) for p in panels)
    axes: list[Axes] = list(grid.flat)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    images = [
        heat_map(ax, panel, lettering, Normalize(0, brightest), size=min(9.0, cell * 42))
        for ax, panel in zip(axes, panels, strict=False)
    ]
    for index, ax in enumerate(axes):  # cells have the same size in all panels
        ax.set_xlim(-0.5, widths[index % columns] - 0.5)
        ax.set_ylim(heights[index // columns] - 0.5, -0.5)
        ax.set_anchor("NW")
    _scale(figure, images[0], axes, "share of the row's attention")
    return finished(figure, title, lettering, path)


def position_picture(
    table: Float[Tensor, "positions d_model"], path: Path | None = None, title: str = ""
) -> Figure:
    """Plot the position encodings, and next to them their pairwise dot products."""
    table = table.detach().cpu().float()
    products = table @ table.T
    height = 4.2
    figure = blank_figure(2 * height + 2.2, height + 0.6)
    left, right = figure.subplots(1, 2)
    for ax, values, name, across in (
        (left, table, "Encoding", "dimension"),
        (right, products, "Dot product of two positions", "position"),
    ):
        largest = float(values.abs().max()) or 1.0
        scale = Normalize(-largest, largest)
        image = ax.imshow(
            values.numpy(), cmap=SIGNED, norm=scale, aspect="auto", interpolation="nearest"
        )
        ax.set_title(name, color=INK, fontsize=10, loc="left")
        ax.set_xlabel(across, color=INK, fontsize=9)
        ax.set_ylabel("position", color=INK, fontsize=9)
        plain_axes(ax, 8, grid=False)
        _scale(figure, image, [ax], "")
    return finished(figure, title, Lettering.of([title]), path)


@dataclass(frozen=True)
class Lettering:
    """The fonts needed for some texts, and the characters that no installed font has."""

    families: tuple[str, ...]
    missing: frozenset[str]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Lettering":
        """matplotlib's default font, plus installed fonts that cover the characters it lacks."""
        families = ["DejaVu Sans"]
        entries = _upright()
        lacking = {char for text in texts for char in text if char.isprintable()}
        lacking -= _drawn_by(next(e.fname for e in entries if e.name == families[0]))
        while lacking:
            best = max(entries, key=lambda entry: len(lacking & _drawn_by(entry.fname)))
            if not lacking & _drawn_by(best.fname):
                break
            families.append(best.name)
            lacking -= _drawn_by(best.fname)
        return cls(tuple(families), frozenset(lacking))

    def font(self, size: float) -> FontProperties:
        """The fonts at a given size in points."""
        return FontProperties(family=list(self.families), size=size)

    def line(self, text: str) -> str:
        """Replace every character that cannot be drawn by its ‹code point›."""
        drawn = (char.isprintable() and char not in self.missing for char in text)
        return "".join(
            char if ok else f"‹{ord(char):X}›" for char, ok in zip(text, drawn, strict=True)
        )

    def piece(self, piece: str) -> str:
        """Like `line`, for a token, with visible white space."""
        return self.line(piece.translate(WHITE))


def _upright() -> list[FontEntry]:
    """Fonts suitable for labels; "Last Resort" has only boxes, colour fonts do not scale."""
    plain = (
        entry
        for entry in fontManager.ttflist
        if entry.style == "normal"
        and not entry.name.startswith("Last Resort")
        and "Color" not in entry.name
    )
    return sorted(
        plain, key=lambda e: ("Sans" not in e.name, e.weight not in (400, "normal"), e.name)
    )


@cache
def _drawn_by(font_file: str) -> frozenset[str]:
    return frozenset(map(chr, FT2Font(font_file).get_charmap()))


def room_for(lettering: Lettering, pieces: Iterable[str]) -> float:
    """The inches that the longest of these labels needs."""
    return 0.35 + 0.085 * max(len(lettering.piece(piece)) for piece in pieces)


def heat_map(
    ax: Axes, panel: Panel, lettering: Lettering, norm: Normalize, size: float
) -> AxesImage:
    """Draw the attention of a sentence with letters of `size` points, coloured by `norm`."""
    weights = panel.weights.detach().cpu().float()
    image = ax.imshow(weights.numpy(), cmap=SHARE, norm=norm, interpolation="nearest")
    for row, (weight, column) in enumerate(zip(*weights.max(1), strict=True)):
        ring = "white" if norm(float(weight)) > 0.4 else INK
        ax.plot(int(column), row, "o", mfc="none", mec=ring, mew=0.9, ms=size * 0.5)
    text = style(lettering.font(size), INK)
    source = [lettering.piece(piece) for piece in panel.source]
    upright = max(map(len, source)) <= 2
    turned = style(lettering.font(size), INK, rotation=55, rotation_mode="anchor", ha="left")
    ax.set_xticks(range(len(source)), source, **(text if upright else turned))
    ax.set_yticks(range(len(panel.target)), [lettering.piece(p) for p in panel.target], **text)
    ax.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0, pad=3)
    ax.set_xticks([i - 0.5 for i in range(1, len(source))], minor=True)
    ax.set_yticks([i - 0.5 for i in range(1, len(panel.target))], minor=True)
    ax.grid(which="minor", color="white", linewidth=0.8)
    ax.tick_params(which="minor", length=0)
    ax.spines[:].set_visible(False)
    if panel.title:
        ax.set_title(lettering.line(panel.title), loc="left", **style(lettering.font(9), FAINT))
    return image


def style(font: FontProperties, color: str, **more: object) -> dict[str, Any]:
    """Text properties, with dollar signs taken literally."""
    return {"fontproperties": font, "color": color, "parse_math": False, **more}


def blank_figure(width: float, height: float) -> Figure:
    """An empty white figure of this size in inches, with constrained layout."""
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    return Figure(figsize=(width, height), layout=layout, facecolor="white")


def plain_axes(ax: Axes, size: float, *, grid: bool = True) -> None:
    """Style axes: no frame, small faint tick labels, and by default a light grid."""
    ax.tick_params(which="both", colors=FAINT, labelsize=size, length=2)
    ax.spines[:].set_visible(False)
    if grid:
        ax.grid(color=GRID, lw=0.6)


def _scale(figure: Figure, image: AxesImage, axes: Sequence[Axes], label: str) -> None:
    height = figure.get_size_inches()[1]
    bar = figure.colorbar(
        image, ax=axes, shrink=min(0.6, 2.4 / height), aspect=24, pad=0.02, panchor=False
    )
    bar.set_label(label, color=INK, fontsize=8)
    bar.ax.tick_params(colors=FAINT, labelsize=7, length=2)
    bar.outline.set_visible(False)


def shares_scale(part: SubFigure) -> None:
    """Draw the colour scale of `SHARES` in a part of a figure, two inches high."""
    width, height = part.bbox.width / part.dpi, part.bbox.height / part.dpi
    high = min(2.0, height - 0.6)
    ax = part.add_axes((0.2 / width, 1 - (high + 0.45) / height, 0.14 / width, high / height))
    bar = part.colorbar(ScalarMappable(SHARES, SHARE), cax=ax)
    bar.set_ticks([*SHARE_TICKS], labels=[*SHARE_TICKS.values()])
    bar.set_label("share of the row's attention", color=INK, fontsize=8)
    ax.tick_params(colors=FAINT, labelsize=7, length=2)
    bar.outline.set_visible(False)


def log_scale(ax: Axes) -> None:
    """Give the drawn curves a logarithmic vertical scale, with plain numbers."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    subs = (1.0,) if high > 300 * low else (1.0, 2.0, 5.0) if high > 4 * low else range(1, 10)
    ax.yaxis.set_major_locator(LogLocator(subs=[*subs]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_locator(NullLocator())


def finished(
    figure: Figure,
    title: str,
    lettering: Lettering,
    path: Path | None,
    notes: Sequence[str] = (),
) -> Figure:
    """Add the title and the notes to a figure, save it if a path is given, and return it.

    One more note explains characters that no font has.
    """
    if title:
        figure.suptitle(lettering.line(title), **style(lettering.font(12), INK))
    if lettering.missing:
        explanation = "‹…› is a code point: no installed font draws it (Noto Sans CJK draws most)."
        notes = [*notes, explanation]
    if notes:
        figure.supxlabel("\n".join(map(lettering.line, notes)), **style(lettering.font(7), FAINT))
    if path is not None:
        kinds = figure.canvas.get_supported_filetypes()
        if path.suffix[1:].lower() not in kinds:
            raise InputError(f"Cannot draw {path}: end the name in .png, .pdf or .svg.")
        try:
            make_folder(path.parent)
            with atomic_file(path) as partial:
                kind = path.suffix[1:].lower()
                metadata = {"Date": None} if kind == "svg" else None
                with rc_context({"svg.hashsalt": path.name}):  # the same picture, the same bytes
                    figure.savefig(partial, dpi=160, format=kind, metadata=metadata)
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}") from error
    return figure
