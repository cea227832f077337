"""Every part there is, read from the unions of configurations: its equation, source and file."""

import inspect
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import addnorm
from addnorm.errors import InputError, nearest
from addnorm.models import ModelConfig
from addnorm.models.inputs import InputConfig
from addnorm.nn.attention import CoreConfig, PatternConfig, ScoreConfig
from addnorm.nn.heads import HeadConfig
from addnorm.nn.mixers import MixerConfig
from addnorm.nn.moe import AnyFeedForwardConfig
from addnorm.nn.norms import NormConfig
from addnorm.nn.positions import PositionConfig, ScalingConfig
from addnorm.nn.residuals import ResidualConfig

FAMILIES: dict[str, Any] = {
    "positions": PositionConfig,
    "scalings": ScalingConfig,
    "norms": NormConfig,
    "placements": ResidualConfig,
    "mixers": MixerConfig,
    "scores": ScoreConfig,
    "patterns": PatternConfig,
    "cores": CoreConfig,
    "feedforwards": AnyFeedForwardConfig,
    "inputs": InputConfig,
    "heads": HeadConfig,
    "models": ModelConfig,
}
"""The unions, by what their members are called."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part, as its docstring tells of it; what that leaves out is empty."""

    family: str
    kind: str
    name: str
    equation: str
    source: str
    file: str


def parts(family: str | None = None) -> list[Part]:
    """Every part, or those of one family. Raises `InputError` for a family that there is not."""
    if family is None:
        return [part for name in FAMILIES for part in parts(name)]
    if family not in FAMILIES:
        hint = nearest(family, FAMILIES) or f" There are {', '.join(FAMILIES)}."
        raise InputError(f"no family of parts is called {family!r}.{hint}")
    return list(_members(family))


def _members(family: str) -> Iterator[Part]:
    configs = [_plain(member) for member in get_args(_plain(FAMILIES[family]))]
    built = {config: _built(config) for config in configs}
    times = Counter(built.values())
    for config in configs:
        # A configuration tells of itself where it begins with its equation, as do those of which
        # several build one module; of all others the module does.
        describes_itself = times[built[config]] > 1 or re.match(
            r"`[^`]*[+(][^`]*`", inspect.getdoc(config) or ""
        )
        described = config if describes_itself else built[config]
        yield Part(
            family=family,
            kind=config.kind,
            name=described.__name__,
            equation=equation(described),
            source=source(described) or source(config),
            file=str(Path(inspect.getfile(described)).relative_to(Path(addnorm.__file__).parent)),
        )


def _plain(annotated: Any) -> Any:
    """What `Annotated` annotates."""
    return get_args(annotated)[0] if hasattr(annotated, "__metadata__") else annotated


def _built(config: type) -> type:
    """The class that a configuration builds, the first if it may be one of several; or itself."""
    build = getattr(config, "build", None)
    built = get_type_hints(build)["return"] if build else config
    return built if isinstance(built, type) else get_args(built)[0]


def equation(part: type) -> str:
    """The first code in the first sentence of the docstring that is more than a name."""
    sentence = re.split(r"(?<=[^.])\.(?:\s|$)", inspect.getdoc(part) or "", maxsplit=1)[0]
    codes = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", sentence)]
    return next((code for code in codes if re.search(r"[^\w.&]", code)), "")


def source(part: type) -> str:
    """The first paper that the docstring names, with the place in it."""
    text = " ".join((inspect.getdoc(part) or "").split())
    found = re.search(
        r"\b[A-Z][^\s(),;:.`]*(?: et al\.| &(?: [A-Z][^\s(),;:.`]*)+| Team)? (?:19|20)\d\d"
        r"(?:, (?:§|eq\. |fig\. |alg\. |appendix )[\w.–]*\w)?",
        text,
    )
    return found[0] if found else ""
