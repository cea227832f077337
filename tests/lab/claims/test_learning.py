"""How the claims' models are trained and measured: against plain definitions."""

import math

import pytest
import torch
from torch.nn import functional as F

from addnorm.lab.claims.learning import (
    Course,
    accuracy,
    cache_bytes,
    decoder,
    encoder,
    entropy,
    gradient_of,
    jacobian,
    learn,
    loss_of,
    loss_on_new,
    seconds_of,
)
from addnorm.lab.claims.tasks import Examples, in_order, text_of


def test_a_seed_decides_the_weights() -> None:
    first, again, other = (decoder(8, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_the_rate_rises_and_falls() -> None:
    course = Course(110, warmup=10)
    assert course.factor(0) == pytest.approx(0.1)
    assert course.factor(9) == course.factor(10) == 1
    assert course.factor(60) == pytest.approx(0.5)
    assert Course(100, warmup=0, falls=False).factor(99) == 1


def test_learning_ends_at_a_number_that_is_not_finite() -> None:
    model = decoder(8, 1)
    losses = learn(model, lambda g: broken(model), Course(5), 1)
    assert len(losses) == 1
    assert not math.isfinite(losses[0])


def broken(model: torch.nn.Module) -> Examples:
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    return Examples(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3, dtype=torch.long))


@pytest.mark.long
def test_an_encoder_learns_the_order_of_two_marks() -> None:
    model = encoder(13, 1)
    losses = learn(model, lambda g: in_order(g, 64, 12, causal=False), Course(150), 1)
    assert losses[-1] < 0.1 < losses[0]
    asked = in_order(torch.Generator().manual_seed(7), 200, 12, causal=False)
    assert accuracy(model, asked) > 99


def test_only_scored_targets_count() -> None:
    model = decoder(8, 1).eval()
    examples = in_order(torch.Generator().manual_seed(0), 4, 3, causal=True)
    examples = examples._replace(tokens=examples.tokens % 8)
    logits = model(examples.tokens)[:, -1]
    expected = F.cross_entropy(logits, examples.targets[:, -1])
    torch.testing.assert_close(loss_of(model, examples), expected)
    right = (logits.argmax(-1) == examples.targets[:, -1]).float().mean().item()
    assert accuracy(model, examples) == pytest.approx(100 * right)


def test_the_last_tokens_alone_may_be_measured() -> None:
    model = decoder(8, 1)
    tokens = text_of("chain").draw(torch.Generator().manual_seed(7), 4, 9, test=True)
    with torch.no_grad():
        each = F.cross_entropy(
            model.eval()(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:], reduction="none"
        )
    assert loss_on_new(model, "chain", 4, 8, last=2) == pytest.approx(each[:, -2:].mean().item())
    assert loss_on_new(model, "chain", 4, 8) == pytest.approx(each.mean().item())


def test_entropy_and_derivative_of_attention() -> None:
    scores = torch.randn(3, 5, dtype=torch.float64)
    weights = scores.softmax(-1)
    expected = torch.distributions.Categorical(weights).entropy().mean() / math.log(5)
    assert entropy(weights) == pytest.approx(expected.item())
    jacobians = torch.stack(
        [torch.autograd.functional.jacobian(lambda s: s.softmax(-1), row) for row in scores]
    )
    assert jacobian(weights) == pytest.approx(jacobians.norm(dim=(1, 2)).mean().item())
    assert entropy(torch.full((2, 4), 0.25)) == pytest.approx(1)


def test_gradients_caches_and_times() -> None:
    layer = torch.nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    assert gradient_of(layer) == pytest.approx(math.sqrt(4 + 2))
    model = decoder(8, 1)
    cache = model.new_cache()
    model.next_token_logits(torch.zeros(3, 5, dtype=torch.long), cache=cache)
    assert cache_bytes(cache) == 2 * 2 * 3 * 5 * 64 * 4
    calls: list[int] = []
    assert seconds_of(lambda: calls.append(1), 4) >= 0
    assert len(calls) == 6
