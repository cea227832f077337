"""A catalogue of all parts, read from the unions of configurations: equation, source and file."""

import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import addnorm
from addnorm.checking import check_family_name
from addnorm.checking.families import fitting_families
from addnorm.models import ModelConfig
from addnorm.models.inputs import InputConfig
from addnorm.nn.attention import CoreConfig, OutputConfig, PatternConfig, ScoreConfig
from addnorm.nn.blocks import MixerConfig
from addnorm.nn.embed import AnyEmbeddingConfig
from addnorm.nn.heads import HeadConfig
from addnorm.nn.moe import AnyFeedForwardConfig
from addnorm.nn.norms import NormConfig
from addnorm.nn.positions import PositionConfig, ScalingConfig
from addnorm.nn.residuals import ResidualConfig
from addnorm.parts import kind_of, members

FAMILIES: dict[str, Any] = {
    "positions": PositionConfig,
    "scalings": ScalingConfig,
    "norms": NormConfig,
    "placements": ResidualConfig,
    "mixers": MixerConfig,
    "scores": ScoreConfig,
    "patterns": PatternConfig,
    "cores": CoreConfig,
    "outputs": OutputConfig,
    "feedforwards": AnyFeedForwardConfig,
    "embeddings": AnyEmbeddingConfig,
    "inputs": InputConfig,
    "heads": HeadConfig,
    "models": ModelConfig,
}
"""The union of each family, by the family's plural name."""

EITHER = " or "
"""The separator between the families of a part that fits several."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part as its docstring describes it; missing information is empty."""

    family: str
    kind: str
    name: str
    equation: str
    source: str
    file: str


def parts(family: str | None = None, modules: Sequence[str] = ()) -> list[Part]:
    """Return all parts, or those of one family, including custom parts defined in `modules`.

    Raises `InputError` for an unknown family.
    """
    own = [part for module in modules for part in _custom_parts(module)]
    names = [*dict.fromkeys([*FAMILIES, *(name for part in own for name in _families_of(part))])]
    if family is not None:
        check_family_name(family, names)
    ours = [part for name in FAMILIES for part in _members(name)]
    return [part for part in [*ours, *own] if family in (None, *_families_of(part))]


def _families_of(part: Part) -> list[str]:
    return part.family.split(EITHER)


def module_names(imports: Sequence[str]) -> list[str]:
    """The module names of files and modules to import."""
    return [Path(name).stem if name.endswith(".py") else name for name in imports]


def _custom_parts(module: str) -> Iterator[Part]:
    """Yield the parts that a user's module defines, in order."""
    for name, config in vars(sys.modules[module]).items():
        if not isinstance(config, type) or config.__module__ != module:
            continue
        if not (fitting := fitting_families(config)):  # not a part
            continue
        described = _own_described(config)
        yield Part(
            family=EITHER.join(f"{name}s" if f"{name}s" in FAMILIES else name for name in fitting),
            kind=kind_of(config),
            name=name,
            equation=next(filter(None, map(equation, described)), ""),
            source=next(filter(None, map(source, described)), ""),
            file=Path(inspect.getfile(config)).name,
        )


def _own_described(config: type) -> list[type]:
    """Return the classes that may describe a custom part: the built one, and its configuration.

    The class built is the return type of the method, or else has the name of the configuration
    without `Config`; classes from this package and PyTorch do not describe the part.
    """
    method = getattr(config, "build", None) or getattr(config, "train", None)
    try:
        hint = get_type_hints(method).get("return") if method else None
    except (NameError, AttributeError, TypeError):  # imported under TYPE_CHECKING only
        hint = None
    named = vars(sys.modules[config.__module__]).get(config.__name__.removesuffix("Config"))
    package = config.__module__.partition(".")[0]
    built = [
        described
        for described in (hint, *get_args(hint), named)
        if isinstance(described, type) and described.__module__.partition(".")[0] == package
    ]
    return [*built, config]


def _members(family: str) -> Iterator[Part]:
    for config, described in describing(members(FAMILIES[family])).items():
        yield Part(
            family=family,
            kind=kind_of(config),
            name=described.__name__,
            equation=equation(described),
            source=source(described) or source(config),
            file=str(Path(inspect.getfile(described)).relative_to(Path(addnorm.__file__).parent)),
        )


def describing(configs: Sequence[type]) -> dict[type, type]:
    """Return the class whose docstring describes a part: the module or its configuration.

    It is the configuration if its docstring begins with an equation, or if several configurations
    build the same module; otherwise it is the module.
    """
    built = {config: _built(config) for config in configs}
    times = Counter(built.values())
    equations = re.compile(r"`[^`]*[+(][^`]*`")
    return {
        config: config
        if times[module] > 1 or equations.match(inspect.getdoc(config) or "")
        else module
        for config, module in built.items()
    }


def _built(config: type) -> type:
    """The class that a configuration builds (the first of a union), or the configuration itself."""
    build = getattr(config, "build", None)
    built = get_type_hints(build)["return"] if build else config
    return built if isinstance(built, type) else get_args(built)[0]


def equation(part: type) -> str:
    """The first code span in the docstring's first sentence that is more than a name.

    A TOML table, which begins with a brace, is not an equation.
    """
    sentence = re.split(r"(?<=[^.])\.(?:\s|$)", inspect.getdoc(part) or "", maxsplit=1)[0]
    codes = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", sentence)]
    return next((code for code in codes if re.search(r"^(?!{).*[^\w.&]", code)), "")


def source(part: type) -> str:
    """The first citation in the docstring, with its section or equation."""
    text = " ".join((inspect.getdoc(part) or "").split())
    text = re.sub(r" \((?:arXiv )?\d{4}\.\d{4,5}\)", "", text)  # stands before the section
    citation = re.search(
        r"\b(?:[A-Z]\w+ (?=AI ))?[A-Z][^\s(),;:.`]*(?: et al\.| &(?: [A-Z][^\s(),;:.`]*)+| Team)?"
        r" (?:19|20)\d\d(?:, (?:§|eq\. |fig\. |alg\. |appendix )[\w.–]*\w)?",
        text,
    )
    return citation[0] if citation else ""
