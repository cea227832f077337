"""Graph cache keys depend on everything that affects a graph, but not on the weights."""

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.disks import fill
from tests.generate.test_compiled import decoder
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.errors import InputError
from addnorm.generate import CompiledContinuation, GreedyConfig, generate, graphs, single_row
from addnorm.models import DecoderConfig, DecoderModel
from addnorm.nn.attention import AttentionConfig, WindowPatternConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import ALiBiConfig, LearnedConfig, RotaryConfig
from addnorm.quantize import quantize_int8


def fingerprint_of(model: DecoderModel) -> str:
    return graphs.fingerprint(model, (torch.zeros(1, 1),), ())


def test_a_fingerprint_depends_on_everything_but_the_weights() -> None:
    plain = fingerprint_of(decoder())
    assert fingerprint_of(decoder()) == plain
    assert fingerprint_of(decoder().train()) == plain  # decoding puts it in order
    others = [
        decoder(position=LearnedConfig()),
        decoder(position=RotaryConfig()),
        decoder(position=RotaryConfig(theta=5000.0)),
        decoder(position=ALiBiConfig()),
        decoder(norm=RMSNormConfig()),
        decoder(norm=RMSNormConfig(eps=1e-3)),
        decoder(attention=AttentionConfig(n_heads=4)),
        decoder(attention=AttentionConfig(n_heads=2, pattern=WindowPatternConfig(size=3))),
        decoder(attention=AttentionConfig(n_heads=2, pattern=WindowPatternConfig(size=4))),
        decoder().bfloat16(),
        quantize_int8(decoder()),
    ]
    names = [plain, *(fingerprint_of(model) for model in others)]
    assert len(set(names)) == len(names)


def test_a_fingerprint_depends_on_activations_and_ties() -> None:
    models = [decoder(feedforward=FeedForwardConfig(activation=a)) for a in ("relu", "gelu")]
    models += [decoder(feedforward=FeedForwardConfig(activation="gelu_tanh"))]
    models += [
        decoder(head=TokenHeadConfig(tied=False)),
        decoder(head=TokenHeadConfig(softcap=9.0)),
    ]
    assert len({fingerprint_of(model) for model in models}) == len(models)


@pytest.mark.long
def test_a_fingerprint_is_the_same_in_another_process() -> None:
    code = """
from tests.generate.test_graphs import decoder, fingerprint_of, FeedForwardConfig
for activation in ("relu", "gelu", "gelu_tanh"):
    print(fingerprint_of(decoder(feedforward=FeedForwardConfig(activation=activation))))
"""
    run = [sys.executable, "-c", code]
    done = [subprocess.run(run, capture_output=True, text=True, check=True) for _ in range(2)]
    assert done[0].stdout == done[1].stdout
    assert len(set(done[0].stdout.split())) == 3


def test_a_fingerprint_depends_on_the_inputs_and_their_axes() -> None:
    model, rows = decoder(), {0: torch.export.Dim.DYNAMIC}
    names = {
        graphs.fingerprint(model, (torch.zeros(2, beams),), (lengths,))
        for beams in (4, 5)
        for lengths in (None, rows)
    }
    assert len(names) == 4


def test_classes_without_a_source_file_have_a_fingerprint() -> None:
    names = []
    for k in (1, 2, 2):
        scope: dict = {"nn": torch.nn}
        code = (
            f"class Mine(nn.Module):\n    def forward(self, x):\n        return (lambda: x * {k})()"
        )
        exec(code, scope)
        names.append(graphs.fingerprint(scope["Mine"](), (), ()))
    assert names[0] != names[1] == names[2]


@pytest.mark.parametrize("shape", [(1, 7), (1, 1, 7), (3, 7), (3, 1, 7), (2, 5, 7)])
def test_a_product_equals_the_linear_layer(shape: tuple[int, ...]) -> None:
    x, w, b = torch.randn(shape), torch.randn(5, 7), torch.randn(5)
    want = F.linear(x, w, b)
    torch.testing.assert_close(graphs.product(x, w, b), want)
    torch.testing.assert_close(graphs.product(x, w), want - b)


class Grown(nn.Module):
    """A custom part that depends on a function, a closure and a private field."""

    def __init__(self, grow: Callable[[Tensor], Tensor], private: float) -> None:
        super().__init__()
        self._private = private
        self._grow = grow

    def forward(self, x: Tensor) -> Tensor:
        return self._grow(x) * self._private


@pytest.mark.long
def test_custom_parts_are_identified_by_their_traced_graph() -> None:
    """The text of their class does not contain what it calls."""

    def name(times: float, private: float) -> str:
        module, example = Grown(lambda x: x.relu() * times, private), (torch.ones(2, 3),)
        assert graphs.has_other_parts(module)
        return graphs._name_of("same", module, example, ({0: torch.export.Dim.DYNAMIC},))

    assert name(1.0, 1.0) == name(1.0, 1.0)
    assert len({name(1.0, 1.0), name(3.0, 1.0), name(1.0, 3.0)}) == 3
    assert not graphs.has_other_parts(decoder())


def test_a_cache_that_cannot_be_written_is_an_input_error(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear, example = nn.Linear(3, 4), (torch.ones(1, 3),)
    monkeypatch.setattr(graphs, "_compile", lambda *_: bytes(1000))
    (tmp_path / "file").touch()
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"file.*set ADDNORM_CACHE to another folder"):
        graphs.compiled(linear, example, ({},))
    monkeypatch.setenv("ADDNORM_CACHE", str(disk))
    fill(disk)
    with pytest.raises(InputError, match=r"No space left.*set ADDNORM_CACHE to another folder"):
        graphs.compiled(linear, example, ({},))
    assert [file.name for file in disk.iterdir()] == ["ballast"]


@pytest.mark.long
def test_only_weights_of_products_are_packed() -> None:
    """Not those that one row is multiplied with, nor a table that is also looked up in."""

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 3)
            self.map = nn.Linear(3, 3)

        def forward(self, ids: Tensor) -> Tensor:
            return F.linear(self.map(self.table(ids)), self.table.weight)

    several, single = torch.zeros(2, 3, dtype=torch.long), torch.zeros(1, 1, dtype=torch.long)
    with warnings.catch_warnings(action="ignore"):
        of_several, of_one = (graphs._traced(Rows(), (ids,), ({},)) for ids in (several, single))
    assert graphs._factors(of_several) == ["map.weight"]
    assert graphs._factors(of_one) == []


# Products of a single row.


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["loop", "torch", "onednn", "operator"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_graph_of_each_kind_of_product_generates_the_same(
    kind: str, tied: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path))
    monkeypatch.setattr(single_row, "LARGE", 1)
    monkeypatch.setattr(single_row, "LARGE_FOR_OPERATORS", 1)
    for module in (graphs, single_row):
        monkeypatch.setattr(module, "row_product", lambda dtype: kind)
    packed: list[str] = []
    factors = graphs._factors
    monkeypatch.setattr(graphs, "_factors", lambda p: packed.extend(factors(p)) or factors(p))
    torch.manual_seed(0)
    config = DecoderConfig(d_model=32, n_layers=2, head={"kind": "token", "tied": tied})
    model = config.build(vocab_size=60).eval()
    plain = generate(model, [[1, 2, 3]], GreedyConfig(), max_new_tokens=12, eos_id=None)
    compiled = CompiledContinuation(model)
    compiled_texts = generate(compiled, [[1, 2, 3]], GreedyConfig(), max_new_tokens=12, eos_id=None)
    assert compiled_texts[0][0].ids == plain[0][0].ids
    table = [name for name in packed if "embed" in name]
    assert bool(packed) == (kind == "onednn")
    assert not table, "the table is read by the embedding too"
