"""Custom parts: objects, tables and words are accepted, and reading imports nothing."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from addnorm import parts
from addnorm.config import config
from addnorm.data import DataConfig
from addnorm.data.batches.buckets import BatchingConfig
from addnorm.data.tokenizing.tokenizers import TokenizerConfig
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.models.layers import LayerPositionConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.attention.multihead import CoreConfig
from addnorm.nn.attention.outputs import OutputConfig
from addnorm.nn.attention.patterns import PatternConfig
from addnorm.nn.attention.scores import ScoreConfig
from addnorm.nn.blocks import MixerConfig
from addnorm.nn.embed import AnyEmbeddingConfig
from addnorm.nn.feedforward import DenseFeedForwardConfig
from addnorm.nn.heads import AnyTokenHeadConfig, DecoderHeadConfig, HeadConfig
from addnorm.nn.moe import AnyFeedForwardConfig
from addnorm.nn.norms import LayerNormConfig, NormConfig, RMSNorm, RMSNormConfig, ScaleNormConfig
from addnorm.nn.positions import PositionConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.residuals import ResidualConfig
from addnorm.parts import (
    FROM_FILE,
    check_conflicts,
    examples,
    family_of,
    kind_of,
    members,
)
from addnorm.runs.recipes.custom_parts import import_parts, needed_imports
from addnorm.training.loss import LossConfig
from addnorm.training.optim import OptimizerConfig
from addnorm.training.schedule import ScheduleConfig


@dataclass(frozen=True)
class Scaled:
    """A norm of one's own, as plain as a configuration can be."""

    alpha: float = 0.5

    def build(self, d_model: int) -> str:
        return f"scaled by {self.alpha} over {d_model}"


class Pydantic(BaseModel):
    """Another library's way to write a configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    alpha: float = 0.5

    def build(self, d_model: int) -> str:
        return f"scaled by {self.alpha} over {d_model}"


@dataclass(frozen=True)
class Empty:
    """A configuration that builds nothing."""


@dataclass
class Mutable:
    def build(self, d_model: int) -> str:
        return ""


@dataclass(frozen=True)
class TakesNothing:
    def build(self) -> str:
        return ""


@dataclass(frozen=True)
class BuildsNothing:
    alpha: float = 0.5


NORM = TypeAdapter[Any](NormConfig)
OWN = f"{__name__}:Scaled"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """This module under its name, as `import` would leave it."""
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())


def _this_module() -> Any:
    module = type(sys)(__name__)
    vars(module).update(globals())
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose modules are forgotten again."""
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


@pytest.mark.parametrize("part", [Scaled(alpha=2.0), Pydantic(alpha=2.0)])
def test_a_custom_object_is_accepted_wherever_ours_are(part: Any) -> None:
    model = DecoderConfig(d_model=8, norm=part)
    assert model.norm is part
    written = NORM.dump_python(part, mode="json")
    assert written == {"kind": f"{__name__}:{type(part).__name__}", "alpha": 2.0}
    assert NORM.validate_python(written) == part


def test_a_word_is_the_part_with_its_defaults() -> None:
    assert NORM.validate_python("rmsnorm") == RMSNormConfig()
    assert NORM.validate_python(OWN) == Scaled()
    assert NORM.validate_python({"kind": OWN, "alpha": 3}) == Scaled(alpha=3.0)
    assert DecoderConfig(d_model=8, norm="rmsnorm").norm == RMSNormConfig()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Mutable(), "a part is a frozen dataclass"),
        (TakesNothing(), r"AddNorm calls build\(d_model\)"),
        ({"kind": f"{__name__}:BuildsNothing"}, "has no method build"),
        ({"kind": OWN, "alfa": 1}, "Did you mean 'alpha'"),
        ({"kind": OWN, "alpha": "much"}, "alpha: must be a number"),
        ({"kind": f"{__name__}:Scald"}, "Did you mean 'Scaled'"),
        ({"kind": "no_such_module:Scaled"}, "--import no_such_module"),
        ({"kind": "os:system"}, "not a part"),
        ({"kind": "os.path:join"}, "not a part"),
        ("rmsnrom", "rmsnorm"),
        (3, "valid dictionary"),
    ],
)
def test_another_object_is_rejected_as_a_part_in_one_message(value: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        NORM.validate_python(value)


def test_reading_imports_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that could be imported is not, whoever validates."""
    (folder / "canary_part.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(folder)
    for context in (None, FROM_FILE):
        with pytest.raises(ValidationError, match="not imported"):
            NORM.validate_python({"kind": "canary_part:Norm"}, context=context)
    assert "canary_part" not in sys.modules


def test_a_lazy_module_is_not_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that imports when an attribute is asked for, as large libraries do."""
    (folder / "lazy_part.py").write_text("def __getattr__(name):\n    raise SystemExit('asked')\n")
    monkeypatch.chdir(folder)
    import_parts(["lazy_part.py"])
    with pytest.raises(ValidationError, match="has no Norm"):
        NORM.validate_python({"kind": "lazy_part:Norm"})


def test_a_file_that_is_named_is_imported_once(folder: Path) -> None:
    (folder / "mine_part.py").write_text(
        "from dataclasses import dataclass\n"
        "count = 0\n"
        "@dataclass(frozen=True)\n"
        "class Norm:\n"
        "    eps: float = 1.0\n"
        "    def build(self, d_model): return self.eps\n"
    )
    import_parts(["mine_part.py"], folder)
    sys.modules["mine_part"].count = 1
    import_parts(["mine_part.py"], folder)
    assert sys.modules["mine_part"].count == 1
    assert NORM.validate_python({"kind": "mine_part:Norm", "eps": 2}).build(8) == 2.0


def test_files_that_cannot_be_imported(folder: Path) -> None:
    (folder / "norms_of_mine.py").write_text("")
    with pytest.raises(InputError, match=r"no such file. Did you mean 'norms_of_mine.py'"):
        import_parts(["norm_of_mine.py"], folder)
    with pytest.raises(InputError, match="no such module"):
        import_parts(["norm_of_mine"], folder)
    (folder / "json.py").write_text("")
    with pytest.raises(InputError, match="rename the file"):
        import_parts(["json.py"], folder)
    (folder / "broken_part.py").write_text("import no_such_thing_at_all")
    with pytest.raises(ModuleNotFoundError, match="no_such_thing_at_all"):
        import_parts(["broken_part.py"], folder)
    assert "broken_part" not in sys.modules


def test_an_entry_point_is_imported_for_a_person_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = folder / "their_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-parts\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[addnorm.parts]\ntheirs = their_parts:Norm\n")
    (folder / "their_parts.py").write_text(
        "from dataclasses import dataclass\n"
        "@dataclass(frozen=True)\n"
        "class Norm:\n"
        "    def build(self, d_model): return 'theirs'\n"
    )
    monkeypatch.syspath_prepend(folder)
    parts.installed_parts.cache_clear()
    with pytest.raises(ValidationError, match="--import their_parts"):
        NORM.validate_python({"kind": "theirs"}, context=FROM_FILE)
    assert "their_parts" not in sys.modules
    part = NORM.validate_python("theirs")
    assert part.build(8) == "theirs"
    assert NORM.dump_python(part) == {"kind": "theirs"}
    assert NORM.validate_python({"kind": "theirs"}, context=FROM_FILE) == part
    parts.installed_parts.cache_clear()


def test_a_class_inside_a_function_cannot_be_saved() -> None:
    @dataclass(frozen=True)
    class Local:
        def build(self, d_model: int) -> None: ...

    with pytest.raises(ValueError, match="top of a module"):
        NORM.dump_python(Local())


def test_kinds_members_and_families() -> None:
    assert kind_of(RMSNormConfig()) == kind_of(RMSNormConfig) == "rmsnorm"
    assert kind_of(Scaled()) == OWN
    assert LayerNormConfig in members(NormConfig)
    assert all(one.__module__ == "addnorm.nn.norms" for one in members(NormConfig))
    found = family_of(NormConfig | None)
    assert found is not None
    assert found.name == "norm"
    assert family_of(int | None) is None
    assert dict(examples(ScaleNormConfig)) == {"scalenorm": ScaleNormConfig()}


def test_the_imports_of_a_tree() -> None:
    tree = {"model": {"norm": {"kind": "b:X"}, "layers": [{"position": {"kind": "a.c:Y"}}]}}
    assert needed_imports({**tree, "kind": "decoder"}) == ["a.c", "b"]


@config
class Choosy:
    """A configuration that can refuse."""

    kind: Literal["choosy"] = "choosy"

    def conflict(self, around: Any) -> str | None:
        return "too small" if around < 1 else None


def test_a_family_may_have_a_default_kind() -> None:
    mixer = TypeAdapter[Any](MixerConfig)
    assert mixer.validate_python({"n_heads": 2}) == AttentionConfig(n_heads=2)
    assert mixer.validate_python("recurrent") == RecurrentConfig()


def test_a_conflict_of_parts_is_explained() -> None:
    check_conflicts([Choosy(), Scaled()], 1)
    with pytest.raises(ValueError, match="too small"):
        check_conflicts([Choosy()], 0)


FAMILIES = {
    "norm": [NormConfig],
    "position": [PositionConfig, LayerPositionConfig],
    "score": [ScoreConfig],
    "pattern": [PatternConfig],
    "core": [CoreConfig],
    "output": [OutputConfig],
    "mixer": [MixerConfig],
    "feedforward": [DenseFeedForwardConfig, AnyFeedForwardConfig],
    "placement": [ResidualConfig],
    "embedding": [AnyEmbeddingConfig],
    "head": [HeadConfig, AnyTokenHeadConfig, DecoderHeadConfig],
    "loss": [LossConfig],
    "schedule": [ScheduleConfig],
    "optimizer": [OptimizerConfig],
    "tokenizer": [TokenizerConfig],
    "data": [DataConfig],
    "batching": [BatchingConfig],
}


@pytest.mark.parametrize("name", FAMILIES)
def test_messages_call_a_family_by_its_name(name: str) -> None:
    """What takes nothing is no part of any family, and is told which one was meant."""
    for union in FAMILIES[name]:
        with pytest.raises(ValidationError, match=f" does not fit as {name}: it has no method"):
            TypeAdapter(union).validate_python({"kind": f"{__name__}:Empty"})


UNIONS: dict[str, Any] = {
    found.name: union
    for union in (
        *(PositionConfig, NormConfig, ResidualConfig, ScoreConfig, PatternConfig, CoreConfig),
        *(OutputConfig, AnyFeedForwardConfig, AnyEmbeddingConfig, HeadConfig, MixerConfig),
        *(LossConfig, ScheduleConfig, OptimizerConfig, TokenizerConfig, DataConfig),
        BatchingConfig,
    )
    if (found := family_of(union)) is not None
}
TWINS = ({"norm", "feedforward"}, {"pattern", "loss"})
"""Families that are built by the same arguments: what is built tells them apart."""


@cache
def _adapter(slot: str) -> TypeAdapter[Any]:
    return TypeAdapter(UNIONS[slot])


def _own_of(family: str) -> type:
    """A configuration of someone's own that is written as the protocol of a family says."""
    protocol = UNIONS[family].__metadata__[0].protocol
    methods = {name: one for name, one in vars(protocol).items() if name[0] != "_"}
    name = f"Own{family.title()}"
    cls = type(name, (), {**methods, "__module__": __name__, "__qualname__": name})
    return dataclass(frozen=True)(cls)


@pytest.mark.parametrize("family", UNIONS)
def test_a_slot_refuses_the_parts_of_other_families_by_name(family: str) -> None:
    part = _own_of(family)
    setattr(sys.modules[__name__], part.__name__, part)
    kind = f"{__name__}:{part.__name__}"
    for slot in UNIONS:
        adapter = _adapter(slot)
        given = part(), {"kind": kind}, kind
        if slot == family or {slot, family} in TWINS:
            assert all(adapter.validate_python(one) == part() for one in given)
            continue
        for one in given:
            told = rf"{part.__name__} does not fit as {slot}: .*It would fit as .*{family}"
            if {family} < {"pattern", "loss", "data"}:  # no argument that has a name
                told = rf"{part.__name__} does not fit as {slot}"
            with pytest.raises(ValidationError, match=told):
                adapter.validate_python(one)


def test_our_own_parts_are_refused_by_name_in_the_slots_of_others() -> None:
    with pytest.raises(
        InputError, match=r"RMSNormConfig does not fit as position: .* fit as norm or feedf"
    ):
        DecoderConfig(position=RMSNormConfig())  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="RMSNormConfig does not fit as position"):
        DecoderConfig(position={"kind": "addnorm.nn.norms:RMSNormConfig"})


@dataclass(frozen=True)
class Loose(Scaled):
    """A norm with a field that may be anything."""

    anything: Any = None
    pair: tuple[int, ...] = ()


@pytest.mark.parametrize(
    "value", [(1, 2), [1, (2,)], {3: 4}, {5}, Path("here"), Scaled(), float("nan")]
)
def test_what_would_be_read_as_something_else_is_not_written(value: Any) -> None:
    with pytest.raises(ValueError, match=r"Loose: anything = .* would be read again as .* a type"):
        NORM.dump_python(Loose(anything=value), mode="json")


@pytest.mark.parametrize("value", [None, 1, 1.0, "a", [1, [2]], {"a": [None]}, True])
def test_a_part_round_trips(value: Any) -> None:
    part = Loose(anything=value, pair=(1, 2))
    read = NORM.validate_python(NORM.dump_python(part, mode="json"))
    assert repr(read) == repr(part)


class Tripled(RMSNorm):
    def forward(self, x: Any, valid: Any = None) -> Any:
        return 3 * super().forward(x, valid)


@dataclass(frozen=True)
class TripledConfig(RMSNormConfig):
    """A custom part that keeps the `kind` of ours."""

    largest: float = 1.0

    def build(self, d_model: int) -> Tripled:
        return Tripled(d_model, eps=self.eps)


def test_a_subclass_of_a_part_of_ours_is_a_part_of_its_own() -> None:
    adapter = TypeAdapter[Any](NormConfig)
    written = adapter.dump_python(TripledConfig(eps=0.25), mode="json")
    assert written["kind"] == f"{__name__}:TripledConfig"
    assert adapter.validate_python(written) == TripledConfig(eps=0.25)
    assert adapter.validate_python(TripledConfig(eps=0.25)) == TripledConfig(eps=0.25)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_number_that_no_file_holds_is_refused_when_it_is_saved(value: float) -> None:
    with pytest.raises(ValueError, match=r"largest = .*only finite numbers can be saved"):
        TypeAdapter[Any](NormConfig).dump_python(TripledConfig(largest=value), mode="json")
