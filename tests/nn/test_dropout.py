"""Dropout: rate, scale, and dependence on the generator only."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.dropout import Dropout, LayerDrop, keep_mask


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_the_share_dropped_and_the_mean_kept(p: float) -> None:
    mask = keep_mask(torch.ones(1000, 1001), p)
    n = mask.numel()
    dropped = (mask == 0).double().mean().item()
    assert abs(dropped - p) < 5 * (p * (1 - p) / n) ** 0.5 + 2**-16
    assert abs(mask.double().mean().item() - 1) < 5 * (p / (1 - p) / n) ** 0.5
    kept = mask[mask != 0]
    assert (kept == kept[0]).all()
    assert kept[0].item() == pytest.approx(1 / (1 - p), rel=1e-4)


def test_neighbours_that_share_a_draw_are_independent() -> None:
    mask = (keep_mask(torch.ones(100_000, 4), 0.5) != 0).double()
    correlation = torch.corrcoef(mask.T) - torch.eye(4)
    assert correlation.abs().max() < 0.02


@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7), (0, 4)])
def test_odd_sizes(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    assert Dropout(0.5).train()(x).shape == shape


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_type_stays(dtype: torch.dtype) -> None:
    assert Dropout(0.5).train()(torch.ones(8, dtype=dtype)).dtype == dtype


def test_evaluation_and_p_zero_change_nothing() -> None:
    x = torch.randn(4, 5)
    state = torch.get_rng_state()
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0).train()(x) is x
    assert torch.equal(torch.get_rng_state(), state)


def test_the_same_seed_drops_the_same() -> None:
    layer, x = Dropout(0.5).train(), torch.ones(3, 5)
    torch.manual_seed(7)
    first = layer(x)
    second = layer(x)
    torch.manual_seed(7)
    assert torch.equal(layer(x), first)
    assert not torch.equal(first, second)


def test_the_gradient_passes_where_the_value_does() -> None:
    x = torch.ones(50, dtype=torch.float64, requires_grad=True)
    y = Dropout(0.4).train()(x)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())


COMPILED = """
import torch; from addnorm.nn.dropout import Dropout
layer = Dropout(0.25).train()
both = torch.compile(lambda x: (layer(x), layer(x)), fullgraph=True, backend="aot_eager")
x = torch.ones(1001, 7, requires_grad=True)
for _ in range(2):
    torch.manual_seed(3)
    first, second = both(x)
    assert not torch.equal(first, second), "the compiler took two masks for one"
    assert abs((first == 0).float().mean() - 0.25) < 0.03
    (gradient,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(gradient, first), "another mask on the way back"
    print(first.sum().item(), second.sum().item())
"""


@pytest.mark.long
def test_each_compiled_call_draws_a_new_mask_and_a_seed_repeats_it() -> None:
    """In a process of its own: the run-time checks of types are not for compilers."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    once, again = done.stdout.splitlines()
    assert once == again


# LayerDrop.


def test_a_dropped_layer_is_skipped_and_never_scaled() -> None:
    module, x, ran = LayerDrop(0.25), torch.ones(2, 3), []

    def layer(h: torch.Tensor) -> torch.Tensor:
        ran.append(1)
        return h + 1

    torch.manual_seed(0)
    results = [float(module(x, layer)[0, 0]) for _ in range(400)]
    assert {*results} == {1.0, 2.0}
    assert len(ran) == results.count(2.0)
    assert 0.68 < len(ran) / 400 < 0.82
    module.eval()
    assert all(float(module(x, layer)[0, 0]) == 2.0 for _ in range(20))


def test_a_stack_drops_whole_layers_in_training_alone() -> None:
    config = DecoderConfig(
        d_model=8, n_layers=3, attention=AttentionConfig(n_heads=2), dropout=0.0, layer_drop=0.5
    )
    model, tokens = config.build(11), torch.randint(11, (2, 4))
    ran: list[int] = []
    for i, block in enumerate(model.stack.blocks):
        block.register_forward_hook(lambda *_, i=i: ran.append(i))
    torch.manual_seed(1)
    lengths = set()
    for _ in range(20):
        ran.clear()
        model(tokens)
        assert ran == sorted(ran)
        lengths.add(len(ran))
    assert len(lengths) > 1
    plain = replace(config, layer_drop=0.0).build(11)
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(tokens), plain.eval()(tokens))
