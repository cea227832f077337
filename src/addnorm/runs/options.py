"""The options of exporting and rewriting a run, shared by Python and the command line.

The command line reads them before anything heavy is imported, so this file imports nothing of it.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from addnorm.errors import InputError

Form = Literal["hf", "onnx", "ctranslate2", "gguf"]
"""A form in which a model is exported."""

Split = Literal["valid", "test"]
"""A part of the data to measure on."""

SEVERAL = Parameter(consume_multiple=True, negative="", show_default=False)
"""An option with several values."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PruneOptions:
    """What to remove from a run, and how to recover from it.

    Raises `InputError` where nothing is removed, and for a number out of range.
    """

    heads: float | None = None
    """The share of heads to remove in every layer; a key/value head leaves with its queries."""
    feedforward: Annotated[float | None, Parameter(name="--feed-forward")] = None
    """The share of the rows of every feed-forward to remove."""
    layers: Annotated[tuple[str, ...], SEVERAL] = ()
    """The layers to keep: `every:2`, or their numbers from 0, as `0 2 4`."""
    calibrate: int = 512
    """How many validation examples to measure importance on."""
    recover: int = 0
    """Train so many steps afterwards."""
    split: Split = "valid"
    """Which part of the data to measure on."""

    def __post_init__(self) -> None:
        _check_at_least("recover", self.recover, 0)
        _check_at_least("calibrate", self.calibrate, 1)

    def check_removes(self) -> None:
        """Raise `InputError` where nothing is to be removed."""
        if self.heads is None and self.feedforward is None and not self.layers:
            raise InputError("nothing to remove: give `heads`, `feedforward` or `layers`")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class QuantizeOptions:
    """What a model is calibrated and measured on, and which layers are quantised.

    Raises `InputError` for a number out of range.
    """

    calibrate: int = 128
    """How many training examples a calibrated scheme sees."""
    keep: Annotated[tuple[str, ...], SEVERAL] = ()
    """Layers to leave as they are, by name; `*` stands for anything, as in `"*.down_proj"`."""
    include: Annotated[tuple[str, ...], SEVERAL] = ()
    """Linear and recurrent layers to quantise too, by name, such as those of modules of your own.
    """
    keep_worst: int = 0
    """Leave so many more as they are: those that raise the loss most when they alone are rounded.
    """
    split: Split = "valid"
    """Which part of the data to measure on."""

    def __post_init__(self) -> None:
        _check_at_least("calibrate", self.calibrate, 1)
        _check_at_least("keep_worst", self.keep_worst, 0)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SwapOptions:
    """The parts to swap, and how to recover from it.

    Raises `InputError` for options that contradict, and for a number out of range.
    """

    sets: Annotated[tuple[str, ...], Parameter(name="--set", negative="", show_default=False)] = ()
    """A part and its value, as `position=rotary` or, for one layer, `layer_pattern.1.norm=rmsnorm`;
    may be given again.
    """
    layers: Annotated[tuple[int, ...], SEVERAL] = ()
    """Which of the old layers the new ones are, as `0 1 1 2`; by default chosen evenly."""
    recover: int = 0
    """Train so many steps afterwards."""
    distill: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Recover from what the old model says, in place of the labels."""
    split: Split = "valid"
    """Which part of the data to measure on."""

    def __post_init__(self) -> None:
        _check_at_least("recover", self.recover, 0)
        if self.distill and not self.recover:
            raise InputError(
                "`distill` says what to learn from: give `recover`, the number of steps"
            )

    def check_changes(self) -> None:
        """Raise `InputError` where nothing is to be changed."""
        if not (self.sets or self.layers):
            raise InputError(
                "nothing to change: give `sets`, such as `sets = norm=rmsnorm`, or `layers`"
            )


def _check_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"`{name} = {value}`: must be at least {least}")
