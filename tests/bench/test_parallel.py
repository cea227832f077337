"""Training over two processes: every way runs at a small size, and saves in the background."""

from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from addnorm.bench.implementation import Implementation, Worker
from addnorm.bench.parallel import PROCESSES, STEPS, trained
from addnorm.bench.training import DecoderSizes

SMALL = DecoderSizes(
    n_layers=1, d_model=16, n_heads=2, d_ff=32, vocab_size=65, batch=2 * PROCESSES, length=8
)
WAYS = ["data", "shard", "tensor", "saving", "DDP", "fully_shard", "parallelize_module"]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_every_way_trains(tmp_path: Path, way: str) -> None:
    build = partial(trained, way=way, sizes=SMALL)
    with closing(Worker(Implementation(name=way, build=build), tmp_path)) as worker:
        done = [worker.round() for _ in range(2)]
    assert all(r.units == STEPS * SMALL.tokens for r in done)
    assert all(("blocked %" in r.details) == (way == "saving") for r in done)
