"""Settings for all tests: runtime type checks, few threads, reproducible hypothesis runs."""

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import hypothesis
import jaxtyping
import pytest
from tests.disks import small_disk
from tests.public_data import DATA

# The same kernels on every machine, in other processes too: measuring them is for users.
KERNELS = Path(__file__).with_name("kernels.json")
os.environ["ADDNORM_KERNELS"] = str(KERNELS)

hypothesis.settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, max_examples=60
)
hypothesis.settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Have annotations checked at run time, except where `JAXTYPING_DISABLE` is set (`test-long`).

    A process that only hands tests to workers imports nothing: it would take ten seconds.
    """
    worker = hasattr(config, "workerinput")
    if config.getoption("numprocesses", None) and not worker:
        return
    if not jaxtyping.config.jaxtyping_disable:
        # Before anything of addnorm is imported: only then are its annotations checked.
        # An int may stand for a float, as everywhere in Python.
        jaxtyping.install_import_hook(
            [f"addnorm.{folder}" for folder in TYPES_CHECKED],
            "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))",
        )
    if worker:
        import torch

        # Workers with several threads each would wait for one another.
        torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """Leave what collection made out of each search for garbage: it stays to the end."""
    gc.collect()
    gc.freeze()


TYPES_CHECKED = {"data", "generate", "inspect", "models", "nn", "quantize", "training", "tuning"}
"""The folders whose tests check every annotation as they run: those of what is put together.

The others use the whole as a user does. Checking costs them two thirds of their time or more.
"""

EVERY = 10
"""The first two cases of a test there and each tenth check annotations: more see no more."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count the cases of each test; of a sampled one, only each n-th is not slow."""
    cases = Counter[str]()
    for item in items:
        test = item.nodeid.partition("[")[0]
        item.stash[CASE] = case = cases[test]
        cases[test] += 1
        sampled = item.get_closest_marker("sampled")
        if sampled is not None and case % sampled.args[0]:
            item.add_marker("slow")


CASE = pytest.StashKey[int]()
"""The place of a test among the cases of its function."""


@pytest.fixture(autouse=True)
def _same_numbers_each_time() -> None:
    import torch

    torch.default_generator.manual_seed(0)  # of all devices, it takes 1 ms to keep its caller


@pytest.fixture(autouse=True, scope="session")
def _same_kernels() -> None:
    """A file by itself computes as among all others: importing the models installs `KERNELS`."""
    import_module("addnorm.models")


@pytest.fixture(autouse=True, scope="session")
def _no_signs_of_life() -> None:
    """A slow machine adds no lines to what a command says, except where a test wants them."""
    from addnorm import long_work

    long_work.PATIENCE = 3600.0


@pytest.fixture(autouse=True)
def _types(request: pytest.FixtureRequest) -> None:
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    case = request.node.stash[CASE]
    if folder not in TYPES_CHECKED or (case > 1 and case % EVERY):
        request.getfixturevalue("types_unchecked")


@pytest.fixture
def types_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user runs it: no annotation is checked, which costs half of the time or more.

    A tracer needs it too: its sizes are symbols, and comparing shapes would tie them to numbers.
    """
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(autouse=True)
def _device(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
        torch.manual_seed(0)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB, to fill."""
    with small_disk(tmp_path / "disk") as folder:
        yield folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public data sets: `ADDNORM_DATA`, or `shared/data` beside the repository."""
    if not DATA.is_dir():
        pytest.skip(f"no data in {DATA}: set ADDNORM_DATA to their folder")
    return DATA


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a run of a task, trained once; not to be written to."""
    from tests.runs.tiny import train_tiny

    return cache(lambda task: train_tiny(tmp_path_factory.mktemp(task), task))
