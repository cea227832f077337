"""`addnorm generate --batch`: answer a file of requests."""

import sys
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import BinaryIO

from addnorm.cli.where import Imports, Where, import_named
from addnorm.errors import InputError, optional
from addnorm.files import check_model_folder
from addnorm.runs.options import Weights

MEMORY = 2 * 2**30
"""The bytes for keys and values, as `addnorm serve` has them by default."""


def answer_batch(
    run: Path,
    batch: Path,
    out: Path | None,
    where: Where,
    weights: Weights | None,
    imports: Imports,
    *,
    exact: bool,
) -> None:
    """Answer a file of requests with a run; print the number of answers.

    Answers go to the file `out`, whose first ones may be there already, or to standard output.
    """
    check_model_folder(run)
    if not batch.is_file():
        raise InputError(f"{batch}: no such file of requests")
    for module in ("fastapi", "prometheus_client"):
        optional(module, "serve", "addnorm generate --batch")
    import asyncio

    from addnorm.cli.terminal import console
    from addnorm.long_work import long_work
    from addnorm.serve.batch_file import answer_file, n_answered
    from addnorm.serve.messages import Open

    import_named(imports)
    opened = Open(
        run=str(run),
        memory=MEMORY,
        chunk=256,
        max_queue=256,
        exact=exact,
        weights=weights,
        device=where.device,
        dtype=where.dtype,
        imports=imports,
    )
    answered = 0 if out is None else n_answered(out, batch)
    with ExitStack() as stack:
        file: BinaryIO = sys.stdout.buffer if out is None else stack.enter_context(out.open("ab"))
        say = stack.enter_context(long_work(console, f"{batch}: starting"))
        numbers = count(answered + 1)

        def write(line: bytes) -> None:
            file.write(line)
            file.flush()
            say(f"{batch}: {next(numbers):,} answered")

        counts = asyncio.run(answer_file(opened, batch, write, answered=answered))
    console.out(f"{batch}: {counts}", highlight=False)
