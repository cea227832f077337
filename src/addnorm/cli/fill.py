"""`addnorm fill`: fill the masks of each line with a masked language model or a denoiser."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from addnorm.cli.lines import STRICT, Files, Lines, Reading, check_files, one_line
from addnorm.cli.where import ANYWHERE, GROUP, Imports, Where, import_named
from addnorm.errors import InputError
from addnorm.runs.options import FillOptions

if TYPE_CHECKING:
    from addnorm.runs.inference.results import Filled

USUAL: FillOptions = {}


def fill(
    run: Path,
    *files: Files,
    text: str | None = None,
    shown: Annotated[FillOptions, GROUP] = USUAL,
    json_lines: Annotated[bool, Parameter(name="--json", negative="", show_default=False)] = False,
    reading: Reading = STRICT,
    where: Where = ANYWHERE,
    imports: Imports = (),
) -> None:
    r"""Fill each `[MASK]` of a text with the tokens that are most probable there.

    Reads the files, or standard input, a line a text. Writes each text with its best tokens, and
    below it, for each mask, the `--top-k` most probable tokens with their probabilities. A mask is
    one token, and is filled as if the others stayed masked; `<mask>` is a mask too. A line break
    is written as `\n`; `--json` writes texts exactly.

    A denoiser such as T5 fills each mask, or `<extra_id_0>`, with as many tokens as it likes; below
    the text stand its spans. BART writes the whole text again.
    Example: `addnorm fill runs/my --text "To be or [MASK] to be"`.

    Parameters
    ----------
    run
        The run folder, or that of a model from elsewhere, such as BERT.
    files
        Text files, a line a text; `-` is standard input.
    text
        One text instead of files.
    json_lines
        Write JSON lines: the text, and for each mask the tokens and their probabilities.
    """
    check_files(files)
    if text is not None and files:
        raise InputError("give either --text or files, and not both")
    import_named(imports)
    opened = where.open(run)
    opened.check_fills()

    def answer(first: int, group: list[str]) -> "list[Filled]":
        return opened.fill(group, first=first, **shown)

    lines = Lines(files, reading).answers(answer)
    for _, filled in enumerate(answer(0, [text])) if text is not None else lines:
        if json_lines:
            print(json.dumps(asdict(filled), ensure_ascii=False), flush=True)
        else:
            print("\n".join(_lines(filled)), flush=True)


def _lines(filled: "Filled") -> list[str]:
    best = [
        " · ".join(f"{one_line(c.token.strip(' '))} {c.probability:.3f}" for c in mask)
        for mask in filled.masks
    ]
    return [one_line(filled.text), *(f"  {line or 'left out'}" for line in best)]
