"""Writing generated texts: a line for each text, or a line of JSON."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from addnorm.cli.lines import Reading, media_files, one_line
from addnorm.generate.text_decoding import Generated

if TYPE_CHECKING:
    from addnorm.generate import DecodingConfig
    from addnorm.runs.run import Run


def as_lines(best: Sequence[Generated], n_best: int) -> list[str]:
    """One line for each text, padded with empty lines up to `n_best`."""
    return [one_line(one.text) for one in best] + [""] * (n_best - len(best))


def as_json(
    best: Sequence[Generated],
    number: int | str,
    *,
    deep: bool = False,
    messages: Sequence[Mapping[str, str]] = (),
) -> list[str]:
    """One line of JSON for each text, with the number of its input, or its file.

    `deep` adds the depth, of models whose tokens leave early; `messages` are the conversation that
    it answers, which is written with the answer at its end.
    """
    rows = [
        {
            "input": number,
            **_conversation(messages, text.text),
            "text": text.text,
            "score": text.score,
            "finished": text.finished,
            **({"depth": text.depth} if deep else {}),
        }
        for text in best
    ]
    return [json.dumps(row, ensure_ascii=False) for row in rows]


def _conversation(messages: Sequence[Mapping[str, str]], answer: str) -> dict[str, object]:
    if not messages:
        return {}
    return {"messages": [*messages, {"role": "assistant", "content": answer}]}


def depth_of(best: Sequence[Generated], number: int) -> str:
    """The layers that a token of a text took, in the mean, in words."""
    depth = best[0].depth
    mean = "its one token took every layer" if depth is None else f"mean depth {depth:.2f} layers"
    return f"text {number}: {mean}"


def write_files(
    opened: "Run",
    files: Sequence[Path],
    decoding: "DecodingConfig",
    max_new_tokens: int | None,
    reading: Reading,
    *,
    json_lines: bool,
) -> None:
    """Write the texts of each file, a line each: the text, a tab, and the file's name."""
    from addnorm.runs.inference.media import transcribe_files

    paths, skipped = media_files(files, reading)
    n_best = decoding.n_best if decoding.kind == "beam" else 1
    with skipped:
        found = transcribe_files(
            opened, paths, decoding, max_new_tokens=max_new_tokens, skipped=skipped
        )
        for file, best in found:
            lines = as_json(best, str(file)) if json_lines else as_lines(best, n_best)
            tail = "" if json_lines else f"\t{file}"
            print("\n".join(line + tail for line in lines), flush=True)
