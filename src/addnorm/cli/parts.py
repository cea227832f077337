"""`addnorm parts`: list the parts of models."""

import json
from typing import Annotated

from cyclopts import Parameter

from addnorm.checking import check_family_name
from addnorm.cli.where import Imports, import_named


def parts(
    family: str | None = None,
    /,
    *,
    as_json: Annotated[bool, Parameter(name="--json", negative="", show_default=False)] = False,
    imports: Imports = (),
) -> None:
    """List every part with its equation, its source and the file that it is written in.

    Example: `addnorm parts norms`.

    Parameters
    ----------
    family
        Only this family: positions, norms, placements, scores, patterns, …
    as_json
        One JSON array instead of a table.
    """
    if family is not None and not imports:
        check_family_name(family)
    import_named(imports)
    from dataclasses import asdict

    from rich.table import Table

    from addnorm.checking.parts import module_names
    from addnorm.checking.parts import parts as parts_of
    from addnorm.cli.terminal import output

    listed = parts_of(family, module_names(imports))
    if as_json:
        print(json.dumps([asdict(part) for part in listed], indent=1, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False)
    for name in ("family", "kind", "equation", "source", "file"):
        table.add_column(name, overflow="fold")
    for part in listed:
        table.add_row(part.family, part.kind, part.equation, part.source, part.file)
    output(markup=False).print(table)
