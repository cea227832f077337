"""A graph with any of the products of a single row writes the same."""

from pathlib import Path

import pytest
import torch

from addnorm.generate import CompiledContinuation, GreedyConfig, generate, graphs, row_products
from addnorm.models import DecoderConfig


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["loop", "torch", "onednn"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_graph_of_each_writes_the_same(
    kind: str, tied: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path))
    monkeypatch.setattr(row_products, "LARGE", 1)
    for module in (graphs, row_products):
        monkeypatch.setattr(module, "row_product", lambda dtype: kind)
    packed: list[str] = []
    factors = graphs._factors
    monkeypatch.setattr(graphs, "_factors", lambda p: packed.extend(factors(p)) or factors(p))
    torch.manual_seed(0)
    config = DecoderConfig(d_model=32, n_layers=2, head={"kind": "token", "tied": tied})
    model = config.build(vocab_size=60).eval()
    plain = generate(model, [[1, 2, 3]], GreedyConfig(), max_new_tokens=12, eos_id=None)
    compiled = CompiledContinuation(model)
    found = generate(compiled, [[1, 2, 3]], GreedyConfig(), max_new_tokens=12, eos_id=None)
    assert found[0][0].ids == plain[0][0].ids
    table = [name for name in packed if "embed" in name]
    assert bool(packed) == (kind == "onednn")
    assert not table, "the table is read by the embedding too"
