"""The check of a custom part: alone, and combined with all compatible parts."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, islice, product
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from addnorm.checking.another_device import another_device
from addnorm.checking.axes import ARCHITECTURES, AXES, MIXERS, PARTS, Architecture
from addnorm.checking.case import Case, build, real
from addnorm.checking.compare import every_comparison
from addnorm.checking.comparison import CellResult, Comparison, run_comparisons
from addnorm.checking.definition import DEFINITIONS
from addnorm.checking.families import family_name, part_examples
from addnorm.checking.long_texts import long_texts
from addnorm.checking.matrix import AROUND_MIXERS, USUAL, Cell, cells
from addnorm.checking.other_families import OTHER_CONTRACTS
from addnorm.checking.run import Report, Watch, compiled
from addnorm.checking.sampling import sample
from addnorm.parts import FROM_FILE, kind_of

PARTNERS = 60
"""The number of cells for a part, enough to combine it with every other part at least once."""

WITHOUT_GRADIENT = ("k_proj.bias",)
"""Parameters without a gradient, as softmax is invariant to a bias shared by all keys."""


@dataclass(kw_only=True)
class PartReport:
    """The result for a part: its family, the checks made, and the report on its cells."""

    family: str
    kind: str
    checked: list[str]
    report: Report = field(default_factory=Report)


def check_part(
    part: type,
    *,
    family: str | None = None,
    definition: Any = None,
    compile: bool = True,
    partners: int = PARTNERS,
    seed: int = 0,
    watch: Watch = lambda _: None,
) -> PartReport:
    """Check a custom part, with all of its examples.

    With a `definition` (see `addnorm check --help`), its outputs are also compared with that.
    Raises `InputError` for an object that is not a part, or whose family is ambiguous.
    """
    name = family_name(part, family)
    if name in OTHER_CONTRACTS:
        return _check_alone(part, name)
    checks = ["contract", "gradients", "causality", "padding and batch-mates", "cached = uncached"]
    checks += ["float32 and bfloat16", *(["compiled = eager"] if compile else [])]
    checks += ["definition"] if definition is not None else []
    report = PartReport(family=name, kind=kind_of(part), checked=checks)
    with ExitStack() as stack:
        if definition is not None:
            stack.enter_context(DEFINITIONS[name].adding(part, definition))
        for result in _results(part, name, definition is not None, compile, (partners, seed)):
            report.report.add(result)
            watch(report.report.checked)
    return report


def _check_alone(part: type, family: str) -> PartReport:
    """Check a part outside of a model, by its family's contract."""
    report = PartReport(family=family, kind=kind_of(part), checked=["contract"])
    for name, config in part_examples(part).items():
        compared = chain(round_trip(config, type(config)), OTHER_CONTRACTS[family](config))
        report.report.add(run_comparisons(f"{family}/{name}", compared))
    return report


def _results(
    part: type, family: str, defined: bool, compile: bool, sizes: tuple[int, int]
) -> Iterator[CellResult | str]:
    for name, config in part_examples(part).items():
        with_own = _with_own(PARTS[family].field, config, name)
        usual = _usual(family, with_own)
        for cell in usual:
            yield run_comparisons(f"{cell.id}, contract", contract(cell))
            yield run_comparisons(f"{cell.id}, long texts", long_texts(cell, defined=defined))
        around = [with_own(cell) for cell in partners(family) if _may_stand(cell, usual)]
        yield from (reason for cell in around if (reason := cell.refusal()))
        chosen = sample(sizes[0], sizes[1], around)
        if family == "norm":  # a norm can also be the norm of queries and keys
            inside = _with_own("attention.qk_norm", config, f"{name}_of_queries_and_keys")
            chosen += _usual(family, inside)
        for cell in chosen:
            if not cell.refusal():
                yield _compared(cell, defined)
        if compile:
            yield from (compiled(cell, defined=defined) for cell in usual)


def _compared(cell: Cell, defined: bool) -> CellResult | str:
    try:
        build(cell.config())
    except ValueError as error:  # a combination refused at build time
        return str(error)
    return run_comparisons(cell.id, every_comparison(cell, defined=defined))


def _with_own(place: str, config: Any, name: str) -> Callable[[Cell], Cell]:
    return lambda cell: replace(cell, own=(place, config, name))


def _may_stand(cell: Cell, usual: list[Cell]) -> bool:
    """Return whether the cell is valid for an architecture that accepts the part."""
    return cell.family in {usual_cell.family for usual_cell in usual} and cell.refusal() is None


def _usual(family: str, with_own: Callable[[Cell], Cell]) -> list[Cell]:
    """For each architecture that accepts the part, the valid cell closest to the default one."""
    chosen: list[Cell] = []
    for architecture in ARCHITECTURES:
        own = (with_own(cell) for cell in _near(architecture, family))
        chosen += islice((cell for cell in own if not cell.refusal() and _takes(cell)), 1)
    return chosen


def _near(architecture: Architecture, family: str) -> Iterator[Cell]:
    """Yield the default cell, then (except for mixers) cells with one or two other parts."""
    if family == "mixer":
        parts = tuple((axis, USUAL[axis]) for axis in AROUND_MIXERS)
        yield Cell(family=architecture, parts=parts, mixer=next(iter(MIXERS)))
        return
    yield Cell(family=architecture, parts=tuple(USUAL.items()))
    for n in (1,) if family == "head" else (1, 2):  # heads do not conflict with other parts
        for axes in combinations(AXES, n):
            for names in product(*(AXES[axis] for axis in axes)):
                parts = {**USUAL, **dict(zip(axes, names, strict=True))}
                yield Cell(family=architecture, parts=tuple(parts.items()))


def _takes(cell: Cell) -> bool:
    """Return whether the architecture accepts this part: heads of whole texts need an encoder."""
    if cell.own is None or cell.own[0] != "head" or cell.family == "encoder":
        return True
    try:
        case = Case.of(cell)
        return case.run("right").ndim == 2 and len(case.run("right")) == sum(case.lengths)
    except (ValueError, RuntimeError, TypeError):  # its outputs have another shape
        return False


def partners(family: str) -> list[Cell]:
    """The cells in which a custom part of this family can replace a built-in one."""
    plain = [cell for cell in cells() if not cell.variant]
    if family == "mixer":
        return [cell for cell in plain if cell.mixer == next(iter(MIXERS))]
    of_attention = [cell for cell in plain if not cell.mixer]
    if family not in AXES:
        return of_attention
    replaced = next(iter(AXES[family]))
    return [cell for cell in of_attention if dict(cell.parts)[family] == replaced]


def contract(cell: Cell) -> Iterator[Comparison]:
    """Yield the contract of a part, tested in an otherwise default model."""
    assert cell.own is not None
    config = cell.config()
    yield from round_trip(cell.own[1], type(config), config)
    case = Case.of(cell, defined=False)
    yield from _state(case)
    yield from _types(case)
    yield from _gradients(case)
    yield from another_device(case)


def round_trip(part: Any, holder: type, config: Any = None) -> Iterator[Comparison]:
    """Check that a configuration stays equal when it is serialised and parsed again."""
    adapter: Any = TypeAdapter(holder)
    whole = part if config is None else config
    written = json.loads(adapter.dump_json(whole))
    restored = adapter.validate_python(written, context=FROM_FILE)
    yield Comparison.that("a configuration read again is equal", restored == whole)


def _state(case: Case) -> Iterator[Comparison]:
    """Check that the state dict restores a model completely."""
    with torch.random.fork_rng(devices=[]):
        other = build(case.config).double().eval()
    other.load_state_dict(case.model.state_dict(), strict=True)
    with torch.no_grad():
        inputs, valid = case.batch("right")
        ours, expected = (real(model(*inputs), valid) for model in (other, case.model))
    yield Comparison("a state dict read again", ours, expected, 0.0)


def _types(case: Case) -> Iterator[Comparison]:
    """Check that outputs have the model's dtype and are finite."""
    inputs, valid = case.batch("right")
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        ours = real(deepcopy(case.model).to(dtype)(*inputs), valid)
        name = str(dtype).removeprefix("torch.")
        yield Comparison.that(f"outputs in {name} stay {name}", ours.dtype == dtype)
        yield Comparison.that(f"outputs in {name} are finite", bool(ours.isfinite().all()))


def _gradients(case: Case) -> Iterator[Comparison]:
    """Check that every parameter has a gradient that agrees with finite differences."""
    model = case.model
    inputs, valid = case.batch("right")
    outputs = real(model(*inputs), valid)
    direction = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0)).double()
    gradients: Sequence[Tensor | None] = torch.autograd.grad(
        (outputs * direction).sum(), list(model.parameters()), allow_unused=True
    )
    for (name, _), gradient in zip(model.named_parameters(), gradients, strict=True):
        moved = _is_gradient(gradient) or name.endswith(WITHOUT_GRADIENT)
        yield Comparison.that(f"a gradient reaches {name}", moved)
    yield Comparison.that("gradcheck", _gradcheck(deepcopy(model), inputs, valid))


def _is_gradient(gradient: Tensor | None) -> bool:
    if gradient is None:
        return False
    return bool(gradient.isfinite().all()) and bool(gradient.abs().sum() > 0)


def _gradcheck(model: nn.Module, inputs: tuple[Tensor, ...], valid: Tensor) -> bool:
    """Check that the derivatives by all parameters agree with finite differences.

    The model is not usable afterwards: where layers share a module, `functional_call` swaps its
    parameters once for each of its names, and does not put the first ones back.
    """
    shapes = {name: p.shape for name, p in model.named_parameters()}
    flat = torch.cat([p.detach().flatten() for p in model.parameters()]).requires_grad_()

    def run(weights: Tensor) -> Tensor:
        pieces = weights.split([shape.numel() for shape in shapes.values()])
        named: Mapping[str, Tensor] = {
            name: piece.view(shape)
            for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
        }
        return real(torch.func.functional_call(model, dict(named), inputs), valid)

    return torch.autograd.gradcheck(run, (flat,), fast_mode=True, atol=1e-5, rtol=1e-3)
