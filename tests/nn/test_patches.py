"""Patches: plain loops in float64, other resolutions, and series of different lengths."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts import check_config, check_gradients, check_module
from torch import Tensor
from torch.testing import assert_close

from addnorm.errors import InputError
from addnorm.models.inputs import InputConfig
from addnorm.nn.context import Context
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.patches import (
    PatchEmbedding,
    PatchEmbeddingConfig,
    SeriesEmbedding,
    SeriesEmbeddingConfig,
    check_frames,
    check_images,
)
from addnorm.nn.positions import NoPosition, Sinusoidal

PLAIN = PatchEmbeddingConfig(size=(4, 6), channels=2, patch=2)
PATCHES = [
    PLAIN,
    PatchEmbeddingConfig(size=(4, 6), channels=2, patch=2, class_token=False),
    PatchEmbeddingConfig(size=(4, 6), channels=2, patch=2, positions="none"),
    PatchEmbeddingConfig(
        size=(4, 6), channels=2, patch=2, distillation_token=True, registers=3, norm=RMSNormConfig()
    ),
]
SERIES = [
    SeriesEmbeddingConfig(channels=2, patch=3),
    SeriesEmbeddingConfig(channels=2, patch=4, stride=2, norm="instance"),
    SeriesEmbeddingConfig(channels=2, patch=1, stride=1),
]
every_patches = pytest.mark.parametrize(
    "config", PATCHES, ids=["ViT", "no class", "no positions", "registers"]
)
every_series = pytest.mark.parametrize("config", SERIES, ids=["end to end", "overlapping", "steps"])


def build(config: Any, d_model: int = 8, dropout: float = 0.0) -> Any:
    return config.build(d_model, NoPosition(), dropout)


# Images.


@every_patches
def test_contract(config: PatchEmbeddingConfig) -> None:
    check_config(config, InputConfig)
    images = torch.randn(3, 2, 4, 6)
    check_module(lambda: build(config), lambda m, _: m(images)[0])


@every_patches
@pytest.mark.parametrize("size", [(4, 6), (6, 4)], ids=["as learned", "interpolated"])
def test_gradients(config: PatchEmbeddingConfig, size: tuple[int, int]) -> None:
    images = torch.randn(2, 2, *size)
    check_gradients(build(config, 4), lambda m, x: m(x)[0], images, twice=True)


def with_registers(module: PatchEmbedding, x: Tensor) -> Tensor:
    """The registers after two tokens, and then an RMSNorm."""
    if module.registers is None:
        return x
    x = torch.cat([x[:, :2], module.registers.expand(2, -1, -1), x[:, 2:]], dim=1)
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


@every_patches
def test_equals_plain_loops(config: PatchEmbeddingConfig) -> None:
    """`[class; E x_1; E x_2; …] + positions` (Dosovitskiy et al. 2021, eq. 1).

    DeiT's second token has a position, registers have none; a norm stands after all.
    """
    module = build(config).double()
    images = torch.randn(2, 2, 4, 6).double()
    weight, bias = module.proj.weight.detach(), module.proj.bias.detach()
    rows = []
    for image in images:
        tokens = (module.class_token, module.distillation_token)
        row = [token.detach() for token in tokens if token is not None]
        for top in range(0, 4, 2):
            for left in range(0, 6, 2):
                total = bias.clone()
                for channel in range(2):
                    for y in range(2):
                        for x in range(2):
                            total += weight[:, channel, y, x] * image[channel, top + y, left + x]
                row.append(total)
        rows.append(torch.stack(row))
    expected = torch.stack(rows)
    if module.positions is not None:
        expected = expected + module.positions
    expected = with_registers(module, expected)
    assert config.n_positions((4, 6)) == expected.shape[1]
    got, ctx = module(images)
    assert_close(got, expected, rtol=0, atol=1e-12)
    assert ctx.grid == (2, 3)
    assert ctx.positions.tolist() == [list(range(expected.shape[1]))]
    assert ctx.valid is None


def test_the_model_may_add_positions_of_its_own() -> None:
    module = PLAIN.build(8, Sinusoidal(), 0.0)
    images = torch.randn(1, 2, 4, 6)
    x, ctx = module(images)
    module.position = NoPosition()
    assert_close(x, Sinusoidal().embed(module(images)[0], ctx))


def test_dropout_in_training_alone() -> None:
    module, images = build(PLAIN, 64, 0.5), torch.randn(1, 2, 4, 6)
    assert (module(images)[0] == 0).double().mean() > 0.3
    assert not (module.eval()(images)[0] == 0).any()


def positions(module: PatchEmbedding, rows: int, columns: int) -> Tensor:
    """The positions that another grid gets, without the class token's."""
    return module.positions_of(rows, columns)[1:].unflatten(0, (rows, columns))


def test_a_grid_as_learned_keeps_its_positions() -> None:
    module = build(PLAIN)
    assert module.positions_of(2, 3) is module.positions


def test_interpolation_keeps_the_class_token_and_constant_positions() -> None:
    module = build(PatchEmbeddingConfig(size=(6, 8), channels=1, patch=2)).double()
    with torch.no_grad():
        module.positions[1:] = module.positions[1]
    wide = module.positions_of(7, 2)
    assert torch.equal(wide[0], module.positions[0])
    assert_close(wide[1:], module.positions[1].expand(14, -1), rtol=0, atol=1e-12)


def cubic(t: float) -> list[float]:
    """The weights of the four neighbours (Keys 1981, a = -0.75)."""

    def near(x: float) -> float:
        return 1.25 * x**3 - 2.25 * x**2 + 1

    def far(x: float) -> float:
        return -0.75 * (x**3 - 5 * x**2 + 8 * x - 4)

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def test_interpolation_equals_plain_loops() -> None:
    module = build(PatchEmbeddingConfig(size=(6, 8), channels=1, patch=2)).double()
    old, new = positions(module, 3, 4).detach(), positions(module, 5, 2).detach()
    for row in range(5):
        for column in range(2):
            y, x = (row + 0.5) * 3 / 5 - 0.5, (column + 0.5) * 4 / 2 - 0.5
            total = torch.zeros(8).double()
            for i, wy in enumerate(cubic(y - math.floor(y))):
                for j, wx in enumerate(cubic(x - math.floor(x))):
                    at = (
                        min(max(math.floor(y) - 1 + i, 0), 2),
                        min(max(math.floor(x) - 1 + j, 0), 3),
                    )
                    total += wy * wx * old[at]
            assert_close(new[row, column], total, rtol=0, atol=1e-12)


@settings(max_examples=15)
@given(rows=st.integers(1, 9), columns=st.integers(1, 9), patch=st.integers(1, 4))
def test_every_multiple_of_the_patch_is_read(rows: int, columns: int, patch: int) -> None:
    config = PatchEmbeddingConfig(size=(2 * patch, 3 * patch), channels=1, patch=patch)
    x, ctx = build(config)(torch.randn(2, 1, rows * patch, columns * patch))
    assert x.shape == (2, rows * columns + 1, 8)
    assert len(ctx.kv_slots) == rows * columns + 1


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1, 2, 5, 6), r"5 × 6 does not divide into patches of 2 × 2: .* 4 × 6"),
        ((1, 2, 4, 7), r"4 × 7 .* 4 × 8"),
        ((1, 2, 1, 1), r"1 × 1 .* 2 × 2"),
        ((1, 3, 4, 6), r"\(batch, 2, height, width\), got torch.float32 of shape \(1, 3, 4, 6\)"),
    ],
)
def test_impossible_images(shape: tuple[int, ...], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        build(PLAIN)(torch.randn(shape))


def test_images_must_be_floating_point_without_padding() -> None:
    with pytest.raises(InputError, match="no padding"):
        build(PLAIN)(torch.randn(1, 2, 4, 6), torch.ones(1, 7, dtype=torch.bool))
    with pytest.raises(InputError, match="uint8"):
        check_images(torch.zeros(1, 2, 4, 6, dtype=torch.uint8), 2, None)


def test_an_impossible_size_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"30 × 28 .* 4 × 4: .* 32 × 28"):
        PatchEmbeddingConfig(size=(30, 28), patch=4)
    with pytest.raises(ValueError, match="positions"):
        PatchEmbeddingConfig(positions="sinusoidal")  # type: ignore[arg-type]


# Time series.


@every_series
def test_contract_of_series(config: SeriesEmbeddingConfig) -> None:
    check_config(config, InputConfig)
    series, valid = torch.randn(2, 2, 7), torch.arange(7) < torch.tensor([[7], [4]])
    for real in (None, valid):
        check_module(lambda: build(config), lambda m, _, real=real: m(series, real)[0])


@every_series
@pytest.mark.parametrize("lengths", [None, [5, 2]], ids=["whole", "padded"])
def test_gradients_of_series(config: SeriesEmbeddingConfig, lengths: list[int] | None) -> None:
    valid = None if lengths is None else torch.arange(5) < torch.tensor(lengths)[:, None]
    series = torch.randn(2, 2, 5)
    check_gradients(build(config, 4), lambda m, x: m(x, valid)[0], series, twice=True)


def one_by_one(module: SeriesEmbedding, series: Tensor, *, instance: bool) -> Tensor:
    """The patches of one series, by plain loops: the last value fills the last patch."""
    values = series.tolist()
    if instance:
        for channel in values:
            mean = sum(channel) / len(channel)
            deviation = math.sqrt(sum((v - mean) ** 2 for v in channel) / len(channel) + 1e-5)
            channel[:] = [(v - mean) / deviation for v in channel]
    out, start = [], 0
    while True:
        steps = [[c[min(start + i, len(c) - 1)] for i in range(module.patch)] for c in values]
        out.append(
            (module.proj.weight * torch.tensor(steps, dtype=torch.float64)).sum((1, 2))
            + module.proj.bias
        )
        start += module.stride
        if start + module.patch - module.stride >= len(values[0]):
            return torch.stack(out)


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any),
    patch=st.integers(1, 5),
    stride=st.integers(1, 5),
    norm=st.sampled_from(["none", "instance"]),
    garbage=st.sampled_from([0.0, math.nan, math.inf]),
)
def test_series_equal_plain_loops_whatever_their_batch_mates(
    lengths: list[int], patch: int, stride: int, norm: Any, garbage: float
) -> None:
    config = SeriesEmbeddingConfig(channels=2, patch=patch, stride=min(stride, patch), norm=norm)
    module = build(config).double()
    valid = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    series = torch.where(valid[:, None], torch.randn(len(lengths), 2, max(lengths)), garbage)
    x, ctx = module(series.double(), valid)
    assert ctx.valid is not None
    assert torch.equal(ctx.valid, module.valid_positions(valid))
    assert (x[~ctx.valid] == 0).all()
    for i, n in enumerate(lengths):
        assert (ctx.valid[i].sum() == 0) == (n == 0)
        if n:
            alone = one_by_one(module, series[i, :, :n].double(), instance=norm == "instance")
            assert_close(x[i, ctx.valid[i]], alone, rtol=0, atol=1e-10)
    x.sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters())


def test_a_whole_series_needs_no_mask() -> None:
    module, series = build(SERIES[1]), torch.randn(3, 2, 9)
    x, ctx = module(series)
    assert ctx.valid is None
    assert_close(x, module(series, torch.ones(3, 9, dtype=torch.bool))[0])


def test_the_number_of_patches() -> None:
    """`⌈(T - P) / S⌉ + 1`; the paper's `⌊(T - P) / S⌋ + 2` where no stride fits exactly."""
    module = build(SeriesEmbeddingConfig(patch=16, stride=8))
    assert module(torch.randn(1, 1, 336))[0].shape == (1, 41, 8)  # the paper has 42
    assert module(torch.randn(1, 1, 337))[0].shape == (1, 42, 8)  # as the paper has


@pytest.mark.parametrize(
    ("shape", "valid", "expected"),
    [
        ((2, 3, 5), None, r"\(batch, 2, time\), got torch.float32 of shape \(2, 3, 5\)"),
        ((2, 2, 0), None, "time"),
        ((2, 2, 5), torch.ones(2, 4, dtype=torch.bool), r"\(2, 5\), got \(2, 4\)"),
        ((1, 2, 3), torch.tensor([[False, True, True]]), "on the right"),
        ((1, 2, 3), torch.tensor([[True, False, True]]), "on the right"),
    ],
)
def test_impossible_series(shape: tuple[int, ...], valid: Tensor | None, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        check_frames(torch.randn(shape), 2, valid)


def test_a_stride_that_skips_steps_is_refused() -> None:
    with pytest.raises(ValueError, match=r"stride = 5 .* patches of 4: at most stride = 4"):
        SeriesEmbeddingConfig(patch=4, stride=5)


def test_contexts_are_those_of_the_sequence() -> None:
    _, ctx = build(SERIES[0])(torch.randn(2, 2, 7))
    assert isinstance(ctx, Context)
    assert ctx.batch == 2
    assert len(ctx.kv_slots) == 3


@settings(max_examples=20)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    norm=st.sampled_from(["none", "instance", "instance_last"]),
)
def test_an_independent_channel_is_a_series_of_its_own(lengths: list[int], norm: Any) -> None:
    """Nie et al. 2023, §3.1: a batch with a row for each channel, and the same weights."""
    shape: dict[str, Any] = {"patch": 3, "stride": 2, "norm": norm}
    module = build(SeriesEmbeddingConfig(channels=2, variables="independent", **shape)).double()
    alone = build(SeriesEmbeddingConfig(channels=1, **shape)).double()
    alone.load_state_dict(module.state_dict())
    valid = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    series = torch.randn(len(lengths), 2, max(lengths)).double()
    x, ctx = module(series, valid)
    rows, each = alone(series.flatten(0, 1)[:, None], valid.repeat_interleave(2, 0))
    assert_close(x, rows, rtol=0, atol=1e-12)
    assert torch.equal(ctx.valid, each.valid)
    assert ctx.statistics.mean.shape == (len(lengths), 2, 1)


def test_an_affine_follows_a_norm() -> None:
    with pytest.raises(ValueError, match="affine = 'learned' follows a norm"):
        SeriesEmbeddingConfig(affine="learned")
