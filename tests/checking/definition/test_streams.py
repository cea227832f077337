"""Placements with several residual streams: one token by hand."""

import math

import pytest
import torch

from addnorm.checking.definition.placements import PLACEMENTS
from addnorm.checking.definition.streams import StreamsDefinition
from addnorm.nn.hyper_connections import HyperConnectionsConfig, ManifoldConnectionsConfig


def streams_of(config: object) -> StreamsDefinition:
    streams = PLACEMENTS.of(config).streams
    assert streams is not None
    return streams


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values).double()


def test_static_connections_by_hand() -> None:
    """Streams 5 and 7 of width one: reads 5 + 70, writes ½ and −1 of a tenth of 76."""
    config = HyperConnectionsConfig(streams=2, dynamic=False)
    weights = {
        "connections.read": vector(1, 10),
        "connections.mix": vector(1, 2, 3, 4),
        "connections.write": vector(0.5, -1),
    }
    definition = streams_of(config)
    y = definition.sublayer(
        config, weights, lambda _, x: x + 1, vector(5, 7)[None], lambda x: x / 10
    )
    assert y[0].tolist() == pytest.approx([5 + 3 * 7 + 3.8, 2 * 5 + 4 * 7 - 7.6])
    assert definition.start(config, vector(3)[None]).tolist() == [[3, 3]]
    assert definition.collapsed(config, {}, vector(5, 7)[None]).tolist() == [[12]]


def test_dynamic_connections_by_hand() -> None:
    """A stream of −1 and 1 is normed already; its gain of 2 gives −2 and 2."""
    config = HyperConnectionsConfig(streams=1)
    weights = {
        "connections.static.read": vector(1),
        "connections.static.mix": vector(1),
        "connections.static.write": vector(1),
        "connections.norm.weight": vector(2, 2),
        "connections.norm.bias": vector(0, 0),
        "connections.weight": torch.tensor([[0.0, 1.0], [0.5, 0.5], [-1.0, 0.0]]).double(),
        "connections.scale": vector(0.1, 0.2),
    }
    read, mix, write = streams_of(config).connections(config, weights, vector(-1, 1)[None])
    assert read.item() == pytest.approx(1 + 0.1 * math.tanh(2), abs=1e-5)
    assert mix.item() == pytest.approx(1)
    assert write.item() == pytest.approx(1 + 0.2 * math.tanh(2), abs=1e-5)


def test_mhc_by_hand() -> None:
    """Logits of zero, but ln 3 at one place: shares ¾ and ¼, columns divided last."""
    config = ManifoldConnectionsConfig(streams=2, iterations=1, eps=1e-12)
    weights = {
        "connections.weight": torch.zeros(8, 2).double(),
        "connections.bias": vector(0, math.log(3), 0, math.log(3), math.log(3), 0, 0, 0),
        "connections.scale": vector(1, 1, 1),
        "collapse.weight": torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double(),
        "collapse.bias": vector(0, 0),
        "collapse.scale": vector(math.log(3) / 1.0),
    }
    definition = streams_of(config)
    read, mix, write = definition.connections(config, weights, torch.ones(2, 1).double())
    assert read.tolist() == pytest.approx([0.5, 0.75])
    assert write.tolist() == pytest.approx([1, 1.5])
    assert mix.flatten().tolist() == pytest.approx([0.6, 1 / 3, 0.4, 2 / 3])
    ended = definition.collapsed(config, weights, vector(1, 1)[None])  # already of unit size
    assert ended.item() == pytest.approx(0.75 + 0.75)
