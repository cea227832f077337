"""The convolutional stem: its contract, plain loops in float64, sizes, and what it refuses."""

from typing import Any

import pytest
import torch
from tests.contracts import check_config, check_gradients, check_module
from torch import Tensor
from torch.testing import assert_close

from addnorm.errors import InputError
from addnorm.models.inputs import InputConfig
from addnorm.nn.convolutional_embedding import ConvolutionalEmbeddingConfig, halved
from addnorm.nn.positions import NoPosition, Sinusoidal

PLAIN = ConvolutionalEmbeddingConfig(size=(6, 8), channels=2, widths=(3,))
CONFIGS = [
    PLAIN,
    ConvolutionalEmbeddingConfig(size=(5, 7), channels=2, widths=(), kernel=5),
    ConvolutionalEmbeddingConfig(size=(9, 8), channels=2, widths=(3, 4), positions="none"),
]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=["CCT", "one layer", "no positions"])


def build(config: ConvolutionalEmbeddingConfig, d_model: int = 8, dropout: float = 0.0) -> Any:
    return config.build(d_model, NoPosition(), dropout)


@every_config
def test_contract(config: ConvolutionalEmbeddingConfig) -> None:
    check_config(config, InputConfig)
    images = torch.randn(3, 2, *config.size)
    check_module(lambda: build(config), lambda m, _: m(images)[0])


@every_config
@pytest.mark.parametrize("more", [0, 2], ids=["as learned", "interpolated"])
def test_gradients(config: ConvolutionalEmbeddingConfig, more: int) -> None:
    images = torch.randn(2, 2, config.size[0] + more, config.size[1])
    check_gradients(build(config, 4), lambda m, x: m(x)[0], images, twice=True)


def at(image: Tensor, row: int, column: int, outside: float) -> Tensor:
    rows, columns = image.shape[-2:]
    inside = 0 <= row < rows and 0 <= column < columns
    return image[:, row, column] if inside else torch.full(image.shape[:1], outside).double()


def layer(weight: Tensor, image: Tensor) -> Tensor:
    """`maxpool(relu(W * x))`, one pixel after the other (Hassani et al. 2021, §3.2)."""
    n, (rows, columns) = weight.shape[-1], image.shape[-2:]
    reach = range(-(n // 2), n // 2 + 1)
    convolved = torch.zeros(len(weight), rows, columns).double()
    for row in range(rows):
        for column in range(columns):
            for i, y in enumerate(reach):
                for j, x in enumerate(reach):
                    pixel = at(image, row + y, column + x, 0.0)
                    convolved[:, row, column] += weight[:, :, i, j] @ pixel
    convolved = torch.where(convolved > 0, convolved, 0.0)
    lowest = -float("inf")
    out = [
        [
            torch.stack(
                [at(convolved, row + y, column + x, lowest) for y in (-1, 0, 1) for x in (-1, 0, 1)]
            ).amax(0)
            for column in range(0, columns, 2)
        ]
        for row in range(0, rows, 2)
    ]
    return torch.stack([torch.stack(row) for row in out]).movedim(-1, 0)


@every_config
def test_equals_plain_loops(config: ConvolutionalEmbeddingConfig) -> None:
    module = build(config).double()
    images = torch.randn(2, 2, *config.size).double()
    expected = []
    for image in images:
        for convolution in module.convolutions:
            image = layer(convolution.weight.detach(), image)
        expected.append(image.flatten(1).T)
    wanted = torch.stack(expected)
    if module.positions is not None:
        wanted = wanted + module.positions
    found, ctx = module(images)
    assert_close(found, wanted, rtol=0, atol=1e-12)
    assert ctx.positions.tolist() == [list(range(wanted.shape[1]))]
    assert ctx.valid is None


@pytest.mark.parametrize("size", [(4, 4), (6, 8), (7, 9), (13, 5)])
def test_any_size_that_can_be_halved(size: tuple[int, int]) -> None:
    rows, columns = halved(size, 2)
    x, _ = build(PLAIN)(torch.randn(1, 2, *size))
    assert x.shape == (1, rows * columns, 8)


def test_the_memory_format_of_the_images_changes_nothing() -> None:
    module, images = build(PLAIN), torch.randn(2, 2, 6, 8)
    turned = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(module(images)[0], module(turned)[0])


def test_the_model_may_add_positions_of_its_own() -> None:
    module = PLAIN.build(8, Sinusoidal(), 0.0)
    images = torch.randn(1, 2, 6, 8)
    x, ctx = module(images)
    module.position = NoPosition()
    assert_close(x, Sinusoidal().embed(module(images)[0], ctx))


def test_rejects_padding_other_channels_and_small_images() -> None:
    with pytest.raises(InputError, match="no padding"):
        build(PLAIN)(torch.randn(1, 2, 6, 8), torch.ones(1, 4, dtype=torch.bool))
    with pytest.raises(InputError, match=r"\(batch, 2, height, width\)"):
        build(PLAIN)(torch.randn(1, 3, 6, 8))
    with pytest.raises(InputError, match=r"2 × 8 is too small .* 4 × 8"):
        build(PLAIN)(torch.randn(1, 2, 2, 8))
    with pytest.raises(InputError, match=r"4 × 4 is too small for 3 .* 8 × 8"):
        ConvolutionalEmbeddingConfig(size=(4, 4), widths=(8, 8))
    with pytest.raises(InputError, match=r"kernel = 4 .* such as 3 or 5"):
        ConvolutionalEmbeddingConfig(kernel=4)
