"""Long texts run in tiles, and the limits are restored afterwards."""

import pytest

from addnorm.checking.long_texts import long_texts, reads_long_texts, small_limits
from addnorm.checking.matrix import USUAL, Cell, cells
from addnorm.nn import masks
from addnorm.nn.attention import core, kernels, tiles
from addnorm.nn.choices import choices


def test_limits_are_put_back() -> None:
    before = masks.DENSE_LIMIT, tiles.DENSE_LIMIT, masks.TILE, kernels.AT_ONCE, choices()
    with small_limits():
        assert masks.DENSE_LIMIT == tiles.DENSE_LIMIT < before[0]
        assert choices().many_scores < before[4].many_scores
    after = masks.DENSE_LIMIT, tiles.DENSE_LIMIT, masks.TILE, kernels.AT_ONCE, choices()
    assert after == before


@pytest.mark.long
def test_they_run_through_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def noted(name: str, function):  # type: ignore[no-untyped-def]
        return lambda *given, **named: (ran.append(name), function(*given, **named))[1]

    monkeypatch.setattr(core, "in_tiles", noted("tiles", core.in_tiles))
    plain = Cell(family="decoder", parts=tuple((USUAL | {"position": "alibi"}).items()))
    assert all(one.holds for one in long_texts(plain))
    assert {*ran} == {"tiles"}
    window = Cell(family="encoder", parts=tuple(USUAL.items()))
    found = list(long_texts(window))
    assert all(one.holds for one in found)
    assert len(ran) > 8
    assert {one.name for one in found} > {"long texts", "gradient of long texts"}


def test_a_sixth_of_the_cells_do() -> None:
    found = [reads_long_texts(cell) for cell in cells()]
    assert 0.15 < sum(found) / len(found) < 0.19
