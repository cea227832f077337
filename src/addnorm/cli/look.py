"""`addnorm look`: what happens inside a model on one text, as a picture or as numbers."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from addnorm.cli.main import NewFile, with_options
from addnorm.cli.plot import check_picture
from addnorm.cli.where import ANYWHERE, Imports, Where, import_named, working
from addnorm.errors import InputError


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Shown:
    """The parts of a model to show.

    Parameters
    ----------
    only
        One part of the picture.
    layers
        The layers whose attention is drawn, from 0, with commas between; by default all.
    heads
        Their heads, from 0, with commas between; by default all.
    """

    only: Literal["attention", "positions", "depth", "gradients"] | None = None
    layers: str | None = None
    heads: str | None = None


EVERYTHING = Shown()


def look(
    run: Path,
    text: str,
    *,
    target: str | None = None,
    shown: Shown = EVERYTHING,
    out: NewFile = Path("look.png"),
    as_json: Annotated[bool, Parameter(name="--json", negative="", show_default=False)] = False,
    where: Where = ANYWHERE,
    imports: Imports = (),
) -> None:
    """Draw what happens inside a model on one text: attention, positions, sizes and gradients.

    Attention is what the model itself used. Up to six heads are drawn large, with the text next to
    them; of more, each is drawn small and their mean large. Below stand what positions do by
    distance, the mean attention by distance, and layer by layer the size of the residual stream and
    of what every sublayer adds, and their gradients.
    Example: `addnorm look runs/my "To be, or not to be" --layers 0,2 --heads 1,3`.

    Parameters
    ----------
    run
        The run folder.
    text
        The text that the model reads.
    target
        What an encoder–decoder is to write; by default its own translation.
    out
        The picture, .png, .svg or .pdf.
    as_json
        The numbers as JSON, instead of a picture.
    """
    check_picture(out)
    layers, heads = _numbers("layers", shown.layers), _numbers("heads", shown.heads)
    import_named(imports)
    opened = where.open(run)
    from addnorm.inspect.look import VIEWS
    from addnorm.inspect.look import look as look_at

    views = VIEWS if shown.only is None else (shown.only,)
    with working("looking inside the model"):
        seen = look_at(opened, text, target=target, layers=layers, heads=heads, views=views)
    if as_json:
        print(json.dumps(seen.numbers(), ensure_ascii=False))
        return
    from addnorm.cli.terminal import console
    from addnorm.inspect.overview import overview

    with working("drawing"):
        overview(seen, out)
    for line in (*seen.notes, str(out)):
        console.out(with_options(line, "look"), highlight=False)


def _numbers(option: str, given: str | None) -> tuple[int, ...]:
    """Parse comma-separated numbers; duplicates count once."""
    words = [] if given is None else given.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise InputError(f"--{option} {given}: numbers from 0 with commas between, such as 0,2")
    return tuple(sorted({int(word) for word in words}))
