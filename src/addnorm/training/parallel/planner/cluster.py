"""Cards and links by name, and clusters made of them: peak rates, memory and bandwidth."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from addnorm.errors import InputError, choices

SHAPES = 0.91
"""The rate of the products of a Transformer, of that of the best shape: 720 of 794 TFLOP/s on an
H100 (SemiAnalysis 2024, "MI300X vs H100 vs H200", against the `measured` table of the same card).
"""

COPIED = 0.9
"""The share of a memory's bandwidth that elementwise kernels reach: 3.57 of 3.94 TB/s in a copy."""

CARRIED = 0.8
"""The share of a link's bandwidth that collectives reach: 240 of 300 GB/s among eight A100 and 360
of 450 among eight H100 in a ring (nccl-tests).
"""


@dataclass(frozen=True)
class Link:
    """A connection of a card: bytes per second in one direction, and seconds per message."""

    name: str
    bandwidth: float
    latency: float = 10e-6
    source: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Card:
    """A card: its FLOP/s by precision, its memory in bytes and its bytes per second.

    `measured` is the share of the peak that products of the best shape reach, `attention` the share
    that fused attention reaches, forward and backward together. `links` are the usual ones: within
    a node, and between nodes. Memory is in decimal gigabytes as data sheets have it; what a card
    has beyond, 6 to 7 %, is left to its driver and to gaps between tensors.
    """

    name: str
    flops: Mapping[str, float]
    memory: float
    bandwidth: float
    measured: float
    attention: float
    links: tuple[str, str]
    per_node: int = 8
    nvlink: str | None = None
    source: str = ""

    def peak(self, precision: str) -> float:
        """The peak rate of matrix products in this precision.

        Raises `InputError` for a type that the card lacks.
        """
        if precision not in self.flops:
            valid = ", ".join(self.flops)
            raise InputError(f"{self.name} has no products in {precision}: it has {valid}")
        return self.flops[precision]


LINKS = {
    link.name: link
    for link in (
        Link("nvlink3", 300e9, source="NVIDIA A100: 600 GB/s, both directions"),
        Link("nvlink4", 450e9, source="NVIDIA H100: 900 GB/s, both directions"),
        Link("nvlink5", 900e9, source="NVIDIA B200: 1,800 GB/s, both directions"),
        Link("xgmi", 448e9, source="AMD MI300X: seven links of 64 GB/s"),
        Link("pcie4", 32e9, source="PCI Express 4.0, 16 lanes"),
        Link("pcie5", 64e9, source="PCI Express 5.0, 16 lanes"),
        Link("ib200", 25e9, 20e-6, "InfiniBand HDR, 200 Gb/s for each card"),
        Link("ib400", 50e9, 20e-6, "InfiniBand NDR or RoCE, 400 Gb/s for each card"),
        Link("ib800", 100e9, 20e-6, "InfiniBand XDR, 800 Gb/s for each card"),
        Link("ethernet10", 1.25e9, 50e-6, "10 Gb/s for each card"),
        Link("ethernet25", 3.125e9, 50e-6, "25 Gb/s for each card"),
        Link("ethernet100", 12.5e9, 30e-6, "100 Gb/s for each card"),
        Link("loopback", 2e9, 50e-6, "processes of one machine, by gloo"),
    )
}

CARDS = {
    card.name: card
    for card in (
        Card(
            name="a100-40",
            flops={"bfloat16": 312e12, "float16": 312e12, "float32": 19.5e12},
            memory=40e9,
            bandwidth=1.555e12,
            measured=0.859,
            attention=0.55,
            links=("nvlink", "ib200"),
            nvlink="nvlink3",
            source="NVIDIA A100 data sheet; Bekman, ml-engineering; Dao 2023",
        ),
        Card(
            name="a100",
            flops={"bfloat16": 312e12, "float16": 312e12, "float32": 19.5e12},
            memory=80e9,
            bandwidth=2.039e12,
            measured=0.859,
            attention=0.55,
            links=("nvlink", "ib200"),
            nvlink="nvlink3",
            source="NVIDIA A100 data sheet; Bekman, ml-engineering; Dao 2023",
        ),
        Card(
            name="h100",
            flops={"bfloat16": 989e12, "float16": 989e12, "float32": 67e12},
            memory=80e9,
            bandwidth=3.35e12,
            measured=0.803,
            attention=0.3,
            links=("nvlink", "ib400"),
            nvlink="nvlink4",
            source="NVIDIA H100 SXM data sheet; Bekman, ml-engineering; Shah et al. 2024",
        ),
        Card(
            name="h200",
            flops={"bfloat16": 989e12, "float16": 989e12, "float32": 67e12},
            memory=141e9,
            bandwidth=4.8e12,
            measured=0.803,
            attention=0.3,
            links=("nvlink", "ib400"),
            nvlink="nvlink4",
            source="NVIDIA H200 SXM data sheet; rates as the H100, which has the same chip",
        ),
        Card(
            name="b200",
            flops={"bfloat16": 2250e12, "float16": 2250e12, "float32": 75e12},
            memory=180e9,
            bandwidth=7.7e12,
            measured=0.776,
            attention=0.3,
            links=("nvlink", "ib400"),
            nvlink="nvlink5",
            source="NVIDIA DGX B200 data sheet; Bekman, ml-engineering; attention as the H100",
        ),
        Card(
            name="mi300x",
            flops={"bfloat16": 1307e12, "float16": 1307e12, "float32": 163e12},
            memory=192e9,
            bandwidth=5.3e12,
            measured=0.58,
            attention=0.25,
            links=("xgmi", "ib400"),
            source="AMD MI300X data sheet; Bekman, ml-engineering; attention estimated",
        ),
        Card(
            name="rtx4090",
            flops={"bfloat16": 165e12, "float16": 165e12, "float32": 82.6e12},
            memory=24e9,
            bandwidth=1.008e12,
            measured=0.86,
            attention=0.55,
            links=("pcie4", "ethernet100"),
            source="NVIDIA Ada whitepaper, sums in float32; shares as the A100",
        ),
        Card(
            name="cpu",
            flops={"float32": 80e9, "bfloat16": 160e9},
            memory=4e9,
            bandwidth=10e9,
            measured=0.8,
            attention=0.3,
            links=("loopback", "ethernet25"),
            source="one core of a server with AVX-512 at 2.5 GHz, estimated",
        ),
    )
}


@dataclass(frozen=True)
class Cluster:
    """A number of cards in nodes, each with a link to its node and one to other nodes."""

    cards: int
    card: Card
    inner: Link
    outer: Link
    per_node: int

    def link(self, size: int, stride: int) -> tuple[Link, float]:
        """The slowest link of a group of `size` cards, each `stride` after the last.

        With the bytes a second that each card has on it. A ring over nodes enters and leaves each
        node once, by the outer links of all its members there.
        """
        if size * stride <= self.per_node:
            return self.inner, CARRIED * self.inner.bandwidth
        members = max(1, min(size, self.per_node // stride))
        across = members * self.outer.bandwidth
        link = self.outer if members == 1 or across < self.inner.bandwidth else self.inner
        return link, CARRIED * min(across, self.inner.bandwidth if members > 1 else across)


def card_named(name: str) -> Card:
    """The card with this name. Raises `InputError` with the nearest."""
    if name not in CARDS:
        raise InputError(f"card {name!r} does not exist.{choices(name, CARDS)}")
    return CARDS[name]


def link_named(name: str, card: Card) -> Link:
    """The link with this name; `nvlink` stands for that of the card.

    Raises `InputError` with the nearest.
    """
    if name == "nvlink" and card.nvlink is None:
        raise InputError(f"{card.name} has no NVLink: use {', '.join(card.links)}")
    name = card.nvlink if name == "nvlink" and card.nvlink is not None else name
    if name not in LINKS:
        raise InputError(f"link {name!r} does not exist.{choices(name, ['nvlink', *LINKS])}")
    return LINKS[name]


def cluster_of(cards: int, card: str, link: str | None, per_node: int | None) -> Cluster:
    """Parse a cluster from its description. Raises `InputError` for a name that does not exist."""
    for name, n in (("cards", cards), ("per_node", per_node)):
        if n is not None and n < 1:
            raise InputError(f"`{name} = {n}`: must be at least 1")
    of = card_of(card)
    names = [*of.links] if link is None else [name.strip() for name in link.split(",")]
    if len(names) > 2:
        raise InputError(f"`link = {link}`: give one within a node and one between nodes")
    inner, outer = (link_of(name, of) for name in (names[0], names[-1]))
    return Cluster(cards, of, inner, outer, per_node or of.per_node)


def card_of(text: str) -> Card:
    """The card with this name, or given by a table of figures.

    Raises `InputError` for another field.
    """
    if not text.lstrip().startswith("{"):
        return card_named(text)
    try:
        table: dict[str, Any] = tomllib.loads(f"card = {text}")["card"]
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"`card = {text}`: not a table of TOML: {error}") from error
    base = table.pop("card", None)
    if not isinstance(base, str):
        raise InputError(f'`card = {text}`: give the card that it is like, such as card = "h100"')
    like = card_named(base)
    valid = ("memory", "bandwidth", "flops", "measured", "attention")
    for name, value in table.items():
        if name not in valid:
            raise InputError(f"`card`: {name} is not a field.{choices(name, ('card', *valid))}")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value < inf:
            raise InputError(f"`card`: {name} = {value} is not a positive number")
    if "flops" in table:
        table["flops"] = dict.fromkeys(like.flops, table["flops"])
    return replace(like, **table)


def link_of(name: str, card: Card) -> Link:
    """The link with this name, or with this number of bytes per second."""
    try:
        bandwidth = float(name)
    except ValueError:
        return link_named(name, card)
    if not 0 < bandwidth < inf:
        raise InputError(f"`link = {name}`: a link has a positive number of bytes a second")
    return Link(name, bandwidth)
