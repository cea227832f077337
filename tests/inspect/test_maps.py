"""Maps of attention: few are large, many are small with their mean, too many are chosen from."""

from itertools import pairwise

import pytest
import torch
from matplotlib.axes import Axes

from addnorm.inspect.look import AttentionMap
from addnorm.inspect.overview import MOST, Box, boxes_of, evenly, omitted, tiled
from addnorm.inspect.pictures import Lettering, blank_figure

PIECES = ("Das", "日", "$x")


def maps(layers: int, heads: int) -> list[AttentionMap]:
    return [
        AttentionMap(
            module=f"stack.blocks.{i}.attention",
            stack="stack",
            cross=False,
            layer=i,
            heads=tuple(range(heads)),
            weights=torch.rand(heads, 3, 3).softmax(-1),
            rows=PIECES,
            columns=PIECES,
        )
        for i in range(layers)
    ]


def drawn(box: Box) -> list[Axes]:
    [part] = blank_figure(box.width, box.height).subfigures(1, 1, squeeze=False)[0]
    box.draw(part)
    part.figure.canvas.draw()
    return [ax for ax in part.axes if ax.images]


def test_many_heads_are_small_and_their_mean_is_large() -> None:
    shown = maps(12, 12)
    small, large = boxes_of(shown, Lettering.of(PIECES), 1.0)
    [table] = drawn(small)
    image = torch.tensor(table.images[0].get_array().filled(torch.nan))
    assert image.shape == (12 * 4 - 1, 12 * 4 - 1)
    assert torch.equal(image[5 * 4 : 5 * 4 + 3, 7 * 4 : 7 * 4 + 3], shown[5].weights[7])
    assert image[3].isnan().all()
    assert [label.get_text() for label in table.get_yticklabels()] == [*map(str, range(12))]
    [mean] = drawn(large)
    expected = torch.stack([layer.weights for layer in shown]).mean((0, 1))
    torch.testing.assert_close(torch.tensor(mean.images[0].get_array().data), expected)
    assert small.width + large.width < 17
    assert omitted(shown) == ""


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (2, 3)])
def test_few_heads_are_large(layers: int, heads: int) -> None:
    shown = maps(layers, heads)
    [box] = boxes_of(shown, Lettering.of(PIECES), 1.0)
    axes = drawn(box)
    assert [ax.get_title(loc="left") for ax in axes] == [
        f"layer {i}, head {j}" for i in range(layers) for j in range(heads)
    ]
    last = torch.tensor(axes[-1].images[0].get_array().data)
    assert torch.equal(last, shown[-1].weights[-1])


def test_too_many_maps_are_chosen_evenly_with_a_note() -> None:
    assert evenly(MOST) == [*range(MOST)]
    chosen = evenly(48)
    assert len(chosen) == MOST
    assert (chosen[0], chosen[-1]) == (0, 47)
    assert {b - a for a, b in pairwise(chosen)} <= {3, 4}
    shown = maps(48, 2)
    assert omitted(shown) == (
        "16 of 48 layers and 2 of 2 heads are drawn small: `layers` and `heads` choose others."
    )
    small, _ = boxes_of(shown, Lettering.of(PIECES), 1.0)
    [table] = drawn(small)
    assert [label.get_text() for label in table.get_yticklabels()] == [*map(str, chosen)]
    assert torch.equal(tiled(shown[47:], [1]), shown[47].weights[1])


def test_a_long_text_has_readable_cells() -> None:
    long = tuple("abcdefghij" * 10)
    shown = AttentionMap(
        module="m", stack="stack", cross=False, layer=0, heads=(0, 1), rows=long, columns=long,
        weights=torch.rand(2, 100, 100).softmax(-1),
    )  # fmt: skip
    [box] = boxes_of([shown], Lettering.of(long), 1.0)
    assert (box.width > 11, box.height > 22) == (True, True)
    assert box.width < 17
