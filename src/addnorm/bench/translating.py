"""The benchmark of translating sentences that arrive at random times, with beam search."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from addnorm.bench import prepared
from addnorm.bench.benchmark import Benchmark, Goal, Ratio
from addnorm.bench.engines import FOLDER, named_tokens
from addnorm.bench.first_tokens import arrivals
from addnorm.bench.implementation import Round, Run, implementation
from addnorm.bench.training import TINY, TranslatorSizes
from addnorm.generate import BeamConfig, Translation
from addnorm.generate.decode import decode
from addnorm.machine import cores
from addnorm.models import EncoderDecoderModel
from addnorm.runs.opening import open_model
from addnorm.serve.engine.engine import Engine
from addnorm.serve.engine.options import Options
from addnorm.serve.engine.schedule import Limits
from addnorm.serve.engine.sequence import Request


@dataclass(frozen=True, kw_only=True)
class Sentences:
    """The number of sentences, the range of their lengths, and the mean time between two."""

    n: int = 1000
    length: tuple[int, int] = (8, 24)
    beams: int = 4
    gap: float = 0.002
    """The mean seconds between two sentences, which come faster than anyone translates them."""

    def sources(self, vocab_size: int) -> list[list[int]]:
        """Return random sentences with an end token; translations have the same length."""
        draw = random.Random(1)
        return [
            [*(draw.randrange(4, vocab_size) for _ in range(draw.randint(*self.length))), 3]
            for _ in range(self.n)
        ]

    def arrivals(self) -> list[float]:
        """Return the second at which each sentence arrives."""
        return arrivals(self.n, self.gap)

    def rounds(self, vocab_size: int, translate: Callable[[], list[float]]) -> Run:
        """Return rounds that count the tokens of all translations.

        `translate` returns the second in which each sentence was done, or none.
        """
        units = sum(map(len, self.sources(vocab_size)))

        def run() -> Round:
            start = time.perf_counter()
            done = translate()
            seconds = time.perf_counter() - start
            waits = sorted(b - a for a, b in zip(self.arrivals(), done, strict=False))
            details = {"median wait s": waits[len(waits) // 2]} if waits else {}
            return Round(seconds, units, details)

        return run


def served(folder: Path, *, sizes: TranslatorSizes, sentences: Sentences) -> Run:
    """Return rounds in which the engine translates sentences as they arrive."""
    torch.set_num_threads(cores())
    run = open_model(folder / prepared.HF)
    engine = Engine(run, limits=Limits(queue=sentences.n))
    beams = Options(decoding="beam", beams=sentences.beams, ignore_eos=True)
    sources, seconds = sentences.sources(sizes.vocab_size), sentences.arrivals()

    def translate() -> list[float]:
        start, done = time.perf_counter(), [0.0] * sentences.n
        coming = list(enumerate(sources))[::-1]
        while coming or engine.is_busy:
            now = time.perf_counter() - start
            while coming and seconds[coming[-1][0]] <= now:
                i, source = coming.pop()
                asked = Request(name=str(i), prompt=tuple(source), limit=len(source), options=beams)
                engine.add(asked)
            for event in engine.step():
                done[int(event.name)] = time.perf_counter() - start
        return done

    return sentences.rounds(sizes.vocab_size, translate)


def offline(folder: Path, *, sizes: TranslatorSizes, sentences: Sentences) -> Run:
    """Return rounds that translate all sentences with `translate`, in batches of 64."""
    torch.set_num_threads(cores())
    model = open_model(folder / prepared.HF).model
    assert isinstance(model, EncoderDecoderModel)
    sources = sentences.sources(sizes.vocab_size)
    decoding = BeamConfig(beams=sentences.beams)

    def translate() -> list[float]:
        decode(Translation(model, 2), sources, decoding, [*map(len, sources)], eos_id=None)
        return []

    return sentences.rounds(sizes.vocab_size, translate)


def ctranslate2(folder: Path, *, sizes: TranslatorSizes, sentences: Sentences) -> Run:
    """Return rounds in which CTranslate2 receives each sentence as it arrives."""
    library: Any = import_module("ctranslate2")
    translator = library.Translator(
        str(folder / FOLDER), compute_type="float32", intra_threads=1, inter_threads=cores()
    )
    # CTranslate2 adds eos to sources itself.
    rows = [row[:-1] for row in sentences.sources(sizes.vocab_size)]
    names = named_tokens(folder / FOLDER / "shared_vocabulary.json", rows)
    seconds = sentences.arrivals()

    def asked() -> Iterator[Any]:
        start = time.perf_counter()
        for source, arrival in zip(names, seconds, strict=True):
            time.sleep(max(0.0, arrival - (time.perf_counter() - start)))
            n = len(source) + 1
            yield translator.translate_batch(
                [source],
                beam_size=sentences.beams,
                max_decoding_length=n,
                min_decoding_length=n,
                asynchronous=True,
            )[0]

    def translate() -> list[float]:
        for result in [*asked()]:
            result.result()
        return []

    return sentences.rounds(sizes.vocab_size, translate)


def benchmark() -> Benchmark:
    """Return the benchmark of 1,000 sentences to a small translator with random weights."""
    options: dict[str, Any] = {"sizes": TINY, "sentences": Sentences()}
    return Benchmark(
        name="serve-translator",
        description="a translator of 4 × 128, 1,000 sentences of 8–24 tokens that arrive at random",
        unit="tokens/s",
        implementations=(
            implementation("ours", served, **options),
            implementation("ours, offline", offline, **options),
            implementation("CTranslate2, as they come", ctranslate2, "ctranslate2", **options),
        ),
        targets=(
            Ratio(ours=("ours",), peers=("ours, offline",), goal=Goal(must=0.9, aim=1.2)),
            Ratio(
                ours=("ours",),
                peers=("CTranslate2, as they come",),
                goal=Goal(must=1.2, aim=1.5),
            ),
        ),
        details=("median wait s",),
        prepare=prepared_translator,
    )


def prepared_translator(folder: Path) -> Run:
    """Prepare the translator for all implementations."""
    return prepared.translator(folder, sizes=TINY)
