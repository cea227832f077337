"""Choices between kernels: who decides, and that all of them compute the same."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules import module as modules
from torch.utils.flop_counter import FlopCounterMode

from addnorm.models import DecoderConfig, DecoderModel
from addnorm.nn import choices as module
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.choices import (
    DEFAULTS,
    KernelChoices,
    choices,
    install_provider,
    is_intercepted,
    takes_operators,
    transformed,
    use_choices,
)
from addnorm.nn.heads import TokenHead
from addnorm.nn.linear import linear
from addnorm.training.loss import head_cross_entropy_sum

ALL = [
    KernelChoices(),
    KernelChoices(product="onednn"),
    KernelChoices(few_queries=0),
    KernelChoices(few_queries=100),
    KernelChoices(logits_at_once=64),
    KernelChoices(keep_pages=False),
]
IN_BFLOAT16 = [
    KernelChoices(short_keys=0),
    KernelChoices(short_keys=1024, many_scores=2**60),
    KernelChoices(short_keys=1024, many_scores=0),
]


def gradients(precision: torch.dtype) -> list[Tensor]:
    """The logits of a decoder, its loss and the gradients of all weights."""
    torch.manual_seed(0)
    config = DecoderConfig(d_model=32, n_layers=2, attention=AttentionConfig(n_heads=4))
    model = config.build(40)
    assert isinstance(model, DecoderModel)
    assert isinstance(model.head, TokenHead)
    tokens = torch.randint(0, 40, (3, 17))
    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        logits = model.eval()(tokens)
        x, ctx = model.hidden(tokens)
        loss = head_cross_entropy_sum(model.head, x, ctx, tokens.roll(-1, 1)) / tokens.numel()
    return [
        logits.detach().float(),
        loss.detach(),
        *torch.autograd.grad(loss, [*model.parameters()]),
    ]


@pytest.mark.parametrize("chosen", ALL)
def test_every_choice_gives_the_same_numbers(chosen: KernelChoices) -> None:
    with use_choices(KernelChoices()):
        expected = gradients(torch.float32)
    with use_choices(chosen):
        found = gradients(torch.float32)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("chosen", IN_BFLOAT16)
def test_every_choice_in_bfloat16_is_as_near(chosen: KernelChoices) -> None:
    """To the same in float32, within what bfloat16 rounds: 2⁻⁹ in each of some dozen products."""
    with use_choices(chosen):
        found, expected = gradients(torch.bfloat16), gradients(torch.float32)
    for got, want in zip(found, expected, strict=True):
        assert (got - want).norm() <= 0.08 * want.norm() + 1e-3


def test_each_thread_has_its_own() -> None:
    both = Barrier(2)

    def in_a_thread(n: int) -> list[int]:
        with use_choices(KernelChoices(few_queries=n)):
            both.wait(10)
            inside = choices().few_queries
            both.wait(10)
        return [inside, choices().few_queries]

    with ThreadPoolExecutor(2) as pool:
        found = [*pool.map(in_a_thread, [1, 2])]
    usual = choices().few_queries
    assert found == [[1, usual], [2, usual]]


def test_a_backward_pass_in_another_thread_is_that_of_its_forward() -> None:
    """None of its kernels asks what is in force."""
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    with use_choices(KernelChoices(product="onednn")):
        y = linear(x, weight).square().sum()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(torch.autograd.grad, y, [x, weight]).result()
    for got, want in zip(
        found, torch.autograd.grad((x @ weight.t()).square().sum(), [x, weight]), strict=True
    ):
        torch.testing.assert_close(got, want)


@pytest.mark.long
def test_a_whole_graph_is_compiled_again_for_other_choices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_newest", KernelChoices(short_keys=7))

    def keys(x: Tensor) -> Tensor:
        return x + choices().short_keys

    compiled = torch.compile(keys, fullgraph=True, backend="eager")
    x = torch.zeros(())
    found = [float(compiled(x))]
    for n in (3, 4):
        with use_choices(KernelChoices(short_keys=n)), ThreadPoolExecutor(1) as pool:
            found += [float(compiled(x)), float(pool.submit(compiled, x).result())]
    assert found == [7.0, 3.0, 7.0, 4.0, 7.0]


@pytest.fixture
def asked() -> Iterator[list[KernelChoices]]:
    """What a provider has returned, each time something else."""
    returned: list[KernelChoices] = []

    def provider() -> KernelChoices:
        returned.append(KernelChoices(few_queries=len(returned)))
        return returned[-1]

    before = module._provider
    install_provider(provider)
    yield returned
    install_provider(before)


def test_a_provider_is_asked_once_for_each_number_of_threads(
    asked: list[KernelChoices], monkeypatch: pytest.MonkeyPatch
) -> None:
    with use_choices(None):
        assert choices() is choices()
        assert len(asked) == 1
        monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
        assert choices() is choices()
    assert len(asked) == 2


def test_a_compiler_that_comes_first_gets_the_defaults(
    asked: list[KernelChoices], monkeypatch: pytest.MonkeyPatch
) -> None:
    with use_choices(None):
        with monkeypatch.context() as patch:
            patch.setattr(torch.compiler, "is_compiling", lambda: True)
            assert choices() is DEFAULTS
        assert not asked
        measured = choices()
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert choices() is measured


def test_without_a_provider_the_defaults_hold(asked: list[KernelChoices]) -> None:
    install_provider(None)
    with use_choices(None):
        assert choices() is DEFAULTS
    assert not asked


WATCHED = '''
import sys
import threading
import torch
import jaxtyping, torch._dynamo
from pydantic import BaseModel

class First(BaseModel):
    """Pydantic looks for plugins at the first model."""

seen = []
PROCESS = ("subprocess.", "os.fork", "os.posix_spawn", "os.exec", "os.system", "os.spawn")
WRITTEN = ("os.mkdir", "os.rename", "os.remove", "tempfile.")

def watch(event, args):
    if event == "open":
        name, mode = str(args[0]), args[1] or "r"
        code = name.endswith((".py", ".pyi", ".pyc", ".so", ".zip"))
        touched = not code or not set(mode) <= set("rbt")
    else:
        touched = event.startswith((*PROCESS, *WRITTEN))
    if touched:
        seen.append((event, args))

sys.addaudithook(watch)
start = threading.Thread.start
threading.Thread.start = lambda self: (seen.append(("thread", self)), start(self))
'''

PARTS = """
import pkgutil
from importlib import import_module
import addnorm.nn
for module in pkgutil.walk_packages(addnorm.nn.__path__, "addnorm.nn."):
    import_module(module.name)

from addnorm.nn.context import Context
from addnorm.nn.masks import Causal, Full
from addnorm.nn.blocks import MixerConfig, build_mixer
from addnorm.nn.moe import AnyFeedForwardConfig, build_feedforward
from addnorm.nn.norms import NormConfig
from addnorm.nn.positions import NoPosition
from addnorm.parts import members

x = torch.randn(2, 40, 32, requires_grad=True)
mixers = [build_mixer(part(), 32, NoPosition(), True, 0) for part in members(MixerConfig)]
others = [
    *(build_feedforward(part(), 32) for part in members(AnyFeedForwardConfig)),
    *(part().build(32) for part in members(NormConfig)),
]
for precision in (torch.float32, torch.bfloat16):
    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        for mixer in mixers:
            y = mixer(x, Context.over(x, Causal()).restrict(mixer.pattern), None)
            (x.sum() + y.sum()).backward()
        for part in others:
            y = part(x)
            (x.sum() + (y[0] if isinstance(y, tuple) else y).sum()).backward()
assert len(mixers) > 2 and len(others) > 5
assert not {"addnorm.models", "addnorm.tuning"} & {*sys.modules}
assert not seen, seen[:5]
"""


OPERATORS = """
from addnorm.nn.activations import MANY, gelu_tanh
from addnorm.nn.add_norm import normed_sum
from addnorm.nn.attention.kernels import dot_product_attention
from addnorm.nn.choices import KernelChoices, use_choices
from addnorm.nn.cross_entropy import cross_entropy_and_gradient
from addnorm.nn.dropout import Dropout
from addnorm.nn.linear import linear
from addnorm.nn.masks import Causal
from addnorm.nn.norms import LayerNorm

x = torch.randn(MANY)
q = torch.randn(1, 1, 128, 8, dtype=torch.bfloat16, requires_grad=True)
plain = gelu_tanh(x)
every = KernelChoices(
    product="operator",
    bfloat16_product="operator",
    attention="operator",
    attention_forward="operator",
    causal_attention="operator",
    activation="operator",
    cross_entropy="operator",
    add_norm="operator",
)
with use_choices(every):
    for of_dtype in (q, q.float()):
        dot_product_attention(of_dtype, of_dtype, of_dtype, Causal()).sum().backward()
    assert torch.equal(gelu_tanh(x), plain)
    for enabled in (False, True):
        with torch.autocast("cpu", enabled=enabled):
            linear(q[0, 0].float(), q[0, 0].float()).float().sum().backward()
    normed_sum(x[None], x[None], LayerNorm(MANY), Dropout(0.1), None).sum().backward()
    cross_entropy_and_gradient(q[0, 0].detach(), torch.zeros(128).long(), 0.0, ignored=-1)
assert not seen, seen[:5]
"""


class Wrapped(Tensor):
    pass


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_operators_compute_with_plain_tensors_of_a_cpu_alone() -> None:
    x = torch.randn(4, 4)
    fake = FakeTensorMode().from_tensor(x)
    with torch.inference_mode():
        inference = torch.randn(4, 4)
    for plain in (x, x.bfloat16(), x.t(), x[::2], x.expand(3, 4, 4), nn.Parameter(x), inference):
        assert takes_operators(x, plain)
    others = [fake, x.to("meta"), x.to_sparse(), x.to_mkldnn(), torch._neg_view(x)]
    for other in (*others, torch.nested.nested_tensor([x, x]), x.as_subclass(Wrapped)):
        assert not takes_operators(x, other)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_operators_are_left_out_of_what_sees_each_operation() -> None:
    seen: list[bool] = []

    def look(x: Tensor) -> Tensor:
        seen.append(takes_operators(torch.ones(())) or not transformed())
        return x * 2

    x = torch.ones(2)
    torch.func.vmap(look)(x)
    torch.func.jvp(look, (x,), (x,))
    torch.jit.trace(look, (x,), check_trace=False)
    with FlopCounterMode(display=False):
        look(x)
    with FakeTensorMode(allow_non_fake_inputs=True):
        look(x)
    assert seen == [False] * len(seen)
    assert len(seen) >= 5
    look(x)
    assert seen[-1]


def test_hooks_of_any_kind_intercept_a_module() -> None:
    def hook(*_: object) -> None:
        pass

    def replace(module: nn.Module) -> None:
        module.forward = lambda x: x

    of_module: list[Callable[[nn.Module], object]] = [
        lambda m: m.register_forward_hook(hook),
        lambda m: m.register_forward_pre_hook(hook),
        lambda m: m.register_full_backward_hook(hook),
        lambda m: m.register_full_backward_pre_hook(hook),
        replace,
    ]
    for register in of_module:
        module, other = nn.Linear(2, 2), nn.Linear(2, 2)
        register(module)
        assert is_intercepted(module)
        assert not is_intercepted(other)
    for register_global in (
        modules.register_module_forward_hook,
        modules.register_module_forward_pre_hook,
        modules.register_module_full_backward_hook,
    ):
        handle = register_global(hook)
        assert is_intercepted(other)
        handle.remove()
        assert not is_intercepted(other)


@pytest.mark.long
def test_a_forward_compiles_no_operator(tmp_path: Path) -> None:
    """One that is chosen and not loaded: torch computes it."""
    run(WATCHED + OPERATORS, tmp_path)
    assert not (tmp_path / "cache").exists()


@pytest.mark.long
def test_importing_and_running_bare_parts_starts_and_touches_nothing(tmp_path: Path) -> None:
    """No thread, no process, no file but modules."""
    run(WATCHED + PARTS, tmp_path)


@pytest.mark.long
def test_starting_a_thread_a_process_or_a_file_is_detected(tmp_path: Path) -> None:
    """The watch itself: a model measures this machine in a thread, by processes, into a file."""
    script = """
from addnorm.models import DecoderConfig

model = DecoderConfig(d_model=16, n_layers=1).build(20)
assert not seen, seen[:5]
model(torch.zeros(1, 3, dtype=torch.long))
events = {event for event, _ in seen}
assert {"open", "thread", "subprocess.Popen", "os.mkdir"} <= events, events
"""
    run(WATCHED + script, tmp_path)
    assert [*(tmp_path / "cache" / "kernels").iterdir()]


def run(script: str, folder: Path) -> None:
    """Run a script as a new process that nobody gave kernels."""
    environment = {name: value for name, value in os.environ.items() if name != "ADDNORM_KERNELS"}
    environment |= {"ADDNORM_CACHE": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
