"""Dropout, sum and norm by the operator, with its gradient, are those of float64."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from addnorm.compiler import has_compiler
from addnorm.kernels.add_norm import DTYPES, OPERATOR, add_norm
from addnorm.kernels.build import load_operator

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")

EPS = 1e-5


@pytest.fixture(autouse=True)
def operator() -> None:
    load_operator(OPERATOR)


def inputs(rows: int, width: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """`f x γ β`, with gradients."""
    f, x = torch.randn(rows, width).to(dtype), torch.randn(rows, width)
    return [t.requires_grad_() for t in (f, x, torch.randn(width), torch.randn(width))]


def kept(f: Tensor, p: float, seed: int) -> Tensor:
    """The mask: what becomes of ones that are added to zeros, before the norm."""
    ones, zeros = torch.ones_like(f), torch.zeros(f.shape)
    return torch.ops.addnorm.add_norm(ones, zeros, None, None, False, EPS, p, seed)[1]


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(0, 3), (1, 1), (2, 2), (3, 3), (5, 31), (130, 48), (3, 10_001)], ids=str
)
def test_sum_norm_and_gradients_are_those_of_the_definition(
    shape: tuple[int, int], dtype: torch.dtype, centred: bool, p: float
) -> None:
    f, x, gain, bias = given = inputs(*shape, dtype)
    dy = torch.randn(shape)
    torch.manual_seed(5)
    y = add_norm(f, x, gain, bias, centred=centred, eps=EPS, p=p)
    got = torch.autograd.grad(y, given, dy)
    torch.manual_seed(5)
    mask = kept(f, p, int(torch.randint(2**62, ()))) if p else torch.ones(shape)
    wide = [t.detach().double().requires_grad_() for t in given]
    s = wide[1] + mask * wide[0]
    norm = F.layer_norm if centred else lambda s, w, g, _, e: F.rms_norm(s, w, g, e) + wide[3]
    expected = norm(s, shape[1:], *wide[2:], EPS)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(got, torch.autograd.grad(expected, wide, dy.double()), strict=True):
        tolerance = 1e-2 if ours.dtype is torch.bfloat16 else 1e-5
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=2e-5)


@pytest.mark.parametrize("centred", [True, False])
def test_gain_and_bias_may_be_left_out(centred: bool) -> None:
    f, x, *_ = inputs(4, 20)
    y = add_norm(f, x, None, None, centred=centred, eps=EPS, p=0.0)
    norm = F.layer_norm if centred else F.rms_norm
    expected = norm(f + x, (20,), eps=EPS)
    torch.testing.assert_close(y, expected)
    for ours, theirs in zip(
        *(torch.autograd.grad(z.square().sum(), [f, x]) for z in (y, expected)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_mask_is_random_in_rows_columns_and_seeds() -> None:
    """Each number is kept with the probability given, whatever became of its neighbours."""
    p, shape = 0.25, (512, 512)
    masks = [(kept(torch.empty(shape), p, seed) > 0).double() for seed in (1, 2, 2**61)]
    for mask in masks:
        assert abs(mask.mean() - (1 - p)) < 0.005
        assert (mask.mean(0) - (1 - p)).abs().max() < 0.1
        assert (mask.mean(1) - (1 - p)).abs().max() < 0.1
        centred = mask - mask.mean()
        for rows, columns in ((0, 1), (1, 0), (1, 1), (0, 16), (0, 32), (64, 0)):
            moved = centred.roll((rows, columns), (0, 1))
            assert abs((centred * moved).mean()) < 5 * p * (1 - p) / 512
    for one, other in pairwise(masks):
        assert abs(((one - one.mean()) * (other - other.mean())).mean()) < 5 * p * (1 - p) / 512


def test_a_mask_scales_by_the_rounded_probability() -> None:
    values = kept(torch.empty(64, 64), 0.1, 7).unique()
    dropped = round(0.1 * 2**16)
    torch.testing.assert_close(values, torch.tensor([0.0, 2**16 / (2**16 - dropped)]))


def test_results_depend_on_no_other_row_and_on_no_thread() -> None:
    f, x, gain, bias = inputs(300, 48)
    options = {"centred": True, "eps": EPS, "p": 0.2}

    def run(rows: int) -> list[Tensor]:
        torch.manual_seed(3)
        y = add_norm(f[:rows], x[:rows], gain, bias, **options)
        return [y, *torch.autograd.grad(y.square().sum(), [f, x, gain, bias])]

    whole, part = run(300), run(70)
    for together, alone in zip(whole[:3], part[:3], strict=True):
        assert torch.equal(together[:70], alone[:70])
    before = torch.get_num_threads()
    torch.set_num_threads(3 - min(before, 2))
    assert all(torch.equal(a, b) for a, b in zip(whole, run(300), strict=True))
    torch.set_num_threads(before)


def test_a_number_that_is_not_finite_stays_in_its_row() -> None:
    f, x, gain, bias = (t.detach() for t in inputs(3, 40))
    x[1, 17] = float("nan")
    y = add_norm(f, x, gain, bias, centred=True, eps=EPS, p=0.0)
    assert y.isnan().any(1).tolist() == [False, True, False]


def test_tensors_that_do_not_fit_are_refused() -> None:
    good = torch.zeros(2, 4)
    for f, x in ((good.half(), good), (good, good.double()), (good[:1], good), (good[:, :2], good)):
        with pytest.raises(RuntimeError, match="do not fit together"):
            torch.ops.addnorm.add_norm(f, x, None, None, True, EPS, 0.0, 0)
    for weight in (torch.zeros(3), torch.zeros(8)[::2], torch.zeros(4).double(), good):
        for gain, bias in ((weight, None), (None, weight)):
            with pytest.raises(RuntimeError, match="do not fit together"):
                torch.ops.addnorm.add_norm(good, good, gain, bias, True, EPS, 0.0, 0)
