"""Kernels agree with the definition, and a missing scale is detected."""

import pytest

from addnorm.checking.kernels import compare_kernel, kernel_cells
from addnorm.nn.attention import kernels


@pytest.mark.parametrize("name", kernel_cells())
def test_a_kernel_is_as_defined(name: str) -> None:
    result = compare_kernel(name)
    assert result.failed is None
    assert result.compared >= 6


@pytest.mark.parametrize("size", ["one_query", "few_queries"])
def test_a_scale_left_out_without_a_score_is_seen(
    size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    products = kernels.plain_products

    def unscaled(*given: object, scale: float | None = None, **named: object) -> object:
        return products(*given, scale=1.0 if scale is None else scale, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(kernels, "plain_products", unscaled)
    assert "scale by default" in str(compare_kernel(f"kernel/sdpa/{size}").failed)


def test_blocks_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_lowered", lambda scores, floor, rows: scores * 0)
    assert compare_kernel("kernel/sdpa/autocast").failed is None
    assert compare_kernel("kernel/sdpa/autocast_blocks").failed is not None
