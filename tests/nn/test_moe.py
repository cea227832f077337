"""Mixture of experts: the paper's sum in float64, its cost, gradients and load balance."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts import check_gradients, check_module, check_records, named, started
from torch import Tensor, nn
from torch.testing import assert_close

from addnorm.models import DecoderConfig
from addnorm.nn import moe
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.feedforward import (
    ClampedFeedForwardConfig,
    FeedForwardConfig,
    GatedFeedForwardConfig,
)
from addnorm.nn.moe import (
    AnyFeedForwardConfig,
    MixtureOfExperts,
    MixtureOfExpertsConfig,
    can_group,
    grouped_feedforward,
    load_balance,
    within_capacity,
)
from addnorm.nn.no_sublayer import NoFeedForwardConfig

GELU = FeedForwardConfig(activation="gelu", d_ff=5)
RECORDS = [
    MixtureOfExpertsConfig(n_experts=3, top_k=2, expert=GatedFeedForwardConfig(d_ff=5)),
    MixtureOfExpertsConfig(n_experts=3, top_k=1, expert=GELU),
    MixtureOfExpertsConfig(n_experts=2, top_k=2, expert=GELU, balance=0.0),
]


def paper(module: MixtureOfExperts, x: Tensor) -> Tensor:
    """`Σ_{e in top-k} g_e(x) E_e(x)`, one token and one expert at a time."""
    rows = []
    for row in x.reshape(-1, x.shape[-1]):
        exponentials = (module.router.weight @ row).exp()
        p = (exponentials / exponentials.sum()).tolist()
        best = sorted(range(len(p)), key=lambda e: -p[e])[: module.router.top_k]
        whole = sum(p[e] for e in best) if module.router.top_k > 1 else 1.0
        rows.append(sum(p[e] / whole * module.experts[e](row) for e in best))
    return torch.stack(rows).view(x.shape)


@pytest.mark.parametrize("config", named(RECORDS))
def test_contract(config: MixtureOfExpertsConfig) -> None:
    x = torch.randn(2, 20, 4)
    check_module(lambda: config.build(4), lambda module, dtype: module(x.to(dtype)))


def test_the_union_and_its_records() -> None:
    plain = [FeedForwardConfig(), GatedFeedForwardConfig(), ClampedFeedForwardConfig()]
    check_records(AnyFeedForwardConfig, [*plain, NoFeedForwardConfig(), *RECORDS])


@pytest.mark.parametrize("config", named(RECORDS))
@pytest.mark.parametrize("shape", [(4,), (1, 4), (2, 7, 4), (0, 4), (2, 0, 4)])
def test_equals_the_formula(config: MixtureOfExpertsConfig, shape: tuple[int, ...]) -> None:
    module, x = started(config.build(4)).double(), torch.randn(shape, dtype=torch.float64)
    expected = paper(module, x) if x.numel() else x
    assert_close(module(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("config", named(RECORDS))
def test_gradients(config: MixtureOfExpertsConfig) -> None:
    """Away from ties, where the choice does not move."""
    module, x = started(config.build(4)).double(), torch.randn(2, 3, 4, dtype=torch.float64)
    best = module.router(x).softmax(-1).sort(-1).values
    assert best.diff(dim=-1).abs().min() > 1e-3
    check_gradients(module, lambda m, x: m(x), x, twice=True)


def test_a_mixture_of_all_experts_is_their_weighted_mean() -> None:
    module, x = started(RECORDS[2].build(4)).double(), torch.randn(2, 7, 4, dtype=torch.float64)
    g = module.router(x).softmax(-1)
    expected = g[..., :1] * module.experts[0](x) + g[..., 1:] * module.experts[1](x)
    assert_close(module(x), expected, rtol=0, atol=1e-12)


def test_equal_experts_with_gates_of_one_are_one_of_them() -> None:
    module, x = RECORDS[0].build(4), torch.randn(2, 7, 4)
    for expert in module.experts:
        expert.load_state_dict(module.experts[0].state_dict())
    assert_close(module(x), module.experts[0](x))


@settings(max_examples=20)
@given(batch=st.integers(1, 4), seq=st.integers(1, 6), seed=st.integers(0, 99))
def test_batch_mates_change_nothing(batch: int, seq: int, seed: int) -> None:
    """No expert is ever full: a token's result is its own, in whatever company."""
    torch.manual_seed(seed)
    module = started(RECORDS[0].build(4)).double()
    x = torch.randn(batch, seq, 4, dtype=torch.float64)
    alone = torch.stack([torch.stack([module(token) for token in row]) for row in x])
    assert_close(module(x), alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("d_model", [4, 12, 40])
@pytest.mark.parametrize("config", named([*RECORDS, MixtureOfExpertsConfig(n_experts=8)]))
def test_later_tokens_move_no_bit_of_earlier_ones(
    config: MixtureOfExpertsConfig, d_model: int
) -> None:
    """In float32, though experts multiply other groups: alone, or at other places of a group."""
    module = config.build(d_model)
    for shape in [(1, 2), (1, 5), (2, 9), (3, 30)]:
        for t in {1, shape[1] // 2, shape[1] - 1}:
            x = torch.randn(*shape, d_model)
            other = torch.cat([x[:, :t], torch.randn(shape[0], shape[1] - t, d_model)], dim=1)
            assert torch.equal(module(other)[:, :t], module(x)[:, :t])


@pytest.mark.parametrize("seed", range(4))
def test_a_decoder_of_experts_is_causal_to_the_last_bit(seed: int) -> None:
    torch.manual_seed(seed)
    config = DecoderConfig(
        d_model=24,
        n_layers=2,
        attention=AttentionConfig(n_heads=2),
        feedforward=MixtureOfExpertsConfig(n_experts=4),
    )
    model, tokens = config.build(20).eval(), torch.randint(20, (2, 12))
    for t in range(1, 12):
        other = tokens.clone()
        other[:, t:] = torch.randint(20, (2, 12 - t))
        assert torch.equal(model(other)[:, :t], model(tokens)[:, :t])


@pytest.mark.parametrize(("d_ff", "moved"), [(1344, 0.0), (1365, 1e-6)])
def test_on_two_threads_widths_of_64_are_exact_and_others_to_rounding(
    d_ff: int, moved: float
) -> None:
    expert = GatedFeedForwardConfig(d_ff=d_ff)
    mixture = MixtureOfExpertsConfig(n_experts=4, expert=expert).build(512).eval()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for n in (64, 200):
            x, other = torch.randn(2, 1, n, 512)
            later = torch.cat([x[:, : n // 2], other[:, n // 2 :]], dim=1)
            with torch.no_grad():
                apart = (mixture(x) - mixture(later))[:, : n // 2]
            assert float(apart.abs().max()) <= moved
    finally:
        torch.set_num_threads(threads)


def test_experts_without_a_matrix_may_be_mixed() -> None:
    module, x = MixtureOfExperts(4, [nn.Tanh(), nn.Tanh()], top_k=2), torch.randn(2, 3, 4)
    assert_close(module(x), x.tanh())


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_a_token_costs_the_experts_it_takes(top_k: int) -> None:
    config = MixtureOfExpertsConfig(n_experts=6, top_k=top_k, expert=GELU)
    module, served = config.build(4), []
    for expert in module.experts:
        expert.register_forward_hook(lambda _, args, __: served.append(len(args[0])))
    module(torch.randn(3, 7, 4))
    taken = sum(1 for n in served if n)
    assert sum(served) == top_k * 21 + taken * module.spare
    served.clear()
    module(torch.randn(1, 1, 4))
    assert sorted(served) == [0] * (6 - top_k) + [1] * top_k
    expert, router = 4 * 5 + 5 + 5 * 4 + 4, 4 * 6
    assert sum(p.numel() for p in module.parameters()) == 6 * expert + router


def test_under_autocast() -> None:
    module, x = RECORDS[0].build(16), torch.randn(2, 7, 16)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = module(x)
    assert narrow.dtype == torch.bfloat16
    assert narrow.isfinite().all()
    narrow.float().sum().backward()
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in module.parameters())


def test_an_expert_nobody_takes_learns_nothing_and_breaks_nothing() -> None:
    module = RECORDS[0].build(4)
    with torch.no_grad():
        module.router.weight.zero_()
        module.router.weight[:2] = 1.0
    module(torch.ones(3, 4)).sum().backward()
    for p in module.experts[2].parameters():
        assert p.grad is None or not p.grad.any()


# Capacity.


def test_first_choices_and_earlier_tokens_are_kept() -> None:
    chosen = torch.tensor([[0, 1], [1, 0], [0, 1], [0, 2]])
    kept = within_capacity(chosen, 2)
    assert kept.tolist() == [[True, True], [True, False], [True, False], [False, True]]
    assert within_capacity(chosen, 4).all()


def test_capacity_drops_in_training_alone() -> None:
    """One expert is preferred by all eight tokens, and has four places."""
    expert = GatedFeedForwardConfig(d_ff=5)
    config = MixtureOfExpertsConfig(n_experts=2, top_k=1, expert=expert, capacity_factor=1.0)
    module, x = started(config.build(4)), torch.rand(2, 4, 4)
    with torch.no_grad():
        module.router.weight[0], module.router.weight[1] = 1.0, -1.0
    full, limited = module.eval()(x).view(8, 4), module.train()(x).view(8, 4)
    assert_close(limited[:4], full[:4])
    assert not limited[4:].any()
    assert full[4:].any()


# One computation in three forms.


def forms(module: MixtureOfExperts, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Expert by expert, as one grouped product, and over all experts."""
    monkeypatch.setattr(moe, "GROUPED", 2**62)
    one_by_one = module(x)
    monkeypatch.setattr(moe, "GROUPED", 0)
    return [one_by_one, module(x), module.dense(x)]


@pytest.mark.parametrize("top_k", [1, 2, 4])
@pytest.mark.parametrize("expert", [GatedFeedForwardConfig(d_ff=24), FeedForwardConfig(d_ff=24)])
def test_all_forms_are_equal(
    expert: GatedFeedForwardConfig | FeedForwardConfig, top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = MixtureOfExpertsConfig(n_experts=4, top_k=top_k, expert=expert).build(16)
    for shape in [(3, 7), (1, 1), (0, 4)]:
        x = torch.randn(*shape, 16)
        one_by_one, grouped, dense = forms(module, x, monkeypatch)
        assert_close(grouped, one_by_one)
        assert_close(dense, one_by_one)


def test_later_tokens_move_grouped_products_by_a_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moe, "GROUPED", 0)
    module = MixtureOfExpertsConfig(n_experts=8, expert=GatedFeedForwardConfig(d_ff=24)).build(16)
    for seq in (2, 5, 9, 30):
        x, later = torch.randn(2, seq, 16), torch.randn(2, seq, 16)
        t = seq // 2
        other = torch.cat([x[:, :t], later[:, t:]], dim=1)
        assert_close(module(other)[:, :t], module(x)[:, :t], rtol=0, atol=1e-6)


# The load.


def test_an_even_load_costs_one() -> None:
    assert load_balance(torch.zeros(3, 5, 4), 2).item() == pytest.approx(1.0)
    turns = 50.0 * torch.eye(4).repeat(3, 1)
    assert load_balance(turns, 1).item() == pytest.approx(1.0)


@pytest.mark.parametrize(("top_k", "worst"), [(1, 4.0), (2, 2.0), (4, 1.0)])
def test_the_worst_load_costs_n_experts_over_k(top_k: int, worst: float) -> None:
    logits = torch.zeros(7, 4)
    logits[:, :top_k] = 50.0
    assert load_balance(logits, top_k).item() == pytest.approx(worst)


@pytest.mark.parametrize("top_k", [1, 2])
def test_load_by_its_formula(top_k: int) -> None:
    logits = torch.randn(4, 6, 5, dtype=torch.float64)
    valid = torch.rand(4, 6) > 0.3
    rows = [row.softmax(0).tolist() for row in logits[valid]]
    f, mean = [0.0] * 5, [0.0] * 5
    for p in rows:
        for e in sorted(range(5), key=lambda e: -p[e])[:top_k]:
            f[e] += 1 / (top_k * len(rows))
        mean = [m + a / len(rows) for m, a in zip(mean, p, strict=True)]
    expected = 5 * sum(a * b for a, b in zip(f, mean, strict=True))
    assert load_balance(logits, top_k, valid).item() == pytest.approx(expected, rel=1e-12)


def test_padding_does_not_count_as_load() -> None:
    logits, valid = torch.randn(3, 4, 5), torch.tensor([4, 2, 1])[:, None] > torch.arange(4)
    dirty = logits.masked_fill(~valid[..., None], float("nan")).requires_grad_()
    assert torch.equal(load_balance(dirty, 2, valid), load_balance(logits, 2, valid))
    load_balance(dirty, 2, valid).backward()
    assert dirty.grad is not None
    assert not dirty.grad[~valid].any()
    assert load_balance(dirty, 2, torch.zeros_like(valid)).item() == 0.0


def test_load_gradients() -> None:
    logits = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: load_balance(x, 2), logits, atol=1e-6, rtol=1e-4)


def loads(balance: float, *, steps: int = 60) -> Tensor:
    """The share of tokens that each expert has after training from a router that prefers one."""
    torch.manual_seed(0)
    config = MixtureOfExpertsConfig(n_experts=4, top_k=1, expert=GELU, balance=balance)
    module, goal = config.build(4), nn.Linear(4, 4)
    x = torch.randn(64, 4) + torch.tensor([2.0, 0.0, 0.0, 0.0])
    with torch.no_grad():
        module.router.weight[0, 0] += 2.0
        y = goal(x)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.02)
    for _ in range(steps):
        loss = (module(x) - y).square().mean()
        loss = loss + module.balance * load_balance(module.router(x), module.router.top_k)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    chosen = module.router(x).argmax(-1)
    return torch.bincount(chosen, minlength=4) / len(x)


@pytest.mark.long
def test_balance_spreads_the_load() -> None:
    without, with_it = loads(0.0), loads(1.0)
    assert without.max() > 0.6
    assert with_it.max() < 0.45
    assert with_it.min() > 0.1


# What is refused.


@pytest.mark.parametrize(
    ("field", "value"),
    [("n_experts", 1), ("top_k", 0), ("balance", -0.1), ("expert", {"kind": "moe"})],
)
def test_impossible_values_are_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        MixtureOfExpertsConfig(**{field: value})


@pytest.mark.parametrize("top_k", [0, 4])
def test_more_experts_than_there_are(top_k: int) -> None:
    message = f"top_k = {top_k} of n_experts = 3 is impossible: give 1 to 3"
    with pytest.raises(ValueError, match=message):
        MixtureOfExperts(4, [nn.Identity()] * 3, top_k=top_k)
    if top_k:
        with pytest.raises(ValueError, match=message):
            MixtureOfExpertsConfig(n_experts=3, top_k=top_k)


# The other implementation.


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
def test_parity_with_mixtral() -> None:
    """Hugging Face's block in float32: it takes its softmax there whatever the input's type."""
    theirs_of = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    sizes = {"hidden_size": 6, "intermediate_size": 5}
    theirs = theirs_of.MixtralSparseMoeBlock(
        theirs_of.MixtralConfig(**sizes, num_local_experts=4, num_experts_per_tok=2)
    )
    config = MixtureOfExpertsConfig(n_experts=4, expert=GatedFeedForwardConfig(d_ff=5))
    ours = started(config.build(6))
    with torch.no_grad():
        theirs.gate.weight.copy_(ours.router.weight)
        for e, expert in enumerate(ours.experts):
            both = torch.cat((expert.gate_proj.weight, expert.up_proj.weight))
            theirs.experts.gate_up_proj[e].copy_(both)
            theirs.experts.down_proj[e].copy_(expert.down_proj.weight)
    x = torch.randn(3, 7, 6)
    assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-6)
    logits = ours.router(x)
    valid = torch.tensor([7, 4, 1])[:, None] > torch.arange(7)
    found = theirs_of.load_balancing_loss_func((logits.flatten(0, 1),), 4, 2, valid.long())
    assert_close(2 * load_balance(logits, 2, valid), found)  # theirs counts a token k times


KINDS = {
    "gated": GatedFeedForwardConfig(d_ff=24),
    "gated with bias": GatedFeedForwardConfig(d_ff=24, bias=True, activation="gelu"),
    "mlp": FeedForwardConfig(d_ff=24),
    "mlp without bias": FeedForwardConfig(d_ff=24, bias=False, activation="gelu"),
}
COUNTS = [3, 0, 1, 5]


@pytest.mark.parametrize("kind", KINDS)
def test_equals_one_call_for_each_expert(kind: str) -> None:
    experts = [KINDS[kind].build(16) for _ in COUNTS]
    x = torch.randn(sum(COUNTS), 16, requires_grad=True)
    parameters = [x, *(p for expert in experts for p in expert.parameters())]
    assert can_group(experts, x)
    ours = grouped_feedforward(x, experts, torch.tensor(COUNTS))
    parts = zip(experts, x.split(COUNTS), strict=True)
    theirs = torch.cat([expert(part) for expert, part in parts])
    assert_close(ours, theirs)
    dy = torch.randn_like(ours)
    found, expected = (torch.autograd.grad(y, parameters, dy) for y in (ours, theirs))
    assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_custom_and_misaligned_experts_are_not_grouped() -> None:
    x, plain = torch.randn(4, 16), [KINDS["mlp"].build(16) for _ in range(2)]
    assert can_group(plain, x)
    assert not can_group([expert.double() for expert in plain], x.double())
    assert not can_group([nn.Identity(), nn.Identity()], x)
    assert not can_group([KINDS["mlp"].build(16), KINDS["gated"].build(16)], x)
    assert not can_group([FeedForwardConfig(d_ff=n).build(16) for n in (8, 16)], x)
    assert not can_group([FeedForwardConfig(d_ff=5).build(16) for _ in range(2)], x)
    hooked = [KINDS["mlp"].build(16) for _ in range(2)]
    hooked[1].up_proj.register_forward_hook(lambda *_: None)
    assert not can_group(hooked, x)
    replaced = [KINDS["mlp"].build(16) for _ in range(2)]
    replaced[1].up_proj.forward = lambda input: input
    assert not can_group(replaced, x)
