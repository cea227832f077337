"""The peer nanoGPT computes what GPT-2 computes without biases, and decays matrices only."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from addnorm.bench.nanogpt import GPT
from addnorm.bench.training import CHARACTERS

SIZES = replace(CHARACTERS, n_layers=2, d_model=16, n_heads=2, d_ff=40, vocab_size=11, length=9)


@pytest.mark.long
def test_its_logits_are_those_of_gpt2_without_biases() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_embd=16, n_head=2, n_inner=40, n_positions=9, vocab_size=11,
        activation_function="gelu", bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    theirs, ours = transformers.GPT2LMHeadModel(config).double().eval(), GPT(SIZES).double()
    names = {"tokens": "wte", "positions": "wpe", "norm": "ln_f"}
    parts = {"norm1": "ln_1", "qkv": "attn.c_attn", "out": "attn.c_proj"}
    parts |= {"norm2": "ln_2", "up": "mlp.c_fc", "down": "mlp.c_proj"}
    names |= {f"blocks.{i}.{a}": f"h.{i}.{b}" for i in range(2) for a, b in parts.items()}
    weights: dict[str, Tensor] = {
        f"{name}.weight": theirs.get_parameter(f"transformer.{of}.weight")
        for name, of in names.items()
    }
    products = ("qkv", "out", "up", "down")
    turned = {n: w.t() if n.split(".")[-2] in products else w for n, w in weights.items()}
    ours.load_state_dict(turned | {"head.weight": weights["tokens.weight"]})
    tokens = torch.randint(11, (3, 9))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits)


def test_matrices_and_tables_decay_and_gains_do_not() -> None:
    model = GPT(SIZES)
    matrices, gains = model.groups()
    assert (matrices["weight_decay"], gains["weight_decay"]) == (0.1, 0.0)
    assert {p.ndim for p in matrices["params"]} == {2}
    assert {p.ndim for p in gains["params"]} == {1}
    learned = [*matrices["params"], *gains["params"]]
    assert {id(p) for p in learned} == {id(p) for p in model.parameters()}


def test_dropout_is_refused() -> None:
    with pytest.raises(ValueError, match="no dropout"):
        GPT(replace(SIZES, dropout=0.1))
