"""What stands in for a model writes for it, or is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.tiny import train_tiny

from addnorm.errors import InputError
from addnorm.generate import BeamConfig, DecodingConfig, GreedyConfig, SampleConfig
from addnorm.generate.early_exit import ConfidenceRule, EarlyExit
from addnorm.runs.inference.text import write
from addnorm.runs.run import Run

RunOf = Callable[[str], Path]


@pytest.mark.parametrize("decoding", [GreedyConfig(), SampleConfig(), BeamConfig(beams=3)])
def test_the_depth_of_a_text_is_its_own(decoding: DecodingConfig, tmp_path: Path) -> None:
    """Of different lengths, each is as deep as alone, and all together as deep as the count."""
    folder = train_tiny(tmp_path, "language", **{"model.n_layers": "3", "model.exits": "[1, 2]"})
    run, early = Run.open(folder), EarlyExit(ConfidenceRule(0.025))
    texts = ["b", "To be or not", "", "To be", "no"]
    found = write(run, texts, decoding, max_new_tokens=12, compiled=early)
    depths = [best[0].depth for best in found]
    total = early.mean_depth
    if not isinstance(decoding, SampleConfig):  # whose numbers depend on the place
        alone = [write(run, [t], decoding, max_new_tokens=12, compiled=early) for t in texts]
        assert depths == [best[0].depth for [best] in alone]
    assert len({*depths}) > 1
    assert min(filter(None, depths)) <= total <= max(filter(None, depths))
    assert write(run, texts, decoding, max_new_tokens=3)[0][0].depth is None


def test_a_model_without_exits_is_refused(run_of: RunOf) -> None:
    run, early = Run.open(run_of("language")), EarlyExit(ConfidenceRule(0.5))
    with pytest.raises(InputError, match="no early exits"):
        write(run, ["a"], GreedyConfig(), compiled=early)


def test_a_translator_has_no_exits(run_of: RunOf) -> None:
    with pytest.raises(InputError, match="a translator has none"):
        write(
            Run.open(run_of("translation")),
            ["one dog"],
            GreedyConfig(),
            compiled=EarlyExit(ConfidenceRule(0.5)),
        )


def test_a_translator_has_no_type_of_its_cache(run_of: RunOf) -> None:
    run = Run.open(run_of("translation"))
    with pytest.raises(InputError, match="only decoder-only models keep keys and values in bf"):
        run.compiled(cache_dtype="bfloat16")
