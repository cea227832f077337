"""The benchmarks of tokenizing texts to shards, and of the first batch far into an epoch."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import xxhash

from addnorm.bench.benchmark import Benchmark, Goal, Limit, Ratio
from addnorm.bench.implementation import Round, Run, held_mib, implementation

TEXTS, TOKENIZER, MANY = "texts.jsonl", "tokenizer.json", "many"
"""The names of the prepared files and of a folder of shards."""
VOCABULARY = 32_000
CHARACTERS = 24_000_000
N_SHARDS, SHARD_TOKENS = 100_000, 2**26
PLACE = 10**9
"""The place of an epoch whose batch is built."""

OURS = """
import sys

def main(folder, workers):
    import shutil, time
    from pathlib import Path
    from addnorm.data.shards.options import ShardOptions
    from addnorm.data.shards.writing import write_shards
    from addnorm.data.tokenizing.tokenizers import Tokenizer
    folder, times = Path(folder), []
    def advance(n):
        times.append((time.perf_counter(), n))
    shutil.rmtree(folder / "shards", ignore_errors=True)
    write_shards(
        [folder / "texts.jsonl"], folder / "shards", Tokenizer.load(folder / "tokenizer.json"),
        ShardOptions(), n_workers=workers, advance=advance,
    )
    end, done = time.perf_counter(), 0
    while done < 4 * 2**20:
        begun, n = times.pop(0)
        done += n
    print(end - begun, sum(n for _, n in times))

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
"""
"""Writes shards, and prints the seconds and characters after four batches, when all workers run."""

LIBRARY = """
import json, sys, time
from pathlib import Path
import tokenizers

folder = Path(sys.argv[1])
tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
texts = [json.loads(line)["text"] for line in (folder / "texts.jsonl").open(encoding="utf-8")]
tokenizer.encode_batch(texts[:8])
begun = time.perf_counter()
for i in range(0, len(texts), 500):
    tokenizer.encode_batch(texts[i : i + 500], add_special_tokens=False)
print(time.perf_counter() - begun, sum(map(len, texts)))
"""
"""Encodes the same texts in memory, and writes nothing."""

DATATROVE = """
import sys

def seconds(folder, texts, workers):
    import shutil, time
    from datatrove.executor.local import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer
    shutil.rmtree(f"{folder}/datatrove", ignore_errors=True)
    begun = time.perf_counter()
    LocalPipelineExecutor(
        [
            JsonlReader(f"{folder}/{texts}", glob_pattern="*.jsonl"),
            DocumentTokenizer(
                f"{folder}/datatrove/tokens",
                tokenizer_name_or_path=f"{folder}/tokenizer.json",
                eos_token=None,
                shuffle_documents=False,
            ),
        ],
        tasks=workers, workers=workers, logging_dir=f"{folder}/datatrove/logs",
    ).run()
    return time.perf_counter() - begun

if __name__ == "__main__":
    folder, workers, characters = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    start = seconds(folder, "first", workers)
    print(seconds(folder, "parts", workers) - start, characters)
"""
"""Writes the same texts by datatrove, from a file for each worker; its start is not counted."""


def prepare(folder: Path, *, characters: int = CHARACTERS, vocab_size: int = VOCABULARY) -> Run:
    """Write texts of words with Zipf-distributed frequencies, and learn their tokenizer."""
    from addnorm.data.tokenizing.tokenizers import BPEConfig

    texts = [*zipf_texts(characters)]
    _write_jsonl(folder / TEXTS, texts)
    for i in range(2):
        _write_jsonl(folder / "parts" / f"{i}.jsonl", texts[i::2])
        _write_jsonl(folder / "first" / f"{i}.jsonl", texts[i : i + 1])
    BPEConfig(vocab_size=vocab_size).train(texts[: len(texts) // 4]).save(folder / TOKENIZER)
    return lambda: Round(1.0, 1)


def _write_jsonl(file: Path, texts: Sequence[str]) -> None:
    file.parent.mkdir(exist_ok=True)
    with file.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps({"text": text}) + "\n" for text in texts)


def zipf_texts(characters: int) -> Iterator[str]:
    """Yield texts of about 2,000 characters each, up to a total length."""
    rng = random.Random(0)
    letters, frequencies = "etaoinshrdlucmfwypvbgkjqxz", range(26, 0, -1)
    lengths = rng.choices(range(1, 13), range(12, 0, -1), k=60_000)
    words = ["".join(rng.choices(letters, frequencies, k=2 + n)) for n in lengths]
    weights = [*accumulate(1 / (rank + 3) for rank in range(len(words)))]
    left = characters
    while left > 0:
        text = " ".join(rng.choices(words, cum_weights=weights, k=rng.randint(50, 600))) + "."
        yield text
        left -= len(text)


def tokenized(folder: Path, *, workers: int) -> Run:
    """Return rounds that each write the texts as shards."""
    script = folder / "ours.py"
    script.write_text(OURS, encoding="utf-8")
    return lambda: _timed([str(script), str(folder), str(workers)], {})


def encoded(folder: Path, *, threads: int) -> Run:
    """Return rounds that each encode the texts with the library's `encode_batch`."""
    script = folder / "library.py"
    script.write_text(LIBRARY, encoding="utf-8")
    settings = {"RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"}
    return lambda: _timed([str(script), str(folder)], settings)


def tokenized_by_datatrove(folder: Path, *, workers: int) -> Run:
    """Return rounds in which datatrove writes the texts as shards."""
    script = folder / "by_datatrove.py"
    script.write_text(DATATROVE, encoding="utf-8")
    lines = (folder / TEXTS).read_text("utf-8").splitlines()
    characters = sum(len(json.loads(line)["text"]) for line in lines)
    return lambda: _timed([str(script), str(folder), str(workers), str(characters)], {})


def _timed(words: list[str], settings: dict[str, str]) -> Round:
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, characters = done.stdout.split()[-2:]
    return Round(float(seconds), float(characters) / 1e6)


def many_shards(folder: Path, n: int = N_SHARDS, tokens: int = SHARD_TOKENS) -> Path:
    """Write a folder of many equal shards, which share a few files on disk."""
    from addnorm.data.shards.index import (
        BLOCK,
        INDEX,
        Framing,
        ShardFacts,
        block_hashes,
        documents_file,
        index_text,
        tokens_file,
    )

    folder.mkdir(parents=True)
    block = bytes(BLOCK)
    hashes = block_hashes(memoryview(block)) * (2 * tokens // BLOCK)
    documents = np.array([tokens], "<u4").tobytes() + hashes
    for i in range(n):
        for file in (tokens_file(folder, i), documents_file(folder, i)):
            if i % LINKS:
                file.hardlink_to(file.with_stem(f"{i - i % LINKS:06d}"))
        if not i % LINKS:
            with tokens_file(folder, i).open("wb") as stream:
                stream.truncate(2 * tokens)
            documents_file(folder, i).write_bytes(documents)
    digests = ("0" * 64, "0" * 64, xxhash.xxh3_64_hexdigest(documents))
    shard = ShardFacts(tokens, 1, tokens, *digests)
    framing = Framing((2,), 3, "uint16", "")
    (folder / INDEX).write_text(index_text([shard] * n, framing, {}), encoding="utf-8")
    return folder


LINKS = 30_000
"""Names of one file: file systems allow some 65,000."""


def prepare_many(folder: Path) -> Run:
    """Write the folder of many shards."""
    many_shards(folder / MANY)
    return lambda: Round(1.0, 1)


def first_batch(folder: Path, *, place: int) -> Run:
    """Return rounds that each open many shards and build one batch far into an epoch."""
    from addnorm.data.batches.sharded import ShardRows
    from addnorm.data.shards.index import ShardFolder
    from addnorm.data.shards.source import ShardedTexts

    def run() -> Round:
        before, begun = held_mib(), time.perf_counter()
        texts = ShardedTexts([ShardFolder.open(folder / MANY)])
        opened = time.perf_counter()
        next(ShardRows(texts, 16, 1024, seed=1).batches(0, place // 16))
        built = time.perf_counter()
        figures = {"open ms": 1e3 * (opened - begun), "held MiB": held_mib() - before}
        return Round(built - opened, 1, figures)

    return run


def tokenizing() -> Benchmark:
    """Return the benchmark of tokenizing to shards."""
    alone, pair, peer = "ours, 1 worker", "ours, 2 workers", "datatrove, 2 workers"
    library = "encode_batch, {} thread{}".format
    return Benchmark(
        name="tokenize",
        description="JSON lines to shards by byte-level BPE of 32,000, from when all workers run",
        unit="million characters/s",
        implementations=(
            implementation(alone, tokenized, workers=1, warm_up=False),
            implementation(library(1, ""), encoded, threads=1, warm_up=False),
            implementation(pair, tokenized, workers=2, warm_up=False),
            implementation(library(2, "s"), encoded, threads=2, warm_up=False),
            implementation(peer, tokenized_by_datatrove, "datatrove", workers=2, warm_up=False),
        ),
        targets=(
            Ratio(ours=(pair,), peers=(alone,), goal=Goal(must=1.8)),
            Ratio(ours=(pair,), peers=(library(2, "s"),), goal=Goal(must=0.9)),
            Ratio(ours=(pair,), peers=(peer,), goal=Goal(must=1.2)),
        ),
        prepare=prepare,
    )


def shards() -> Benchmark:
    """Return the benchmark of a batch far into an epoch of very many shards."""
    name = "batch at place 10⁹"
    return Benchmark(
        name="shards",
        description="the batch at place 10⁹ of 100,000 shards of 67 million tokens",
        unit="ms",
        figure="ms",
        implementations=(implementation(name, first_batch, place=PLACE),),
        targets=(
            Limit(ours=(name,), figure="ms", goal=Goal(must=1000.0, at_most=True)),
            Limit(ours=(name,), figure="open ms", goal=Goal(must=5000.0, at_most=True)),
            Limit(ours=(name,), figure="peak_mib", goal=Goal(must=1024.0, at_most=True)),
        ),
        details=("open ms", "held MiB"),
        prepare=prepare_many,
    )
