"""Arguments of the wrong type are refused by name, by their functions and groups of options."""

import inspect
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import pytest

import addnorm as an
from addnorm.arguments import known_keywords
from addnorm.errors import InputError
from addnorm.runs.options import PruneOptions, QuantizeOptions, SwapOptions


class Sizes(TypedDict, total=False):
    """Options of a function."""

    width: int


@known_keywords
def area(height: int = 1, **sizes: Unpack[Sizes]) -> int:
    """An example."""
    return height * sizes.get("width", 1)


def test_a_keyword_that_a_function_lacks() -> None:
    assert area() == 1
    assert area(2, width=3) == area(height=3, width=2) == 6
    with pytest.raises(InputError) as caught:
        area(widht=3)  # pyright: ignore[reportCallIssue]
    said = "area() has no argument widht. Did you mean 'width'? Valid: height, width."
    assert str(caught.value) == said
    assert (area.__name__, area.__doc__) == ("area", "An example.")


@known_keywords
def nothing(*, share: float = 1.0, count: int | None = None, names: tuple[str, ...] = ()) -> None:
    """An example."""


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"share": "x"}, "`share = 'x'`: must be a number"),
        ({"share": True}, "`share = True`: must be a number"),
        ({"share": float("nan")}, "`share = nan`: must be a finite number"),
        ({"count": 1.5}, "`count = 1.5`: must be an integer"),
        ({"count": 2**63}, "must be less than 2⁶²"),
        ({"count": -(2**62)}, "must be more than -2⁶²"),
        ({"names": "ab"}, "`names = 'ab'`: must be a list or a tuple"),
        ({"names": ("a", 3)}, "each must be a string"),
    ],
)
def test_a_value_of_another_type(values: dict[str, Any], said: str) -> None:
    nothing(share=1, count=None, names=("a",))
    with pytest.raises(InputError, match=said):
        nothing(**values)


@known_keywords
def several(
    names: Sequence[str],
    rule: str = "",
    *,
    fields: Collection[str] = (),
    call: Callable[[int], int] = abs,
    made: PruneOptions | SwapOptions | None = None,
    folder: Path | None = None,
    first: int = 0,
    stop: Sequence[str] = (),
) -> list[str]:
    """An example."""
    return [*names]


@pytest.mark.parametrize(
    ("arguments", "values", "said"),
    [
        (("ab",), {}, "`names = 'ab'`: must be a list or a tuple"),
        ((None,), {}, "`names = None`: must be a list or a tuple"),
        (({"a"},), {}, "must be a list or a tuple"),
        (({"a": 1},), {}, "must be a list or a tuple"),
        (([1],), {}, "each must be a string"),
        (([], 3), {}, "`rule = 3`: must be a string"),
        (([],), {"fields": "ab"}, "must be a list or a tuple"),
        (([],), {"fields": [1]}, "each must be a string"),
        (([],), {"call": 3}, "must be a function"),
        (([],), {"made": 3}, "must be PruneOptions or SwapOptions"),
        (([],), {"folder": 3}, "must be a path, a string or a Path"),
        (([],), {"first": -1}, "`first = -1`: must be at least 0"),
        (([],), {"stop": 3}, "must be a list or a tuple"),
    ],
)
def test_arguments_by_position_and_of_classes(
    arguments: tuple[Any, ...], values: dict[str, Any], said: str
) -> None:
    assert several(iter("ab")) == ["a", "b"]  # pyright: ignore[reportArgumentType]
    assert several(["a"], "b", fields={"c": 1}, call=len, folder=Path(), stop="d") == ["a"]
    with pytest.raises(InputError, match=said):
        several(*arguments, **values)


@pytest.mark.parametrize(
    ("options", "values", "said"),
    [
        (PruneOptions, {"split": "vald"}, r"Did you mean 'valid'"),
        (PruneOptions, {"split": None}, "Valid: valid, test"),
        (PruneOptions, {"calibrate": 1.5}, "must be an integer"),
        (PruneOptions, {"recover": "x"}, "must be an integer"),
        (PruneOptions, {"recover": 2**63}, "must be less than 2⁶²"),
        (PruneOptions, {"heads": "x"}, "must be a number"),
        (PruneOptions, {"layers": (0,)}, "each must be a string"),
        (QuantizeOptions, {"keep": "down"}, "must be a list or a tuple"),
        (SwapOptions, {"layers": (0.5,)}, "each must be an integer"),
        (SwapOptions, {"sets": "norm=rmsnorm"}, "must be a list or a tuple"),
    ],
)
def test_options_of_rewriting(options: type, values: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        options(**values)


def test_signatures_name_the_options_one_by_one() -> None:
    shown = inspect.signature(an.Run.generate)
    assert shown.parameters["temperature"].kind is inspect.Parameter.KEYWORD_ONLY
    assert "options" not in shown.parameters
    text = str(shown)
    assert "decoding: DecodingConfig | None = None" in text
    assert "top_k: int | None = ..., " in text
    assert "Annotated" not in text
    assert str(inspect.signature(an.train)).startswith("(config: ModelConfig, data: DataConfig | ")


def test_no_public_function_hides_its_options() -> None:
    """A notebook shows `an.text?` with all that it takes."""
    functions = [thing for thing in vars(an.Run).values() if inspect.isfunction(thing)]
    functions += [f for f in (getattr(an, name) for name in dir(an)) if inspect.isfunction(f)]
    for function in functions:
        kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds, function
        shown = str(inspect.signature(function))
        assert not re.search(r"<class| at 0x|Annotated|'\w*Config", shown), shown
