"""`addnorm parts`: what a model can be made of."""

import json
from typing import Annotated

from cyclopts import Parameter


def parts(
    family: str | None = None,
    /,
    *,
    as_json: Annotated[bool, Parameter(name="--json", negative="", show_default=False)] = False,
    imports: Annotated[
        tuple[str, ...], Parameter(name="--import", negative="", show_default=False)
    ] = (),
) -> None:
    """List every part with its equation, its source and the file that it is written in.

    Parameters
    ----------
    family
        Only this family: positions, norms, placements, scores, patterns, …
    as_json
        One JSON array instead of a table.
    imports
        Files or modules with parts of your own, which are listed too.
    """
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table

    from addnorm.check.parts import module_names
    from addnorm.check.parts import parts as parts_of
    from addnorm.parts import import_parts

    import_parts(imports)
    found = parts_of(family, module_names(imports))
    if as_json:
        print(json.dumps([asdict(part) for part in found], indent=1, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False)
    for name in ("family", "kind", "equation", "source", "file"):
        table.add_column(name, overflow="fold")
    for part in found:
        table.add_row(part.family, part.kind, part.equation, part.source, part.file)
    Console(highlight=False, markup=False).print(table)
