"""CTranslate2."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from addnorm.bench.decoding import DecodingSizes, Precision, decoding
from addnorm.bench.implementation import Run, timed
from addnorm.processor import cores

FOLDER = "ctranslate2"


def decode(folder: Path, *, sizes: DecodingSizes, precision: Precision) -> Run:
    """Greedy continuations of all prompts in a batch."""
    library: Any = import_module("ctranslate2")
    generator = library.Generator(
        str(folder / FOLDER), compute_type=precision, intra_threads=cores(), inter_threads=1
    )
    prompts = _named(folder / FOLDER / "vocabulary.json", sizes.prompts())

    def generate(n: int) -> None:
        generator.generate_batch(
            prompts,
            max_length=n,
            min_length=n,
            beam_size=1,
            sampling_topk=1,
            include_prompt_in_result=False,
        )

    return decoding(generate, sizes)


def translate(
    folder: Path, *, sizes: DecodingSizes, beams: int, precision: Precision, workers: bool = False
) -> Run:
    """Translations by beam search, with all threads on one batch or, with `workers`, one each."""
    library: Any = import_module("ctranslate2")
    translator = library.Translator(
        str(folder / FOLDER),
        compute_type=precision,
        intra_threads=1 if workers else cores(),
        inter_threads=cores() if workers else 1,
    )
    # CTranslate2 adds eos to sources itself.
    rows = [row[:-1] for row in sizes.prompts()]
    sources = _named(folder / FOLDER / "shared_vocabulary.json", rows)

    def step() -> None:
        translator.translate_batch(
            sources,
            beam_size=beams,
            max_decoding_length=sizes.new,
            min_decoding_length=sizes.new,
            max_batch_size=-(-sizes.batch // cores()) if workers else 0,
        )

    return timed(step, sizes.batch * sizes.new)


def _named(vocabulary: Path, rows: list[list[int]]) -> list[list[str]]:
    names: list[str] = json.loads(vocabulary.read_text("utf-8"))
    return [[names[i] for i in row] for row in rows]
