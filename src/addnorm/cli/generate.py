"""`addnorm generate`: a run continues or translates text."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def generate(
    run: Path,
    *files: Path,
    prompt: str | None = None,
    beams: int | None = None,
    n_best: int = 1,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    seed: int = 0,
    max_new_tokens: int | None = None,
    stop: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    json_lines: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Continue or translate text, a line at a time.

    Reads the files, or standard input; writes a line for each line read. A language model given
    `--prompt` writes its text as it comes. Decoding is the recipe's own (for language models:
    sampling) unless an option below says otherwise.

    Parameters
    ----------
    run
        The run folder.
    files
        Text files, a line an input; `-` is standard input.
    prompt
        One text instead of files.
    beams
        Beam search with so many beams; 1 is greedy.
    n_best
        How many results of a beam search to write.
    temperature
        Sample, dividing the logits by this.
    top_k
        Sample from the k likeliest tokens.
    top_p
        Sample from the likeliest tokens that together have this probability.
    min_p
        Sample from the tokens at least this share as likely as the likeliest.
    seed
        The seed of the sampling.
    max_new_tokens
        The most tokens to write: 256, or for a translation 50 more than the source has.
    stop
        End before this string; may be given several times.
    json_lines
        Write JSON lines with text, score and the reason for ending.
    """
    from addnorm.cli.lines import groups_from
    from addnorm.runs.folder import Run
    from addnorm.runs.use import decoding_for, write, write_as_it_comes

    opened = Run.open(run)
    chosen = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
    }
    decoding = decoding_for(opened, beams=beams, n_best=n_best, **chosen)
    if prompt is not None and opened.task == "language" and decoding.kind != "beam" and not json_lines:
        for piece in write_as_it_comes(
            opened, prompt, decoding, max_new_tokens=max_new_tokens, stop=stop
        ):
            print(piece, end="", flush=True)
        print()
        return
    for group in [[prompt]] if prompt is not None else groups_from(files):
        for best in write(opened, group, decoding, max_new_tokens=max_new_tokens, stop=stop):
            for one in best:
                print(json.dumps(asdict(one), ensure_ascii=False) if json_lines else one.text)
