"""The picture of a look, judged by its axes: every number in it is the model's own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from tests.inspect.test_capture import Silent
from tests.runs.tiny import train_tiny
from torch import Tensor

from addnorm.errors import InputError
from addnorm.inspect.look import Look, look
from addnorm.inspect.overview import overview
from addnorm.runs.run import Run

RunOf = Callable[[str], Path]
pytestmark = pytest.mark.usefixtures("types_unchecked")


def images(figure: Figure) -> list[np.ndarray]:
    return [np.asarray(ax.images[0].get_array()) for ax in figure.axes if ax.images]


def titled(figure: FigureBase, title: str) -> Axes:
    [ax] = [ax for ax in figure.axes if title in ax.get_title(loc="left")]
    return ax


def titles(figure: FigureBase) -> Iterator[str]:
    """The headings of all parts."""
    for part in figure.subfigs:
        yield part.get_suptitle()
        yield from titles(part)


def in_float64(run: Run, text: str) -> tuple[Tensor, Tensor]:
    """The weights of the first layer's attention, and the size of what it puts out, by hand."""
    weights = {name: weight.double() for name, weight in run.model.state_dict().items()}
    [ids] = run.tokenizers.source.encode_batch([text])
    d, n = run.recipe.model.d_model, len(ids)
    angles = torch.arange(n)[:, None] / 10000.0 ** (torch.arange(0, d, 2).double() / d)
    waves = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
    x = weights["embed.tokens.weight"][ids] * d**0.5 + waves

    def heads(name: str) -> Tensor:
        path = f"stack.blocks.0.attention.{name}_proj"
        y = x @ weights[f"{path}.weight"].T + weights[f"{path}.bias"]
        return y.unflatten(1, (2, d // 2)).transpose(0, 1)

    scores = heads("q") @ heads("k").mT / (d // 2) ** 0.5
    scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
    mixed = (scores.softmax(-1) @ heads("v")).transpose(0, 1).flatten(1)
    path = "stack.blocks.0.attention.out_proj"
    out = mixed @ weights[f"{path}.weight"].T + weights[f"{path}.bias"]
    return scores.softmax(-1), out.square().mean().sqrt()


def test_the_picture_shows_the_weights_of_the_model(run_of: RunOf) -> None:
    run = Run.open(run_of("language"))
    figure = overview(look(run, "To be, or"))
    weights, size = in_float64(run, "To be, or")
    first, second = images(figure)
    np.testing.assert_allclose(first, weights[0], atol=1e-5)
    np.testing.assert_allclose(second, weights[1], atol=1e-5)
    [line] = [
        one for one in titled(figure, "size by layer").lines if one.get_label() == "self-attention"
    ]
    assert list(line.get_ydata()) == [pytest.approx(float(size), rel=1e-5)]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        *("T", "o", "␣", "b", "e", ",", "␣", "o", "r"),
    ]
    assert figure.get_suptitle() == "run: “To be, or”"
    assert "nats a token" in titled(figure, "gradient by layer").get_title(loc="left")
    assert titled(figure, "similarity of two positions").lines
    assert titled(figure, "mean share of attention").lines


@pytest.mark.long
def test_a_translator_has_three_kinds_of_attention(run_of: RunOf, tmp_path: Path) -> None:
    result = look(Run.open(run_of("translation")), "a red cat", target="eine katze")
    figure = overview(result, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    shown = [image.shape for image in images(figure)]
    assert shown == [(4, 4)] * 2 + [(3, 3)] * 2 + [(3, 4)] * 2
    expected = [weights for attention in result.attention for weights in attention.weights]
    for image, weights in zip(images(figure), expected, strict=True):
        np.testing.assert_allclose(image, weights, atol=1e-6)
    headings = [title for title in titles(figure) if title]
    assert headings == [
        "encoder: self-attention",
        "decoder: self-attention",
        "cross-attention of each produced piece",
    ]
    assert figure.get_suptitle() == "run: “a red cat” → “eine katze”"


@pytest.mark.parametrize("view", ["attention", "positions", "depth", "gradients"])
def test_each_view_can_be_drawn_separately(view: str, run_of: RunOf) -> None:
    figure = overview(look(Run.open(run_of("tagging")), "Anna lives in Bonn", views=[view]))
    assert bool(images(figure)) == (view == "attention")
    n_plots = {"attention": 0, "positions": 2, "depth": 1, "gradients": 1}[view]
    assert sum(bool(ax.get_title(loc="left")) and not ax.images for ax in figure.axes) == n_plots


def test_missing_views_are_explained_in_notes(run_of: RunOf, tmp_path: Path) -> None:
    """Layers without attention, a core that hides its weights: the rest is drawn, with a note."""
    cell = {"model.attention": '{ kind = "recurrent", cell = "gru" }', "model.position": "none"}
    without = Run.open(train_tiny(tmp_path, "language", **cell))
    why = "no layer has attention to draw: the mixer is recurrent"
    figure = overview(look(without, "To\nbe"))
    assert why in figure.get_supxlabel().replace("\n", " ")
    assert "positions of the kind 'none' have no effect" in figure.get_supxlabel()
    assert images(figure) == []
    assert figure.get_suptitle() == "run: “To be”"
    lines = [line.get_label() for line in titled(figure, "size by layer").lines]
    assert lines == ["residual stream", "recurrent", "feed-forward"]
    with pytest.raises(InputError, match=f"{why}: look at depth or gradients"):
        look(without, "To be", views=["attention"])
    hiding = Run.open(run_of("language"))
    hiding.model.stack.blocks[0].attention.core = Silent()
    result = look(hiding, "To be")
    assert "no attention is drawn: stack.blocks.0.attention.core (Silent)" in result.notes[0]
    assert "Silent" in overview(result).get_supxlabel()
    with pytest.raises(InputError, match=r"attention.core \(Silent\) does not show its weights"):
        look(hiding, "To be", views=["attention"])
    with pytest.raises(InputError, match="run: nothing to draw; why"):
        overview(Look(run="run", text="a", prepared=result.prepared, notes=("why",)))
