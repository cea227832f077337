"""Multi-token prediction: its equation, its targets at the ends of documents, and its loss."""

from typing import Any

import pytest
import torch
from tests.contracts import started
from torch.nn import functional as F
from torch.testing import assert_close

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, DecoderModel
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.context import Context
from addnorm.nn.heads import HiddenHeadConfig
from addnorm.nn.hyper_connections import ManifoldConnectionsConfig
from addnorm.nn.masks import Causal
from addnorm.nn.positions import RotaryConfig
from addnorm.nn.residuals import PreNormConfig
from addnorm.nn.token_ahead import MultiTokenConfig, TokenAhead, targets_ahead
from addnorm.training.objective import Objective
from addnorm.training.settings import TrainConfig

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 2, 6], [2, 6, 0, 3, 3, 1, 4]])


def decoder(depth: int | None = 2, **more: Any) -> DecoderModel:
    torch.manual_seed(1)
    mtp = None if depth is None else MultiTokenConfig(depth=depth, weight=0.3)
    fields: dict[str, Any] = {"position": RotaryConfig(), "residual": PreNormConfig(), **more}
    config = DecoderConfig(
        d_model=8, n_layers=2, attention=AttentionConfig(n_heads=2), dropout=0.0, mtp=mtp, **fields
    )
    model = started(config.build(7)).double()
    assert isinstance(model, DecoderModel)
    return model.eval()


def test_each_depth_by_its_equation() -> None:
    """Hidden states in the first half, tokens `k` ahead in the second, each with its own norm."""
    model = decoder()
    hidden, _ = model.hidden(TOKENS)
    for k, (ours, _) in enumerate(model.hidden_ahead(hidden, TOKENS), start=1):
        module = model.ahead[k - 1]
        assert isinstance(module, TokenAhead)
        n = TOKENS.shape[1] - k
        rows: list[torch.Tensor] = []
        for i in range(n):
            token = model.embed(TOKENS[:, i + k, None], Context.over(TOKENS[:, :1], Causal()))[:, 0]
            state = module.hidden_norm(hidden[:, i])
            rows.append(torch.cat([state, module.token_norm(token)], -1) @ module.proj.weight.T)
        ctx = Context.over(TOKENS[:, :n], Causal())
        hidden = module.stack(torch.stack(rows, 1), ctx)
        assert_close(ours, hidden, rtol=1e-6, atol=1e-6)
        assert ours.shape == (2, n, 8)


def test_targets_are_those_of_the_slot_ahead_in_the_same_document() -> None:
    """Two documents of four and three tokens: the last `k` slots of each predict nothing."""
    targets = torch.tensor([[10, 11, 12, -100, 20, 21, -100]])
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    none = -100
    one = targets_ahead(targets, 1, segments=segments)
    assert one.tolist() == [[11, 12, none, none, 21, none]]
    assert targets_ahead(targets, 2, segments=segments).tolist() == [[12, none, none, none, none]]
    valid = torch.tensor([[True, True, True, False, False, False, False]])
    assert targets_ahead(targets, 1, valid).tolist() == [[11, 12, none, none, none, none]]


def test_documents_of_a_batch_do_not_see_each_other() -> None:
    model = decoder()
    segments = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    other = TOKENS[:1].clone()
    other[:, :3] = 0

    def of(tokens: torch.Tensor) -> list[torch.Tensor]:
        hidden, _ = model.hidden(tokens, segments=segments)
        return [x for x, _ in model.hidden_ahead(hidden, tokens, segments=segments)]

    for k, (ours, theirs) in enumerate(zip(of(TOKENS[:1]), of(other), strict=True), start=1):
        assert_close(ours[:, 3:], theirs[:, 3:])
        alone = model.hidden(TOKENS[:1, 3:])[0]
        *_, (expected, _) = list(model.hidden_ahead(alone, TOKENS[:1, 3:]))[:k]
        assert_close(ours[:, 3:], expected)


def test_padding_changes_nothing() -> None:
    model = decoder()
    valid = torch.ones(1, 7, dtype=torch.bool)
    valid[:, 5:] = False
    hidden, _ = model.hidden(TOKENS[:1], valid)
    alone, _ = model.hidden(TOKENS[:1, :5])
    padded = model.hidden_ahead(hidden, TOKENS[:1], valid)
    for k, ((ours, _), (expected, _)) in enumerate(
        zip(padded, model.hidden_ahead(alone, TOKENS[:1, :5]), strict=True), start=1
    ):
        assert_close(ours[:, : 5 - k], expected)


def test_loss_is_the_weighted_mean_over_depths_in_training_alone() -> None:
    model = decoder()
    objective = Objective.of(TrainConfig(steps=1), model, [])
    targets = TOKENS.roll(-1, 1)
    targets[:, -1] = -100
    main = objective(model, {"tokens": TOKENS}, targets)
    hidden, ctx = model.hidden(TOKENS)
    expected = main
    for k, (x, _) in enumerate(model.hidden_ahead(hidden, TOKENS), start=1):
        logits = model.head(x, ctx).flatten(0, 1)
        loss = F.cross_entropy(logits, targets[:, k:].flatten(), reduction="sum")
        expected = expected + 0.3 / 2 * loss
    assert_close(objective(model.train(), {"tokens": TOKENS}, targets), expected)


def test_every_weight_learns() -> None:
    model = decoder(residual=ManifoldConnectionsConfig()).train()
    targets = TOKENS.roll(-1, 1)
    Objective.of(TrainConfig(steps=1), model, [])(model, {"tokens": TOKENS}, targets).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0 or name.endswith("k_proj.bias"), name


def test_logits_are_those_of_the_model_without_it() -> None:
    with_it, without = decoder(), decoder(None)
    without.load_state_dict(with_it.state_dict(), strict=False)
    assert torch.equal(with_it(TOKENS), without(TOKENS))


def test_short_texts_have_no_token_so_far_ahead() -> None:
    model, one = decoder(), TOKENS[:, :1]
    hidden, _ = model.hidden(one)
    assert list(model.hidden_ahead(hidden, one)) == []


@pytest.mark.parametrize(
    ("more", "message"),
    [({"exits": (1,)}, "exits out"), ({"head": HiddenHeadConfig()}, "head of tokens")],
)
def test_rejects(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decoder(**more)


def test_rejects_a_second_pass() -> None:
    with pytest.raises(InputError, match=r"leave train\.r_drop out"):
        Objective.of(TrainConfig(steps=1, r_drop=1.0), decoder(), [])
