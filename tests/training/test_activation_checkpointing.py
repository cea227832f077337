"""Activation checkpointing: the same to the bit, in less memory, and gone afterwards."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import tiny
from tests.training.tiny import everything, in_a_process, journal, same
from torch import nn

from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import BatchNormConfig
from addnorm.nn.residuals import ParallelConfig, PreNormConfig
from addnorm.training.activation_checkpointing import checkpointed_activations

pytestmark = pytest.mark.usefixtures("types_unchecked")

PARTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pre": {"residual": PreNormConfig(), "feedforward": GatedFeedForwardConfig(d_ff=24)},
    "parallel": {"residual": ParallelConfig()},
    "experts": {
        "feedforward": MixtureOfExpertsConfig(
            n_experts=3, expert=GatedFeedForwardConfig(d_ff=8), balance=0.5
        )
    },
}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("model", ["translator", "decoder"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_is_the_same_to_the_bit(
    model: str, precision: str, parts: dict[str, Any], tmp_path: Path
) -> None:
    """With dropout, whose random numbers are drawn again; accumulation and a balance loss."""
    trainers = []
    for kind in ("none", "block"):
        trainer = tiny.trainer(
            tmp_path / kind,
            model,  # pyright: ignore[reportArgumentType]
            parts=parts,
            steps=5,
            accumulate=2,
            precision=precision,
            activation_checkpointing=kind,
        )
        trainer.fit()
        trainers.append(trainer)
    plain, checkpointed = trainers
    same(everything(plain), everything(checkpointed))
    assert journal(plain.folder) == journal(checkpointed.folder)
    assert not any("forward" in vars(module) for module in checkpointed.model.modules())


def test_less_memory_is_kept_for_the_backward_pass() -> None:
    config = DecoderConfig(d_model=32, n_layers=6, attention=AttentionConfig(n_heads=4))
    model, tokens = config.build(20), torch.randint(20, (2, 40))
    sizes = {}
    for kind in ("none", "block"):
        bytes_of: dict[int, int] = {}

        def pack(tensor: torch.Tensor, bytes_of: dict[int, int] = bytes_of) -> torch.Tensor:
            bytes_of[tensor.data_ptr()] = tensor.nbytes
            return tensor

        with (
            checkpointed_activations(model, kind),  # pyright: ignore[reportArgumentType]
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        ):
            x, _ = model.hidden(tokens)
            sizes[kind] = sum(bytes_of.values())
            x.sum().backward()
    assert sizes["block"] < 0.4 * sizes["none"]


ONE_GRAPH = """
import torch
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.training.activation_checkpointing import checkpointed_activations

config = DecoderConfig(d_model=32, n_layers=2, dropout=0.1, attention=AttentionConfig(n_heads=4))
tokens, sizes, found = torch.arange(80).view(2, 40) % 20, {}, {}
for kind in ("none", "block"):
    torch._dynamo.reset()
    torch.manual_seed(1)
    model, held = config.build(20), {}

    def pack(tensor):
        held[tensor.data_ptr()] = tensor.nbytes
        return tensor

    def loss(tokens):
        return model(tokens).logsumexp(-1).sum()

    with checkpointed_activations(model, kind):
        backend = "aot_eager_decomp_partition"  # the partition of what is kept, and no kernels
        compiled = torch.compile(loss, dynamic=True, fullgraph=True, backend=backend)
        torch.manual_seed(2)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            total = compiled(tokens)
        sizes[kind] = sum(held.values())
        total.backward()
    found[kind] = [total.detach(), *(weight.grad for weight in model.parameters())]
for one, other in zip(*found.values(), strict=True):
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
assert sizes["block"] < 0.6 * sizes["none"], sizes
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_compiled_step_is_one_graph_that_keeps_less() -> None:
    """With dropout; in another process, since run-time checks of types would break the graph."""
    done = in_a_process(ONE_GRAPH)
    assert done.returncode == 0, done.stderr


COMPILED = """
import sys; from pathlib import Path; from tests.training import tiny
from addnorm.nn.moe import MixtureOfExpertsConfig
experts = {"feedforward": MixtureOfExpertsConfig(n_experts=3, balance=0.3)}
parts = {"plain": {}, "experts": experts}[sys.argv[2]]
for compile, kind in ((False, "none"), (True, "block")):
    folder = Path(sys.argv[1], kind)
    fields = {"steps": 6, "compile": compile, "activation_checkpointing": kind}
    tiny.trainer(folder, dropout=0.0, parts=parts, **fields).fit()
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("parts", ["plain", "experts"])
def test_compiled_training_equals_plain_training(tmp_path: Path, parts: str) -> None:
    done = in_a_process(COMPILED, tmp_path, parts)
    assert done.returncode == 0, done.stderr
    plain, compiled = (journal(tmp_path / kind) for kind in ("none", "block"))
    for line, other in zip(plain, compiled, strict=True):
        assert other == pytest.approx(line, rel=1e-4)


def test_a_model_is_restored_even_after_an_error() -> None:
    config = DecoderConfig(d_model=16, n_layers=2, attention=AttentionConfig(n_heads=2))
    model = config.build(9)
    with suppress(KeyError), checkpointed_activations(model, "block"):
        assert "forward" in vars(model.stack.blocks[0])
        raise KeyError
    assert not any("forward" in vars(module) for module in model.modules())


def test_without_gradients_blocks_run_unchanged() -> None:
    config = DecoderConfig(d_model=16, n_layers=2, attention=AttentionConfig(n_heads=2))
    model, tokens = config.build(9).eval(), torch.arange(6)[None]
    with torch.inference_mode():
        want = model(tokens)
        with checkpointed_activations(model, "block"):
            assert torch.equal(model(tokens), want)


def test_batch_norm_is_rejected(tmp_path: Path) -> None:
    trainer = tiny.trainer(
        tmp_path, parts={"norm": BatchNormConfig()}, activation_checkpointing="block"
    )
    with pytest.raises(InputError, match="would count every batch twice"):
        trainer.fit()
    assert not any("forward" in vars(module) for module in trainer.model.modules())
    assert isinstance(trainer.model, nn.Module)


def test_an_invalid_value_names_the_nearest() -> None:
    from addnorm.training.settings import TrainConfig

    with pytest.raises(InputError, match="Did you mean 'block'"):
        TrainConfig(steps=1, activation_checkpointing="blocks")  # pyright: ignore[reportArgumentType]
