"""Human-readable descriptions of runs and recipes."""

from collections.abc import Collection
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text
from rich.tree import Tree

from addnorm.convert.core.modules import places_of
from addnorm.convert.folder import check_weights, hf_model_type
from addnorm.convert.weights.files import INDEX, PICKLED, SAFE
from addnorm.convert.weights.gguf_file import GGUF, is_gguf
from addnorm.convert.weights.peft import is_adapter, name_of_base
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.models import EncoderConfig
from addnorm.nn.heads import has_joint_loss
from addnorm.parts import kind_of
from addnorm.runs.export import unsupported_forms
from addnorm.runs.files.folder import is_finished, is_quantized, read_settings
from addnorm.runs.files.quantization_file import read_quantization
from addnorm.runs.files.weights import build_model, count_parameters
from addnorm.runs.inference.decoding import usual_decoding
from addnorm.runs.options import Form
from addnorm.runs.recipes.recipe import Recipe, read_recipe, task_of
from addnorm.runs.train.cost import Estimate, PeakMemory
from addnorm.runs.trained_model import TrainedModel
from addnorm.tasks.registry import task_of_head
from addnorm.training.checkpoint import checkpoints_in
from addnorm.training.loggers import read_journal
from addnorm.training.precision import resolve_precision


def describe(what: Path) -> RenderableType:
    """Describe a recipe file or a run folder: its parts, and a run's size, progress and scores.

    Raises `InputError` if it is neither.
    """
    if what.suffix == ".toml" or (what.is_file() and not is_gguf(what)):
        recipe = read_recipe(what)
        return Group(
            facts({"recipe": str(what), "task": task_of(recipe).name}),
            Text(),
            planned(recipe),
        )
    return describe_run(what)


def describe_run(folder: Path) -> RenderableType:
    """Describe a run: its key facts, then its recipe.

    Raises `InputError` for a Hugging Face folder whose weights do not fit its `config.json`.
    """
    recipe, tokenizers, labels = read_settings(folder)
    foreign = hf_model_type(folder)
    gguf = GGUF.open(folder) if is_gguf(folder) else None
    rows = {"file" if gguf else "run" if foreign is None else "folder": str(folder)}
    if is_adapter(folder):
        rows["adapter of"] = name_of_base(folder)
    rows |= {
        "task": _task(recipe),
        "parameters": f"{count_parameters(recipe, tokenizers, labels):,}",
    }
    if tokenizers is not None:
        rows |= _vocabulary(tokenizers)
    if labels:
        rows["labels"] = f"{len(labels)}: {', '.join(labels)}"
    if gguf is not None:
        rows["architecture"] = f"{gguf.architecture}, of llama.cpp"
        rows["weights"] = gguf.kinds()
        return Group(facts(rows), Text(), parts(recipe.model, "model", recipe.model.kind))
    if foreign is not None:
        rows["family"] = f"{foreign}, from Hugging Face"
        rows["weights"] = _weights(folder)
        return Group(facts(rows), Text(), parts(recipe.model, "model", recipe.model.kind))
    quantization = read_quantization(folder) if is_quantized(folder) else None
    if quantization is not None:
        rows |= quantization.facts()
    rows |= progress(folder)
    small = count_parameters(recipe, tokenizers, labels) <= SMALL
    if quantization is None and small:
        model = build_model(recipe, tokenizers, labels)
        rows |= exports(TrainedModel(folder, recipe, tokenizers, labels, model))
    return Group(facts(rows), Text(), planned(recipe))


def _vocabulary(tokenizers: Tokenizers) -> dict[str, str]:
    """The rows on the tokenizers: their sizes, and whether they were learnt from a sample."""
    sizes = dict.fromkeys((tokenizers.source.vocab_size, tokenizers.target.vocab_size))
    rows = {"vocabulary": " and ".join(f"{n:,}" for n in sizes)}
    if tokenizers.sampled:
        rows["tokenizer"] = tokenizers.sampled.removeprefix("tokenizer: ")
    return rows


SMALL = 10**8
"""The most parameters of a model that is built to see where it can be exported to."""


def exports(run: TrainedModel) -> dict[str, str]:
    """The formats to which a model can be exported, and what prevents the others."""
    reasons = unsupported_forms(run)
    possible = [form for form in get_args(Form) if form not in reasons]
    rows = {"exports to": ", ".join(possible) or "no other format"}
    return rows | {f"not to {form}": reason for form, reason in reasons.items()}


def _weights(folder: Path) -> str:
    """The rows that describe the weights of a Hugging Face folder. Raises if they do not fit it."""
    inner = places_of(folder)[-1]
    if not any((inner / name).exists() for name in (SAFE, INDEX)):
        pickled = (
            f", but {PICKLED}, a pickle, which is not read" if (inner / PICKLED).exists() else ""
        )
        return f"no {SAFE}{pickled}"
    check_weights(folder)
    return "fit config.json"


def _task(recipe: Recipe) -> str:
    """The task, or the kind of output of an encoder without a task."""
    head = getattr(recipe.model.head, "kind", "")
    given = {"pooler": "a vector a text", "hidden": "a vector a token"}
    if head in given and (isinstance(recipe.model, EncoderConfig) or head == "hidden"):
        return given[head]
    return task_of(recipe).name


def progress(folder: Path) -> dict[str, str]:
    """The training progress and the last validation."""
    finished = is_finished(folder)
    saved = [path.name for path in checkpoints_in(folder / "checkpoints")]
    rows = {
        "state": "trained" if finished else "training not finished",
        "checkpoints": ", ".join(saved) or "none",
    }
    logged = read_journal(folder / "metrics.jsonl")
    steps = [line for line in logged.lines if "loss" in line]
    checks = [line for line in logged.lines if "valid_loss" in line]
    if steps:
        rows["last step"] = f"{steps[-1]['step']:,.0f} · loss {steps[-1]['loss']:.4g}"
    if checks:
        figures = {k.removeprefix("valid_"): v for k, v in checks[-1].items() if k != "step"}
        rows["validation"] = " · ".join(f"{name} {value:.4g}" for name, value in figures.items())
        rows["validation"] += f" (after step {checks[-1]['step']:,.0f})"
        lines = logged.measured_with.get(int(checks[-1]["step"]), {})
        rows |= {f"{name} is measured with": line for name, line in lines.items()}
    if logged.n_damaged:
        rows["damaged lines"] = f"{logged.n_damaged:,} of metrics.jsonl, left out here"
    return rows


def expectation(recipe: Recipe, cost: Estimate) -> RenderableType:
    """Describe the estimated cost of training a recipe."""
    precision = resolve_precision(recipe.train.precision, cost.device)
    rows = {
        "task": task_of(recipe).name,
        "parameters": f"{cost.parameters:,}",
        "steps": f"{cost.steps:,} ({cost.steps_per_epoch:,} an epoch)",
        "target tokens": f"{cost.tokens_per_step:,.0f} a step",
        "memory": f"{_megabytes(cost.state_bytes)} of weights, gradients and optimiser state",
        "time": f"about {_duration(cost.seconds)} on this {cost.device.type} in "
        f"{precision}, {1000 * cost.seconds_per_step:,.0f} ms a step "
        f"(mean of {cost.timed}; validation comes on top)",
    }
    return facts(rows)


def expected_memory(peak: PeakMemory) -> Table:
    """The predicted peak memory of training, split by use."""
    rows = {
        "libraries and data": peak.process,
        "weights": peak.weights,
        "optimiser state": peak.optimizer,
        "moving average": peak.average,
        "gradients and activations": peak.activations,
        "libraries at work, gaps": peak.other,
    }
    table = Table("memory at the peak", "", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, size in rows.items():
        if size:
            table.add_row(name, Text(_megabytes(size), justify="right"))
    what = "together" if peak.total > peak.before else "while reading the data"
    table.add_row(Text(what, "bold"), Text(_megabytes(peak.total), "bold", justify="right"))
    return table


def too_large(peak: PeakMemory) -> str | None:
    """A warning if training needs more memory than there is; None if it fits."""
    there = peak.available
    if there is None or not peak.exceeds():
        return None
    where = "this GPU" if peak.device.type == "cuda" else "this machine"
    return (
        f"training takes about {_megabytes(peak.total)} and {where} has {_megabytes(there)}: "
        "smaller batches with train.accumulate take less, and so does "
        "train.activation_checkpointing = 'block'; no step was timed"
    )


def planned(recipe: Recipe) -> Tree:
    """The parts of a recipe that act, with the decoding that its run uses."""
    unused = {"loss"} if has_joint_loss(recipe.model.head) else set[str]()
    task = task_of_head(recipe.model.head)
    if task is not None and not task.decodes:
        unused.add("decoding")
    return parts(_as_decoded(recipe), unused=unused)


def _megabytes(n: int) -> str:
    return f"{n / 2**20:,.1f} MiB" if n < 10 * 2**20 else f"{n / 2**20:,.0f} MiB"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"


def facts(rows: dict[str, str]) -> Table:
    """A table with two columns, names and values."""
    columns = Column(), Column(overflow="fold")  # a path is never cut
    table = Table(*columns, show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows.items():
        table.add_row(Text(name, "dim"), Text(value))
    return table


def _as_decoded(recipe: Recipe) -> Recipe:
    """The recipe with its run's decoding filled in, if it names none."""
    return replace(recipe, eval=replace(recipe.eval, decoding=usual_decoding(recipe)))


def parts(
    settings: Any, name: str = "recipe", kind: str = "", unused: Collection[str] = ()
) -> Tree:
    """A tree of a recipe's parts, each with its kind and its non-default fields.

    The fields in `unused` do not act, and are left out.
    """
    values = _fields(settings)
    changed = [
        f"{key} = {_value(value)}"
        for key, (value, default) in values.items()
        if key != "kind" and not is_part(value) and value != default and not _are_parts(value)
    ]
    words = [(name, "dim"), (kind, "bold"), (", ".join(changed), "")]
    tree = Tree(Text("  ").join(Text(*word) for word in words if word[0]))
    for key, (value, _) in values.items():
        if is_part(value) and key not in unused:
            tree.add(parts(value, key, _kind(value), unused))
        if _are_parts(value):
            for i, part in enumerate(value):
                tree.add(parts(part, f"{key}.{i}", _kind(part), unused))
    return tree


def _are_parts(value: Any) -> bool:
    return isinstance(value, tuple) and any(map(is_part, cast(tuple[Any, ...], value)))


def is_part(value: Any) -> bool:
    """Whether a value in a recipe is a configuration, built-in or custom."""
    return is_dataclass(value) or hasattr(type(value), "model_fields")


def _fields(settings: Any) -> dict[str, tuple[Any, Any]]:
    """The value and the default of every field."""
    if is_dataclass(settings):
        return {f.name: (getattr(settings, f.name), f.default) for f in fields(settings)}
    return {
        name: (getattr(settings, name), field.default)
        for name, field in type(settings).model_fields.items()
    }


def _kind(part: Any) -> str:
    """The kind of a part; empty for a built-in table without kinds."""
    ours = type(part).__module__.partition(".")[0] == "addnorm"
    return getattr(part, "kind", "") if ours else kind_of(part)


def _value(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_value, value))}]"
    return f'"{value}"' if isinstance(value, str | Path) else str(value)
