"""A look: what is kept, what a model does not have, and what is refused."""

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from addnorm.cli.main import status
from addnorm.errors import InputError
from addnorm.inspect.look import MOST_TOKENS, VIEWS, look
from addnorm.runs.run import Run

RunOf = Callable[[str], Path]
pytestmark = pytest.mark.usefixtures("types_unchecked")


@pytest.mark.parametrize("view", VIEWS)
def test_a_single_view_equals_that_of_all_views(view: str, run_of: RunOf) -> None:
    run = Run.open(run_of("language"), dtype="float64")
    every, single = look(run, "To be").numbers(), look(run, "To be", views=[view]).numbers()
    fields = {"positions": ["positions", "attention_by_distance"], "gradients": ["gradients"]}
    shown = fields.get(view, [view])
    for name in ("attention", "attention_by_distance", "positions", "depth", "gradients"):
        assert every[name]
        assert single[name] == (every[name] if name in shown else type(single[name])())
    assert json.loads(json.dumps(every))["tokens"]["stack"] == ["T", "o", " ", "b", "e"]


def test_the_mean_attention_by_distance(run_of: RunOf) -> None:
    run = Run.open(run_of("language"), dtype="float64")
    result = look(run, "To be", views=["attention", "positions"])
    [shown], [line] = result.attention, [*result.by_distance[0].lines.values()]
    here = float(shown.weights.mean(0).diagonal().mean())
    assert line[-1] == pytest.approx(here)
    assert result.by_distance[0].offsets[-1] == 0


@pytest.mark.parametrize("bits", ["int8", pytest.param("int4", marks=pytest.mark.long)])
def test_a_quantised_model_has_no_gradients(bits: str, run_of: RunOf, tmp_path: Path) -> None:
    assert (
        status(["quantize", str(run_of("language")), "--to", bits, "--out", f"{tmp_path}/q"]) == 0
    )
    result = look(Run.open(tmp_path / "q"), "To be")
    plain = look(Run.open(run_of("language")), "To be")
    assert result.attention[0].weights.shape == plain.attention[0].weights.shape
    assert [curve.what for curve in result.positions] == [curve.what for curve in plain.positions]
    assert not result.gradients
    assert any("no gradients of a quantised model" in note for note in result.notes)


def test_layers_and_heads_can_be_selected(run_of: RunOf) -> None:
    run = Run.open(run_of("translation"), dtype="float64")
    every, single = (look(run, "a red cat", target="eine", heads=heads) for heads in ([], [1]))
    names = ["encoder.blocks.0.attention", "decoder.blocks.0.attention"]
    assert [a.module for a in every.attention] == [*names, "decoder.blocks.0.cross_attention"]
    for a, b in zip(every.attention, single.attention, strict=True):
        assert (a.heads, b.heads) == ((0, 1), (1,))
        assert torch.equal(a.weights[1:], b.weights)
        assert (a.rows, a.columns) == (b.rows, b.columns)
    cross = every.attention[2]
    assert cross.columns == ("a", "red", "cat", "<eos>")
    assert cross.rows == ("eine", "<eos>")
    for what, number in (
        ({"layers": [1]}, "no layer 1: this model has 0 to 0"),
        (
            {"heads": [0, 2]},
            "no head 2: this model has 0 to 1",
        ),
    ):
        with pytest.raises(InputError, match=number):
            look(run, "a red cat", target="eine", **what)


def test_a_long_text_is_rejected_with_the_views_that_fit(run_of: RunOf) -> None:
    run = Run.open(run_of("language"))
    text = "be " * 40
    with pytest.raises(InputError, match=r"120 tokens .* up to 100.* positions, depth, gradients$"):
        look(run, text)
    assert look(run, text, views=["positions", "depth"]).depth
    with pytest.raises(InputError, match=r"up to 500.* choose other views: depth, gradients$"):
        look(run, "be " * 170, views=["positions"])
    assert MOST_TOKENS["attention"] < 121


@pytest.mark.long
@pytest.mark.parametrize("kind", ["language", pytest.param("translation", marks=pytest.mark.slow)])
def test_looks_in_threads_see_what_each_sees_alone(kind: str, run_of: RunOf) -> None:
    run, texts = Run.open(run_of(kind)), ["a red cat"[:n] for n in (1, 3, 5, 9)]
    alone, written = [look(run, text).numbers() for text in texts], run.generate("a", beams=1)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as threads:
            looks = threads.map(lambda text: look(run, text).numbers(), texts)
            beside = threads.map(lambda _: run.generate("a", beams=1), texts)
            assert [*looks] == alone
            assert {*beside} == {written}
    finally:
        sys.setswitchinterval(interval)
