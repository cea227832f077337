"""The reference pages of the manual, written from the configurations and the commands.

A field or an option without a sentence is an error, which the build stops at.
"""

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from cyclopts import App
from cyclopts.argument import Argument

from addnorm.checking.parts import FAMILIES, describing
from addnorm.config import OneOrMany, meanings
from addnorm.parts import family_of, kind_of, members
from addnorm.runs.recipes.error_messages import chooses, classes_in, hints_of
from addnorm.runs.recipes.recipe import Recipe


def write_all(folder: Path, app: App) -> None:
    """Every generated part of a page, as Markdown in `folder`."""
    folder.mkdir(exist_ok=True)
    for name, text in {**recipe_pages(), "commands": commands_page(app)}.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


# Recipes: sections of configurations, and their fields.

PAGES = {
    "recipe_data": ("data", "tokenizer"),
    "recipe_model": ("model",),
    "recipe_train": ("train", "eval", "parallel"),
}
"""The tables of a recipe on each page."""

EXAMPLES = {
    "DatasetConfig.channels": 1,
    "strings": {"longest": 3},
    "group_pattern": "_([a-z]+)_",
    "hidden_states": {"weight": 0.5},
    "template": "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}",
    "capacity_factor": 1.25,
    "augment": {"time_width": 12},
    "ExamplesConfig.augment": ["flip", {"kind": "crop", "padding": 4}],
    "constraint": {"kind": "max_norm", "bound": 2.0},
    "core": "eager",
    "GatedDeltaConfig.d_key": 96,
    "GatedDeltaConfig.d_value": 128,
    "GatedDeltaConfig.n_key_heads": 4,
    "LatentAttentionConfig.query_rank": 96,
    "LatentAttentionConfig.score": {"softcap": 30.0},
    "n_distinct_layers": 1,
    "cross_attention": {"n_heads": 4},
    "d_ff": 2048,
    "d_head": 64,
    "d_hidden": 512,
    "data": {"kind": "text", "train": "my.txt", "valid_fraction": 0.1},
    "decoder_layer_pattern": [{"attention": "recurrent"}, {}],
    "decoder_max_len": 256,
    "ema": 0.999,
    "encoding": "latin-1",
    "example": "QuestionAnswer",
    "RecordsConfig.columns": {"answers": "answers.text"},
    "epochs": 20,
    "exits": [2, 4],
    "factor": 4.0,
    "first_convolution": {"kernel_size": 3},
    "fill": 1,
    "ContrastiveHeadConfig.bias": -10.0,
    "VectorHeadConfig.width": 512,
    "LongRoPEScaling.long": [2.0, 6.0],
    "LongRoPEScaling.short": [1.0, 1.5],
    "file": "measured.csv",
    "normalize": True,
    "ImagesConfig.file": "mnist.npz",
    "file_column": "path",
    "image": "image",
    "image_size": [32, 32],
    "kv_layers_back": 1,
    "label": "label",
    "label_column": "class",
    "look_back": 336,
    "label_pattern": "^([^_]+)_",
    "layer_pattern": [{"pattern": {"kind": "window", "size": 1024}}, {"pattern": "full"}],
    "max_len": 128,
    "metric": "bleu",
    "mtp": {"depth": 1},
    "canon": {"places": "AC"},
    "n_decoder_layers": 2,
    "d_embed": 128,
    "d_out": 128,
    "distillation": {"teacher": "runs/large"},
    "teacher": "runs/large",
    "attention_factor": 1.0,
    "forced_bos_token_id": 2,
    "forced_eos_token_id": 3,
    "max_length": 512,
    "max_new_tokens": 256,
    "n_kv_heads": 2,
    "name": "de-en",
    "original_max_len": 4096,
    "out_bias": False,
    "path": "wmt16",
    "patience": 5,
    "per_layer": {"width": 256},
    "permute_seed": 0,
    "pixels": 200_000,
    "root": "~/data",
    "save_every": 500,
    "schedule_steps": 1000,
    "season": 24,
    "scaling": {"kind": "yarn", "factor": 4.0, "original_max_len": 4096},
    "size": 256,
    "softcap": 30.0,
    "source": "en",
    "start": "runs/my",
    "steps": 5000,
    "stride": 8,
    "tags": "tags",
    "entity": "my-team",
    "tracking_uri": "http://127.0.0.1:5000",
    "labels": "topics",
    "value_column": "price",
    "value_residual": "learned",
    "values": "score",
    "target": "de",
    "target_vocab_size": 8000,
    "text": "text",
    "text_pair": "answer",
    "time_column": "date",
    "tokens": "words",
    "until": "2018-02-21",
    "weights": [3.0, 1.0],
    "ShardsConfig.train": ["shards/web", "shards/books"],
    "ShardsConfig.valid": "shards/web/valid",
    "ShardsConfig.test": "shards/test",
    "top_k": 40,
    "sample": 10**8,
    "transform": {"activation": "tanh"},
    "validate_every": 500,
    "vocab_size": 8000,
}
"""Examples of the fields whose default is none."""

SPLITS = {
    tuple[Path, Path]: ["{}.en", "{}.de"],
    tuple[str, str]: ["x_{}", "y_{}"],
    Path: "{}.txt",
    str: "{}",
}
"""Examples of a split, by what it is given as."""


@dataclass
class Section:
    """What may stand in some fields: our configurations, and anyone's own where it is `open`."""

    open: bool
    fields: list[str] = field(default_factory=list[str])
    configs: list[type] = field(default_factory=list[type])


Sections = dict[str, Section]
"""By the name of the family, or of the field."""


def recipe_pages() -> dict[str, str]:
    """The text of every page, which has the parts that may stand in its tables."""
    known: Sections = {}
    texts: dict[str, str] = {}
    for page, tables in PAGES.items():
        before = set(known)
        for table in tables:
            find_sections(known, table, hints_of(Recipe)[table])
        new = [name for name in known if name not in before]
        texts[page] = "\n".join(line for name in new for line in section_lines(name, known))
    return texts


def find_sections(known: Sections, name: str, annotation: Any) -> None:
    """Add the configurations of the field of that name, and those of their own fields."""
    if not (configs := classes_in(annotation)):
        return
    section = known.setdefault(
        section_name(known, name, annotation), Section(family_of(annotation) is not None)
    )
    section.fields += [name] if name not in section.fields else []
    new = [config for config in configs if config not in section.configs]
    section.configs += new
    for config in new:
        for inner, hint in hints_of(config).items():
            find_sections(known, inner, hint)


def section_name(known: Sections, field: str, annotation: Any) -> str:
    """The family of an annotation; else where its one configuration stands; else the field."""
    if family := family_of(annotation):
        return family.name
    first, *others = classes_in(annotation)
    standing = [name for name, section in known.items() if first in section.configs]
    return field if others or not standing else standing[0]


def section_lines(name: str, known: Sections) -> Iterator[str]:
    """All that may stand in one kind of field."""
    section = known[name]
    named = ", ".join(f"`{one}`" for one in section.fields)
    own = "; or [a part of your own](own_parts.md)" if section.open else ""
    about = meanings(Recipe).get(name) or f"What {named} may be{own}."
    yield from (f"(recipe-{name})=", f"## {name}", "", about, "")
    for config in section.configs:
        if "kind" in hints_of(config):
            kind = kind_of(config)
            yield from (f"(recipe-{name}-{kind})=", f'### `"{kind}"`', "")
        if summary(config) != about:  # which may be the sentence of the recipe's table
            yield from (summary(config), "")
        yield from field_lines(config, known)


def field_lines(config: type, known: Sections) -> Iterator[str]:
    """The fields of a configuration. Raises `ValueError` for one without a sentence."""
    said = meanings(config)
    for one in fields(config):  # pyright: ignore[reportArgumentType]
        if one.name == "kind":
            continue
        if not said.get(one.name):
            raise ValueError(f"{config.__name__}.{one.name} has no sentence: write one below it")
        kinds = type_text(hints_of(config)[one.name], one.name, known)
        yield from (f"`{one.name}`", f": {said[one.name]}", "")
        yield from (f"  {kinds[0].upper()}{kinds[1:]}. {default_and_example(config, one)}", "")


def default_and_example(config: type, of: "Field[Any]") -> str:
    """What is taken where nothing is said, and something else that may be."""
    other = example(config, of)
    shown = "" if other is None else f"Example: `{of.name} = {toml(other)}`."
    if of.default is MISSING:
        return f"Required. {shown}"
    if of.default is None:
        return f"May be left out. {shown}"
    return f"Default: `{of.name} = {toml(of.default)}`. {shown}".rstrip()


TOLD = {c: told for union in FAMILIES.values() for c, told in describing(members(union)).items()}
"""The class that tells of a part, which may be what the configuration builds."""


def summary(config: type) -> str:
    """What the docstring of a part begins with: the equation and its source."""
    return " ".join((inspect.getdoc(TOLD.get(config, config)) or "").split("\n\n")[0].split())


# Types, defaults and examples, as a recipe writes them.

NAMES = {int: "integer", float: "number", str: "text", Path: "path", bool: "`true` or `false`"}

BOUNDS = {"gt": "above {}", "ge": "from {}", "lt": "below {}", "le": "up to {}"}


def type_text(annotation: Any, name: str, known: Sections) -> str:
    """What may be written for the field of that name."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if configs := classes_in(annotation):
        section = section_name(known, name, annotation)
        if chooses(annotation):
            several = (
                ", or a list of them" if any(isinstance(m, OneOrMany) for m in arguments) else ""
            )
            return f"any [{section}](#recipe-{section}){several}"
        kind = kind_of(configs[0])
        anchor = f"{section}-{kind}" if "kind" in hints_of(configs[0]) else section
        several = "list of tables" if origin is tuple else "table"
        return f"{several}, see [{anchor.removeprefix(section + '-')}](#recipe-{anchor})"
    if origin is Annotated:
        bounds = ", ".join(bound for one in arguments[1:] for bound in bounds_in(one))
        return f"{type_text(arguments[0], name, known)} {bounds}".rstrip()
    if origin is Literal:
        return f"one of {', '.join(f'`{toml(value)}`' for value in arguments)}"
    inner = [type_text(one, name, known) for one in arguments if one not in (NoneType, ...)]
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(inner))
    if origin is dict:
        return f"table of {inner[-1]}s"
    if origin is tuple:
        plural = re.sub(r"(number|integer|path|text)\b", r"\1s", inner[0], count=1)
        return f"{'list' if ... in arguments else 'pair'} of {plural}"
    return NAMES[annotation]


def bounds_in(metadata: Any) -> Iterator[str]:
    """The limits that an annotation sets."""
    for one in getattr(metadata, "metadata", [metadata]):
        yield from (
            said.format(f"{getattr(one, name):g}")
            for name, said in BOUNDS.items()
            if hasattr(one, name)
        )


def toml(value: Any) -> str:
    """A value as TOML writes it; a part with its defaults as its word."""
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            one.name: getattr(value, one.name)
            for one in fields(value)
            if one.name != "kind" and getattr(value, one.name) != one.default
        }
        if "kind" not in hints_of(type(value)):
            return toml(changed)
        return toml({"kind": kind_of(value), **changed} if changed else kind_of(value))
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name} = {toml(one)}' for name, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def example(config: type, of: "Field[Any]") -> Any:
    """A value that is not the default; None where the default shows how it is written."""
    annotation = hints_of(config)[of.name]
    missing = of.default in (None, MISSING, ())
    known = EXAMPLES.get(f"{config.__name__}.{of.name}")
    if known is None and missing and of.name in ("train", "valid", "test"):
        checked = get_origin(annotation) is Annotated
        plain = get_args(annotation)[0] if checked else annotation
        form = next(form for given, form in SPLITS.items() if given in (plain, *get_args(plain)))
        return json.loads(json.dumps(form).replace("{}", of.name))
    known = EXAMPLES.get(of.name) if known is None else known
    if missing and known is not None:
        return known
    if chooses(annotation):
        return other_kind(annotation, None if missing else kind_of(of.default))
    if isinstance(of.default, bool):
        return not of.default
    if get_origin(annotation) is Literal:
        return next(value for value in get_args(annotation) if value != of.default)
    return None


def other_kind(annotation: Any, usual: str | None) -> str | None:
    """The first other part that needs nothing said; None where there is no other."""
    for config in classes_in(annotation):
        needs = any(one.default is MISSING for one in fields(config))
        if kind_of(config) != usual and not needs:
            return kind_of(config)
    return None


# Commands, with their arguments and options.


def commands_page(app: App) -> str:
    """Every command. Raises `ValueError` for one without an example, or an option unexplained."""
    found = ((name, app[name]) for name in app if not name.startswith("-"))
    return "\n".join(
        line for name, command in found for line in command_or_group_lines(name, command)
    )


def command_or_group_lines(name: str, command: App) -> Iterator[str]:
    """A command; or those of a group, such as `lab run`, below the sentence of the group."""
    inner = [one for one in command if not one.startswith("-")]
    if not inner:
        yield from command_lines(name, command)
        return
    yield from (f"(command-{name})=", f"## addnorm {name}", "", command.help, "")
    for one in inner:
        yield from (
            line.replace("## ", "### ", 1) for line in command_lines(f"{name} {one}", command[one])
        )


def command_lines(name: str, command: App) -> Iterator[str]:
    """One command: what it does, an example, its arguments and its options."""
    said, marked, after = inspect.cleandoc(command.help).partition("Example: `")
    shown, _, after = after.partition("`")
    if not marked or not shown.startswith(f"addnorm {name}"):
        raise ValueError(f"addnorm {name} has no example: write `Example: ` in its docstring")
    about = said.strip() + after.removeprefix(".").partition("\nParameters\n---")[0].rstrip()
    found = command.assemble_argument_collection(parse_docstring=True)
    arguments = [one for one in found if one.show]
    needed = [f"{one.name} …" for one in arguments if one.index is None and one.required]
    usage = [place(one) for one in arguments if one.index is not None] + needed
    yield from (f"(command-{name.replace(' ', '-')})=", f"## addnorm {name}", "", about, "")
    yield from ("```console", f"$ {shown}", "```", "")
    usage += ["[OPTIONS]"] if any(one.index is None for one in arguments) else []
    yield from (f"Usage: `{' '.join(['addnorm', name, *usage])}`", "")
    for argument in arguments:
        yield from argument_lines(name, argument)


def place(argument: Argument) -> str:
    """An argument without a name of its own, in capitals; in brackets where it may be left out."""
    name = argument.name.removeprefix("--").upper()
    several = " …" if argument.field_info.kind is inspect.Parameter.VAR_POSITIONAL else ""
    return name if argument.required else f"[{name}{several}]"


def argument_lines(command: str, argument: Argument) -> Iterator[str]:
    """One argument: its form, what it does, what may be given and what is taken otherwise."""
    meaning = " ".join((argument.parameter.help or "").split())
    if not meaning:
        raise ValueError(f"addnorm {command} {argument.name} has no sentence: write one")
    name = argument.name if argument.index is None else place(argument)
    yield from (f"`{name}`", f": {meaning}", "", f"  {kind_given(argument)}", "")


WORDS = {"int": "Integer", "float": "Number", "str": "Text", "Path": "Path"}


def kind_given(argument: Argument) -> str:
    """What may be given, and what is taken where nothing is."""
    if argument.hint is bool:
        return "No value."
    if choices := argument.get_choices():
        kinds = f"One of {', '.join(f'`{one}`' for one in choices)}."
    else:
        kinds = f"{WORDS[re.findall('|'.join(WORDS), str(argument.hint))[0]]}."
    default = argument.field_info.default
    if argument.required:
        return f"{kinds} Required."
    unsaid = default in (None, (), "", inspect.Parameter.empty)
    return kinds if unsaid else f"{kinds} Default: `{default}`."
