"""Cards and links by name, and the link that limits a group of cards."""

import pytest

from addnorm.errors import InputError
from addnorm.training.parallel.planner.cluster import (
    CARDS,
    CARRIED,
    LINKS,
    Card,
    Cluster,
    card_named,
    card_of,
    cluster_of,
    link_named,
)

CLUSTER = Cluster(64, CARDS["h100"], LINKS["nvlink4"], LINKS["ib400"], 8)


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_every_card_has_a_source_and_its_links(card: Card) -> None:
    assert card.source
    assert 0 < card.measured < 1
    assert 0 < card.attention < 1
    assert all(link_named(name, card).source for name in card.links)


def test_a_wrong_name_has_the_nearest() -> None:
    with pytest.raises(InputError, match=r"card 'h101' does not exist\. Did you mean 'h100'"):
        card_named("h101")
    with pytest.raises(InputError, match=r"link 'ib40' does not exist\. Did you mean 'ib400'"):
        link_named("ib40", CARDS["h100"])
    with pytest.raises(InputError, match="rtx4090 has no NVLink: use pcie4, ethernet100"):
        link_named("nvlink", CARDS["rtx4090"])
    with pytest.raises(InputError, match="cpu has no products in float16"):
        CARDS["cpu"].peak("float16")


@pytest.mark.parametrize(
    ("size", "stride", "link", "bandwidth"),
    [
        (8, 1, "nvlink4", 450e9),
        (2, 4, "nvlink4", 450e9),
        (16, 1, "ib400", 400e9),  # eight cards of a node send out together
        (4, 8, "ib400", 50e9),
        (8, 4, "ib400", 100e9),
        (64, 1, "ib400", 400e9),
    ],
)
def test_a_group_has_the_link_that_limits_it(
    size: int, stride: int, link: str, bandwidth: float
) -> None:
    of, carried = CLUSTER.link(size, stride)
    assert of.name == link
    assert carried == pytest.approx(CARRIED * bandwidth)


def test_a_card_may_have_other_figures() -> None:
    card = card_of('{ card = "h100", memory = 96e9, flops = 800e12 }')
    assert card.memory == 96e9
    assert card.peak("bfloat16") == 800e12
    cluster = cluster_of(4, "h100", "300e9,25e9", 4)
    assert (cluster.inner.bandwidth, cluster.outer.bandwidth) == (300e9, 25e9)
    assert cluster.per_node == 4
    with pytest.raises(InputError, match="positive number of bytes"):
        cluster_of(4, "h100", "0", None)
    with pytest.raises(InputError, match="`cards = 0`: must be at least 1"):
        cluster_of(0, "h100", None, None)
