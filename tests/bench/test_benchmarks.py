"""The benchmarks are consistent, and every installed peer runs at a small size."""

import pickle
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from addnorm.bench import NAMES, prepared
from addnorm.bench.benchmark import Benchmark, Ratio
from addnorm.bench.benchmarks import BENCHMARKS, named
from addnorm.bench.decoding import DecodingSizes
from addnorm.bench.implementation import Implementation, Worker
from addnorm.bench.training import TINY, DecoderSizes, TranslatorSizes
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.models.presets import gpt2_small
from addnorm.nn.attention import AttentionConfig


def test_names_are_those_of_the_benchmarks() -> None:
    assert tuple(benchmark.name for benchmark in BENCHMARKS) == NAMES


TRAINING = [benchmark for benchmark in BENCHMARKS if benchmark.name.startswith("train")]


def implementations(benchmarks: list[Benchmark]) -> list[object]:
    return [
        pytest.param(one, id=f"{benchmark.name}: {one.name}")
        for benchmark in benchmarks
        for one in benchmark.implementations
    ]


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda benchmark: benchmark.name)
def test_a_benchmark_is_consistent(benchmark: Benchmark) -> None:
    names = [one.name for one in benchmark.implementations]
    assert len(set(names)) == len(names)
    assert any(name != "ours" for name in names)
    for target in benchmark.targets:
        assert set(target.ours) <= set(names)
        assert not isinstance(target, Ratio) or set(target.peers) <= set(names)
    for one in benchmark.implementations:
        assert pickle.loads(pickle.dumps(one)).name == one.name, "it is sent to another process"


def test_named_finds_benchmarks_and_rejects_others() -> None:
    assert named([]) == list(BENCHMARKS)
    assert [benchmark.name for benchmark in named(["translate", "decode"])] == [
        "translate",
        "decode",
    ]
    with pytest.raises(
        InputError, match=r"no benchmark is called 'decod'.*Did you mean 'decode'\?"
    ):
        named(["decod"])


def small(sizes: DecoderSizes | TranslatorSizes) -> DecoderSizes | TranslatorSizes:
    few = {"n_layers": 1, "d_model": 32, "n_heads": 2, "d_ff": 48, "vocab_size": 50}
    return replace(sizes, **few, batch=2, length=6)


def once(implementation: Implementation, folder: Path, **options: object) -> float:
    if implementation.missing:
        pytest.skip(f"not installed: {implementation.missing}")
    assert isinstance(implementation.build, partial)
    shrunk = partial(implementation.build, **options)
    with closing(Worker(replace(implementation, build=shrunk, warm_up=False), folder)) as worker:
        return worker.round().units


@pytest.mark.long
def test_ours_trains_in_a_process_of_its_own(tmp_path: Path) -> None:
    ours = TRAINING[0].implementations[0]
    sizes = small(ours.build.keywords["sizes"])
    assert once(ours, tmp_path, sizes=sizes) % sizes.tokens == 0


@pytest.mark.slow
@pytest.mark.parametrize("implementation", implementations(TRAINING))
def test_every_implementation_trains(implementation: Implementation, tmp_path: Path) -> None:
    sizes = small(implementation.build.keywords["sizes"])
    assert once(implementation, tmp_path, sizes=sizes) % sizes.tokens == 0


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small model of each kind in the forms of all implementations."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in ("decode", "translate")}
    prepared.gpt2(folders["decode"], config=tiny_gpt2(), vocab_size=320)
    prepared.translator(folders["translate"], sizes=replace(TINY, d_model=32, vocab_size=320))
    return folders


def tiny_gpt2() -> DecoderConfig:
    return replace(gpt2_small(), n_layers=1, d_model=32, attention=AttentionConfig(n_heads=2))


@pytest.mark.slow
@pytest.mark.parametrize(
    "implementation", implementations([w for w in BENCHMARKS if w.name == "decode"])
)
def test_every_implementation_decodes(
    implementation: Implementation, forms: dict[str, Path]
) -> None:
    sizes = DecodingSizes(batch=3, prompt=5, new=4, vocab_size=320)
    assert once(implementation, forms["decode"], sizes=sizes) == 9


@pytest.mark.slow
@pytest.mark.parametrize(
    "implementation", implementations([w for w in BENCHMARKS if w.name == "translate"])
)
def test_every_implementation_translates(
    implementation: Implementation, forms: dict[str, Path]
) -> None:
    sizes = DecodingSizes(batch=4, prompt=5, new=4, vocab_size=320)
    assert once(implementation, forms["translate"], sizes=sizes) % 16 == 0
