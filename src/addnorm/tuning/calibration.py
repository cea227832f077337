"""Measures the fastest kernels of this machine in two seconds, and keeps them in a file.

Each choice of `KernelChoices` is measured on the shapes of small models, both sides in turn.
torch's own kernel, for products the operator, is used unless another is faster beyond the noise.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeVar, cast

import torch
from pydantic import TypeAdapter
from torch import Tensor
from torch.nn import functional as F

from addnorm.atomic import atomic_file
from addnorm.config import config
from addnorm.files import cache_folder, read_file
from addnorm.kernels import activations, add_norm, attention, causal_attention, cross_entropy
from addnorm.kernels.build import has_operator
from addnorm.kernels.linear import OPERATOR as PRODUCT
from addnorm.machine import file_name, processor
from addnorm.nn.activations import gated, gelu_tanh
from addnorm.nn.attention.kernels import dot_product_attention, plain_products
from addnorm.nn.choices import UNLIMITED, KernelChoices, use_choices
from addnorm.nn.cross_entropy import cross_entropy_and_gradient
from addnorm.nn.dropout import keep_mask
from addnorm.nn.linear import linear, multiplies_bfloat16, onednn
from addnorm.nn.masks import Causal, Full
from addnorm.tuning.pages import NoAnswerError, allocating

T = TypeVar("T")

HOUR = 3600.0

Clock = Callable[[], float]
Work = Callable[[], object]

Fastest = Callable[[str, Mapping[str, Work]], str]
"""Measures several works under a heading, and returns the name of the fastest."""

LIMIT = 4.0
"""Seconds after which the machine is taken to be busy with other work."""

NOISE = 1.05
"""How many times faster than the first a kernel must be, in three rounds of four, to be chosen."""

SECONDS = 0.05
"""How long each choice is measured at least; there are sixteen measurements."""

QUERIES = (8, 1)
KEYS = (1024, 256)
LOGITS = (2**22, 2**23, 2**20)

VALUES: Mapping[str, Sequence[object]] = {
    "product": ("torch", "onednn", "operator"),
    "bfloat16_product": ("torch", "operator"),
    "bias": ("torch", "fused"),
    "few_queries": (*QUERIES, 0),
    "short_keys": (*KEYS, 0),
    "many_scores": (2**22, UNLIMITED),
    "logits_at_once": LOGITS,
    "attention": ("torch", "operator"),
    "attention_forward": ("torch", "operator"),
    "causal_attention": ("torch", "operator"),
    "activation": ("torch", "operator"),
    "cross_entropy": ("torch", "operator"),
    "add_norm": ("torch", "operator"),
    "keep_pages": (True, False),
}
"""The valid values of each choice."""

OPERATORS = {
    "product": PRODUCT,
    "bfloat16_product": PRODUCT,
    "attention": attention.OPERATOR,
    "attention_forward": attention.FORWARD,
    "causal_attention": causal_attention.OPERATOR,
    "activation": activations.OPERATOR,
    "cross_entropy": cross_entropy.OPERATOR,
    "add_norm": add_norm.OPERATOR,
}
"""The operator of each choice that has one."""

HEADINGS = {
    "bfloat16_product": "bfloat16 products, by any kernel",
    "attention": "bfloat16 attention, 256 keys, by any kernel",
    "attention_forward": "bfloat16 attention, 256 keys, its output",
    "causal_attention": "float32 attention, 256 keys, causal",
    "activation": "activations",
    "cross_entropy": "cross-entropy and its gradient",
    "add_norm": "dropout, sum and norm",
}
"""The headings of their measurements."""

EVERY_OPERATOR = KernelChoices(
    product="operator",
    bfloat16_product="operator",
    attention="operator",
    attention_forward="operator",
    causal_attention="operator",
    activation="operator",
    cross_entropy="operator",
    add_norm="operator",
)

ROUNDS = 2
"""The least number of rounds."""


@config
class Machine:
    """The machine and the versions that a calibration holds for."""

    processor: str
    threads: int
    torch: str
    addnorm: str


@config
class Calibration:
    """The choices for a machine, with the measured median times in milliseconds."""

    machine: Machine
    choices: KernelChoices
    figures: Mapping[str, Mapping[str, float]]
    seconds: float
    date: str
    offered: tuple[str, ...]
    """The names of the choices that there were; with a new one, all are measured again."""
    disturbed: bool = False
    """Return whether other work took the processor meanwhile; the defaults then hold for an hour.
    """


SWITCHES = 200
"""Involuntary switches a second above which the machine is taken to be busy with other work."""


def this_machine() -> Machine:
    """The processor, its threads, and the versions of torch and AddNorm."""
    return Machine(
        processor=processor(),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        addnorm=version("addnorm"),
    )


def calibrated(*, again: bool = False) -> Calibration:
    """The calibration of this machine, from its file or measured.

    One that other work disturbed is valid for an hour, so that a busy machine does not measure at
    every start.
    """
    machine = this_machine()
    file = file_of(machine)
    match None if again else read_kept(file, Calibration):
        case calibration, recent if _is_of(machine, calibration) and (
            recent or not calibration.disturbed
        ):
            return calibration
        case _:
            calibration = _in_thread(machine)
            keep(file, calibration)
            return calibration


def file_of(machine: Machine, *of: str) -> Path | None:
    """The file for a measurement on this machine; None if there is no cache folder."""
    facts = (machine.processor, f"{machine.threads} threads", machine.torch, machine.addnorm)
    return kept_file(*of, *facts)


def kept_file(*facts: str) -> Path | None:
    """The file for measurements that depend on these facts; None if there is no cache folder."""
    try:
        return cache_folder() / "kernels" / f"{file_name(' '.join(facts))}.json"
    except RuntimeError:  # the user has no home
        return None


def read_kept(file: Path | None, of: type[T]) -> tuple[T, bool] | None:
    """The value in a file, and whether it is less than an hour old; None if it cannot be read."""
    if file is None:
        return None
    with suppress(OSError, ValueError, RecursionError):
        value = TypeAdapter(of).validate_json(read_file(file, 2**16))
        return value, 0 <= time.time() - file.stat().st_mtime < HOUR
    return None


def keep(file: Path | None, value: object) -> None:
    """Write a file if possible; otherwise the next process measures again."""
    if file is not None:
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(file, concurrent=True) as partial:
                partial.write_bytes(TypeAdapter(type(value)).dump_json(value, indent=1))


def load_operators(chosen: KernelChoices) -> None:
    """Load the operators of these choices, since a forward pass uses only loaded ones.

    One that has to be compiled takes some seconds; a warning says why it cannot be, and then
    torch's kernel is used.
    """
    for choice, operator in OPERATORS.items():
        if getattr(chosen, choice) == "operator":
            has_operator(operator)


def _is_of(machine: Machine, stored: Calibration) -> bool:
    """Whether a stored calibration is of this machine, with valid choices and times."""
    times = [ms for figures in stored.figures.values() for ms in figures.values()]
    valid = all(getattr(stored.choices, name) in values for name, values in VALUES.items())
    valid &= stored.machine == machine and stored.offered == tuple(VALUES)
    return valid and all(ms > 0 for ms in times)


def _in_thread(machine: Machine) -> Calibration:
    """Calibrate in a new thread, which has none of the caller's modes, hooks or transforms.

    Fake tensors would be timed as if they were numbers.
    """

    def measure() -> Calibration:
        torch.set_num_threads(machine.threads)
        return calibrate(machine)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(measure).result()


def calibrate(machine: Machine, clock: Clock = time.perf_counter) -> Calibration:
    """Measure every choice. The random state and the choices in force are left as they are."""
    load_operators(EVERY_OPERATOR)
    start, switches = clock(), involuntary_switches()
    figures: dict[str, Mapping[str, float]] = {}
    chosen = KernelChoices()

    def fastest(what: str, works: Mapping[str, Work]) -> str:
        times = rounds_of(works, clock, until=start + LIMIT)
        figures[what] = {name: round(1e3 * median(seconds), 3) for name, seconds in times.items()}
        own, *others = times
        gains = {name: gain(times[own], times[name]) for name in others}
        best = max(gains, key=gains.__getitem__, default=own)
        return best if gains.get(best, 0.0) > NOISE else own

    try:
        with torch.random.fork_rng(devices=[]), use_choices(KernelChoices()), _plain_state():
            chosen = _chosen(fastest)
        disturbed = was_disturbed(switches, clock() - start)
    except TimeoutError:
        disturbed = True
    return Calibration(
        machine=machine,
        choices=KernelChoices() if disturbed else chosen,
        figures=figures,
        seconds=round(clock() - start, 3),
        date=date.today().isoformat(),
        offered=tuple(VALUES),
        disturbed=disturbed,
    )


def _chosen(fastest: Fastest) -> KernelChoices:
    return KernelChoices(
        product=cast(Any, fastest("float32 products", products())),
        few_queries=_largest(fastest, "float32 attention, {} queries", few_queries, QUERIES),
        logits_at_once=int(fastest("loss, logits at once", losses())),
        causal_attention=_operator(fastest, "causal_attention", causal_attention_gradients),
        activation=_operator(fastest, "activation", activation),
        cross_entropy=_operator(fastest, "cross_entropy", cross_entropies),
        add_norm=_operator(fastest, "add_norm", normed_sums),
        keep_pages=_keeps_pages(fastest),
        **(_in_bfloat16(fastest) if multiplies_bfloat16 else _emulated()),
    )


def _emulated() -> dict[str, Any]:
    """Choose for bfloat16, unmeasured, where a processor has no products of it.

    One by torch takes as long as everything else that is measured, and the operator, which
    multiplies in float32, a third to a tenth of that. The rest is torch's own.
    """
    product = "operator" if has_operator(PRODUCT) else "torch"
    return {"short_keys": 0, "bfloat16_product": product}


def _in_bfloat16(fastest: Fastest) -> dict[str, Any]:
    scores = fastest("bfloat16 attention, 3 · 2²⁰ scores", many_scores())
    return {
        "bias": fastest("bfloat16 products with a bias", biases()),
        "bfloat16_product": _operator(fastest, "bfloat16_product", bfloat16_products),
        "short_keys": _largest(fastest, "bfloat16 attention, {} keys", short_keys, KEYS),
        "attention": _operator(fastest, "attention", attention_gradients),
        "attention_forward": _operator(fastest, "attention_forward", attention_outputs),
        "many_scores": 2**22 if scores == "blocks" else UNLIMITED,
    }


def _operator(
    fastest: Fastest, choice: str, works: Callable[[], Mapping[str, Work]]
) -> Literal["torch", "operator"]:
    """Whether the operator of a choice is faster than everything else; false if there is none."""
    if not has_operator(OPERATORS[choice]):
        return "torch"
    return "operator" if fastest(HEADINGS[choice], works()) == "operator" else "torch"


def _keeps_pages(fastest: Fastest) -> bool:
    """Whether keeping freed memory is faster; true if it cannot be measured."""
    with allocating() as works, suppress(NoAnswerError):
        works = {name: _under(work, keep_pages=name == "kept") for name, work in works.items()}
        return not works or fastest("16 MiB, returned or kept", works) == "kept"
    return True


def _largest(
    fastest: Fastest, what: str, works: Callable[[int], Mapping[str, Work]], sizes: tuple[int, ...]
) -> int:
    """The largest of these sizes at which plain products are faster; 0 if they never are."""
    return next((n for n in sizes if fastest(what.format(n), works(n)) == "products"), 0)


def involuntary_switches() -> int:
    """How often the system has preempted this process; 0 if unknown."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def was_disturbed(switches: int, seconds: float) -> bool:
    """Whether other work took the processor since there were `switches` preemptions."""
    return involuntary_switches() - switches > SWITCHES * seconds


def rounds_of(works: Mapping[str, Work], clock: Clock, until: float) -> dict[str, list[float]]:
    """The seconds of each work, from alternating rounds: at least `ROUNDS`, for `SECONDS`.

    A first round does not count, since libraries build and cache their kernels in it. A work that
    fails has no times; the error of the first one is raised. Raises `TimeoutError` when the clock
    shows more than `until`.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    start, rounds = clock(), 0
    while rounds <= ROUNDS or clock() - start < SECONDS:
        rounds += 1
        for name in [*times]:
            begun = clock()
            if not _runs(works[name], needed=name == next(iter(works))):
                del times[name]
                continue
            ended = clock()
            if ended > until:
                raise TimeoutError
            times[name].append(ended - begun)
    return {name: seconds[1:] for name, seconds in times.items()}


def running(works: Mapping[str, Work]) -> dict[str, Work]:
    """Run each function once, and return those that succeed. Raises an error of the first one."""
    own = next(iter(works))
    return {name: work for name, work in works.items() if _runs(work, needed=name == own)}


def _runs(work: Work, *, needed: bool) -> bool:
    """Run a function, and return whether it succeeded. Raises its error if it is needed."""
    try:
        work()
    except Exception:
        if needed:
            raise
        return False
    return True


def gain(own: Sequence[float], other: Sequence[float]) -> float:
    """How many times faster `other` is than `own`, both in the best round and in most rounds.

    The best rounds are those that nothing disturbed; three rounds of four must agree.
    """
    ratios = sorted(a / b for a, b in zip(own, other, strict=True))
    return min(ratios[len(ratios) // 4], min(own) / min(other))


def _plain_state() -> AbstractContextManager[object]:
    """A context in which torch's modes are those of a new process."""
    stack = ExitStack()
    stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.enable_grad())
    stack.enter_context(torch.autocast("cpu", enabled=False))
    return stack


# The measured works: the functions that models call, under each choice.


def products() -> dict[str, Work]:
    """Forward and backward through float32 linear layers with biases, small and larger ones.

    The operator is first, so others must be faster beyond the noise: in a step it also joins layers
    on one input, which single layers do not show.
    """
    step, exist = _trained_layers(torch.float32), {"operator": has_operator(PRODUCT), "torch": True}
    exist["onednn"] = onednn() is not None
    return {name: _under(step, product=name) for name, exists in exist.items() if exists}


def bfloat16_products() -> dict[str, Work]:
    """The same in bfloat16 by autocast."""
    step = _trained_layers(torch.bfloat16)
    works = {"operator": _under(step, bfloat16_product="operator")}
    return works | {name: _under(step, bias=name) for name in ("torch", "fused")}


def _trained_layers(dtype: torch.dtype) -> Work:
    layers = [
        (_random(rows, d_in), _random(d_out, d_in), _random(d_out))
        for rows, d_in, d_out in ((768, 128, 512), (512, 384, 1536))
    ]

    def step() -> None:
        for inputs in layers:
            with torch.autocast("cpu", dtype, enabled=dtype is torch.bfloat16):
                y = linear(*inputs)
            _backward(y, *inputs)

    return step


def biases() -> dict[str, Work]:
    """Forward through a bfloat16 linear layer whose output is larger than a cache."""
    sizes = ((2048, 384), (1536, 384), (1536,))
    x, weight, bias = (_random(*size, dtype=torch.bfloat16).detach() for size in sizes)

    def step() -> None:
        linear(x, weight, bias)

    return {name: _under(step, bias=name) for name in ("torch", "fused")}


def few_queries(n: int) -> dict[str, Work]:
    """Float32 attention of `n` queries to 256 keys, as in decoding."""
    q, k, v = (_random(8, 8, size, 64).detach() for size in (n, 256, 256))

    def step() -> None:
        with torch.no_grad():
            for _ in range(2):
                dot_product_attention(q, k, v, Full())

    return {"fused": _under(step, few_queries=0), "products": _under(step, few_queries=n)}


def short_keys(n: int) -> dict[str, Work]:
    """Training attention over `n` tokens in bfloat16."""
    step = _trained_attention(n)
    return {"fused": _under(step, short_keys=0), "products": _under(step, short_keys=n)}


def attention_gradients() -> dict[str, Work]:
    """Training attention over 256 tokens in bfloat16, with the gradient of each kernel."""
    step = _trained_attention(256)
    return short_keys(256) | {"operator": _under(step, attention="operator")}


def attention_outputs() -> dict[str, Work]:
    """The same by the operator of the gradient, with the output of each kernel."""
    step = _trained_attention(256)
    return {
        name: _under(step, attention="operator", attention_forward=name)
        for name in ("torch", "operator")
    }


def causal_attention_gradients() -> dict[str, Work]:
    """Training attention over 256 tokens in float32."""
    q, k, v = (_random(4, 2, 256, 64) for _ in range(3))

    def step() -> None:
        _backward(dot_product_attention(q, k, v, Causal()), q, k, v)

    return {name: _under(step, causal_attention=name) for name in ("torch", "operator")}


def _trained_attention(n: int) -> Work:
    q, k, v = (_random(1024 // n, 2, n, 64, dtype=torch.bfloat16) for _ in range(3))

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            y = dot_product_attention(q, k, v, Causal())
        _backward(y, q, k, v)

    return step


def many_scores() -> dict[str, Work]:
    """Training attention in bfloat16 by plain products, whole or in blocks."""
    q, k, v = (_random(1, 3, 1024, 16, dtype=torch.bfloat16) for _ in range(3))

    def step() -> None:
        y = plain_products(q, k, v, Causal())
        _backward(y, q, k, v)

    return {
        "whole": _under(step, many_scores=UNLIMITED),
        "blocks": _under(step, many_scores=2**21),
    }


def activation() -> dict[str, Work]:
    """GELU by tanh and a SiLU gate, forward and backward, in float32."""
    x, gate = _random(768, 512), _random(768, 512)

    def step() -> None:
        _backward(gelu_tanh(x), x)
        _backward(gated(F.silu, gate, x), gate, x)

    return {name: _under(step, activation=name) for name in ("torch", "operator")}


def losses() -> dict[str, Work]:
    """Logits, loss and all gradients of 1,024 tokens over 8,192 words, in groups of rows.

    What few rows at a time gain by logits in the cache they lose by reading the matrix and its
    gradient more often. A matrix of half this width stays in the cache, and would choose few rows.
    """
    x, weight = _random(1024, 128).detach(), _random(8192, 128).detach()
    targets, of_weight = torch.arange(1024, device="cpu"), torch.zeros(8192, 128, device="cpu")

    def step(rows: int) -> None:
        for part, of_part in zip(x.split(rows), targets.split(rows), strict=True):
            logits = part @ weight.t()
            _, grad = cross_entropy_and_gradient(logits, of_part, 0.0, ignored=-1)
            of_weight.add_(grad.t() @ part)
            _ = grad @ weight

    by = "operator" if has_operator(cross_entropy.OPERATOR) else "torch"
    return {
        str(n): _under(partial(step, n // 8192), logits_at_once=n, cross_entropy=by) for n in LOGITS
    }


def cross_entropies() -> dict[str, Work]:
    """Cross-entropy and its gradient, of 128 tokens over 8,192 words."""
    logits, targets = _random(128, 8192).detach(), torch.arange(128, device="cpu")

    def step() -> None:
        cross_entropy_and_gradient(logits, targets, 0.1, ignored=-1)

    return {name: _under(step, cross_entropy=name) for name in ("torch", "operator")}


def normed_sums() -> dict[str, Work]:
    """The end of a post-norm sublayer, forward and backward, in float32.

    Without modules, whose calls hooks of the caller may see.
    """
    f, x, gain, bias = inputs = [
        _random(*size) for size in ((512, 128), (512, 128), (128,), (128,))
    ]

    def by_torch() -> None:
        _backward(F.layer_norm(x + f * keep_mask(f, 0.1), (128,), gain, bias), *inputs)

    def by_operator() -> None:
        _backward(add_norm.add_norm(*inputs, centred=True, eps=1e-5, p=0.1), *inputs)

    works = {"torch": by_torch, "operator": by_operator}
    return {name: _under(work, add_norm=name) for name, work in works.items()}


def _backward(y: Tensor, *inputs: Tensor) -> None:
    """Compute the gradients of the sum of squares: of one number, or torch would import sympy."""
    torch.autograd.grad(y.square().sum(), inputs)


def _under(work: Work, **chosen: Any) -> Work:
    def run() -> None:
        with use_choices(KernelChoices(**chosen)):
            work()

    return run


def _random(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(size, device="cpu", dtype=dtype, requires_grad=True)
