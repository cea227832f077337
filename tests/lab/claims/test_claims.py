"""The ten claims: complete in both languages, measurable, and each verdict can fall either way."""

import math
import re
from pathlib import Path
from typing import get_args

import pytest

import addnorm.lab.claims
from addnorm.errors import InputError
from addnorm.lab.claims import CLAIMS, claim_called
from addnorm.lab.claims.claim import Point, Results, Row, Size, verdict

FOLDER = Path(addnorm.lab.claims.__file__).parent
CHINESE = re.compile("[一-鿿]")


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_is_complete_and_short(name: str) -> None:
    claim = claim_called(name)
    assert len((FOLDER / f"{name}.py").read_text("utf-8").splitlines()) < 150
    for both in (claim.title, claim.statement, claim.literature, claim.predicted, claim.rule):
        english, chinese = both
        assert english
        assert CHINESE.search(chinese)
        assert not CHINESE.search(english)
    assert claim.panels


@pytest.mark.parametrize("size", get_args(Size))
@pytest.mark.parametrize("name", CLAIMS)
def test_its_cells_are_plain_and_different(name: str, size: Size) -> None:
    cells = [repr(sorted(cell.items())) for cell in claim_called(name).cells(size, "chain")]
    assert len(set(cells)) == len(cells) > 0


def short(settings: dict) -> dict:
    """The same cell with hardly any training."""
    return {**settings, **({"steps": 12} if "steps" in settings else {})}


@pytest.mark.sampled(3)
@pytest.mark.long
@pytest.mark.parametrize("name", CLAIMS)
def test_a_cell_is_measured_and_a_seed_decides_it(name: str) -> None:
    claim = claim_called(name)
    [first, *_, last] = claim.cells("quick", "chain")
    for cell in (first, last):
        rows, again = ([*claim.measure(short(dict(cell)), 1)] for _ in range(2))
        assert rows
        assert all(math.isfinite(row.value) for row in rows)
        assert [row[:3] for row in rows] == [row[:3] for row in again]
        if not cell.get("alone"):
            assert rows == again


@pytest.mark.parametrize("name", CLAIMS)
def test_the_night_has_all_that_full_measures(name: str) -> None:
    """Of whatever full size shows the night shows as much, or longer, wider and deeper."""
    fields = ("steps", "length", "timed", "past", "lengths", "spread")

    def kinds(size: Size) -> set[str]:
        cells = claim_called(name).cells(size, "chain")
        return {repr(sorted((k, v) for k, v in one.items() if k not in fields)) for one in cells}

    assert kinds("night") >= kinds("full")


NIGHT_ONLY = {
    "extrapolation": {"length": 64, "position": "alibi"},
    "warmup": {"depth": 100, "placement": "post"},
    "norms": {"spread": 0.95, "norm": "batchnorm"},
    "score_scale": {"d": 512, "score": "dot"},
    "distance": {"distance": 512, "asked": "recall", "mixer": "attention"},
    "residuals": {"depth": 64, "gain": 1.0},
    "cache": {"alone": True},
}
"""A cell of each claim that only the night has."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NIGHT_ONLY)
def test_a_cell_of_the_night_runs(name: str) -> None:
    """With two steps in place of hundreds."""
    claim, wanted = claim_called(name), NIGHT_ONLY[name]
    full = [repr(sorted(one.items())) for one in claim.cells("full", "chain")]
    cells = [
        one
        for one in claim.cells("night", "chain")
        if wanted.items() <= one.items() and repr(sorted(one.items())) not in full
    ]
    assert cells
    rows = [*claim.measure({**cells[0], **({"steps": 2} if "steps" in cells[0] else {})}, 1)]
    assert rows
    assert all(math.isfinite(row.value) for row in rows)


@pytest.fixture(scope="module")
def measured() -> dict[str, Results]:
    """Two seeds of every claim, with a few steps."""
    found: dict[str, Results] = {}
    for name in CLAIMS:
        claim, rows = claim_called(name), []
        for cell in claim.cells("quick", "chain"):
            for seed in (1, 2):
                rows += [(seed, row) for row in claim.measure(short(dict(cell)), seed)]
        found[name] = Results(rows)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", CLAIMS)
def test_it_is_measured_and_judged(name: str, measured: dict[str, Results]) -> None:
    claim, results = claim_called(name), measured[name]
    panels = {panel for panel, _, _ in results.values}
    assert panels >= {*claim.panels} - {"recall", "adding", "gradient"}
    findings = claim.judge(results)
    assert findings
    for finding in findings:
        english, chinese = finding.text
        assert "{" not in english + chinese
        assert "EVEN" not in english
        assert "SIZE" not in english


def table(**values: dict) -> Results:
    """Results of three seeds from `panel={(series, x): value}`, with a little noise."""
    return Results(
        (seed, Row(panel, *point, value + 1e-4 * seed))
        for panel, points in values.items()
        for point, value in points.items()
        for seed in (1, 2, 3)
    )


def with_point(results: Results, point: Point, value: float) -> Results:
    changed = {**results.values, point: {seed: value + 1e-4 * seed for seed in (1, 2, 3)}}
    made = Results([])
    made.values = changed
    return made


POSITIONS = ("sinusoidal", "learned", "rotary", "alibi", "t5", "transformer_xl", "kerple")
HOLDS = {
    "extrapolation": table(
        loss={("sinusoidal", 1): 1.3, ("sinusoidal", 4): 1.32, ("none", 1): 1.8},
        refused={("learned", 2): 1.0},
    ),
    "word_order": table(
        accuracy={
            ("accuracy", "encoder without"): 50.0,
            ("accuracy", "decoder without"): 51.0,
            **{("accuracy", name): 99.0 for name in POSITIONS},
        }
    ),
    "warmup": table(
        loss={
            ("post", 12): 2.05, ("post, warm-up", 12): 1.6, ("pre", 12): 1.5,
            ("pre, warm-up", 12): 1.5, ("deepnorm", 12): 1.5,
        }
    ),
    "norms": table(
        spread={(name, x): 2.0 + (1 + x) * (name == "batchnorm")
                for name in ("layernorm", "batchnorm") for x in (0.0, 0.9)},
        rate={(name, rate): 9.0 if rate > (1e-3 if name == "batchnorm" else 1.6e-2) else 2.0
              for name in ("layernorm", "batchnorm")
              for rate in (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)},
    ),
    "score_scale": table(
        entropy={("dot", 1024): 0.03, ("scaled_dot", 1024): 0.9},
        gradient={("dot", 16): 0.3, ("dot", 1024): 0.1},
        trained={("dot", 128): 1.9, ("scaled_dot", 128): 1.8},
    ),
    "heads": table(
        heads={("loss", 1): 1.6, ("loss", 8): 1.5},
        **{"kv heads": {("loss", 1): 1.52, ("loss", 2): 1.51, ("loss", 8): 1.5}},
        memory={("cache", 1): 512.0, ("cache", 8): 4096.0},
        speed={("decoding", 1): 3000.0, ("decoding", 8): 2000.0},
    ),
    "distance": table(
        copying={
            (name, x): 99.0 if x == 2 or name == "attention" else 12.0
            for name in ("rnn", "lstm", "gru", "convolution", "window", "attention")
            for x in (2, 16, 64)
        }
    ),
    "residuals": table(
        ratio={("gain 0", 16): -2.0, ("gain 1", 16): 0.1},
        loss={("gain 0", 16): 2.0, ("gain 1", 16): 1.5},
    ),
    "rmsnorm": table(
        loss={("loss", "rmsnorm"): 1.50, ("loss", "layernorm"): 1.50},
        time={("rmsnorm", 256): 8.0, ("layernorm", 256): 10.0},
    ),
    "cache": table(
        time={("with cache", 64): 1.0, ("with cache", 256): 1.1, ("with cache", 512): 1.2,
              ("without", 64): 4.0, ("without", 256): 15.0, ("without", 512): 32.0},
        size={("weights", "float32"): 4.0, ("weights", "int8"): 1.0, ("weights", "bfloat16"): 2.0},
        loss={("weights", one): 1.5 for one in ("float32", "bfloat16", "int8")},
    ),
}  # fmt: skip
HOLDS["distance"].values[("reach", "convolution", 2)] = dict.fromkeys((1, 2, 3), 5.0)

BREAKS = {
    "extrapolation": (("loss", "sinusoidal", 4), 2.4),
    "word_order": (("accuracy", "accuracy", "decoder without"), 100.0),
    "warmup": (("loss", "deepnorm", 12), 2.0),
    "norms": (("rate", "batchnorm", 1.6e-2), 2.0),
    "score_scale": (("trained", "dot", 128), 1.7),
    "heads": (("kv heads", "loss", 1), 1.6),
    "distance": (("copying", "lstm", 64), 97.0),
    "residuals": (("ratio", "gain 0", 16), 0.0),
    "rmsnorm": (("time", "rmsnorm", 256), 11.0),
    "cache": (("loss", "weights", "int8"), 1.6),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_its_rule_falls_either_way(name: str) -> None:
    judge = claim_called(name).judge
    assert verdict(judge(HOLDS[name])) == "supported"
    assert verdict(judge(with_point(HOLDS[name], *BREAKS[name]))) == "refuted"


@pytest.mark.parametrize(
    ("name", "point", "value"),
    [
        ("norms", ("rate", "layernorm", 3.2e-2), 2.0),
        ("heads", ("heads", "loss", 1), 1.5),
        ("warmup", ("loss", "post, warm-up", 12), 1.85),
    ],
    ids=["the end of the sweep", "equal", "at the limit"],
)
def test_unclear_figures_are_undecided(name: str, point: Point, value: float) -> None:
    assert verdict(claim_called(name).judge(with_point(HOLDS[name], point, value))) == "undecided"


def test_each_scheme_of_positions_has_to_tell_the_order() -> None:
    some = with_point(HOLDS["word_order"], ("accuracy", "accuracy", "alibi"), 60.0)
    assert verdict(claim_called("word_order").judge(some)) == "refuted"


def test_learned_positions_that_answer_refute_the_claim() -> None:
    results = Results([])
    results.values = {
        point: value for point, value in HOLDS["extrapolation"].values.items() if point[0] == "loss"
    }
    assert verdict(claim_called("extrapolation").judge(results)) == "refuted"


def test_an_unknown_claim_has_the_nearest_name() -> None:
    with pytest.raises(InputError, match="Did you mean 'warmup'"):
        claim_called("warm-up")
