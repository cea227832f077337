"""Pictures without a ground of their own, whose words can be read on white and on black."""

from typing import Any

from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.spines import Spine
from matplotlib.text import Text

GREY = "#757a82"
"""4.3 to 1 on white, 4.2 to 1 on the dark pages."""

DARK = 0.35
"""The brightness below which a colour cannot be read on black."""


def on_any_ground(figure: Figure) -> Figure:
    """Make the ground of a figure transparent, its dark words and lines grey, its grid faint.

    What stands on an image keeps its colour.
    """
    figure.canvas.draw()  # which makes the words along the axes
    figure.patch.set_alpha(0)
    for axes in figure.axes:
        axes.patch.set_alpha(0)
        if (legend := axes.get_legend()) is not None:
            legend.get_frame().set_alpha(0)
    things: list[Any] = [*figure.findobj(Text), *figure.findobj(Line2D), *figure.findobj(Spine)]
    for thing in things:
        recolour(thing)
    return figure


def recolour(thing: Any) -> None:
    """Make a word, a line or an edge grey if it is dark and does not stand on an image."""
    axes = thing.axes
    if axes is not None and axes.images and thing in {*axes.texts, *axes.lines}:
        return
    colour = thing.get_edgecolor() if isinstance(thing, Spine) else thing.get_color()
    if isinstance(thing, Line2D) and is_pale(colour) and not (axes and axes.images):
        thing.set(color=GREY, alpha=0.25)
    elif is_dark(colour):
        thing.set_edgecolor(GREY) if isinstance(thing, Spine) else thing.set_color(GREY)


def is_pale(colour: Any) -> bool:
    """Whether a colour is a light grey, as that of a grid is."""
    *parts, alpha = to_rgba(colour)
    return alpha > 0 and min(parts) > 0.8 and max(parts) - min(parts) < 0.1


def is_dark(colour: Any) -> bool:
    """Whether a colour is a dark grey or black."""
    *parts, alpha = to_rgba(colour)
    return alpha > 0 and max(parts) < DARK and max(parts) - min(parts) < DARK / 2
