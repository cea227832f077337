"""Early exits: threshold 0 is the whole model, every other is a plain loop over rows and tokens."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from addnorm.data.batches.batch import Batch
from addnorm.errors import InputError
from addnorm.generate.early_exit import (
    ConfidenceRule,
    EarlyExit,
    EntropyRule,
    ExitRule,
    check_exits_early,
    exit_rule,
)
from addnorm.generate.next_token import Continuation
from addnorm.models import DecoderConfig, DecoderModel, EncoderConfig, EncoderModel
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.attention.patterns import WindowPatternConfig
from addnorm.nn.context import Context
from addnorm.nn.heads import ClassificationHeadConfig, TaggingHeadConfig
from addnorm.nn.masks import Causal
from addnorm.nn.positions import ALiBiConfig, RotaryConfig, T5BiasConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.residuals import ParallelConfig, PreNormConfig

SIZES: dict[str, Any] = {
    "d_model": 16,
    "n_layers": 4,
    "max_len": 32,
    "dropout": 0.0,
    "attention": AttentionConfig(n_heads=4),
    "exits": (1, 2, 3),
}
DECODERS: dict[str, dict[str, Any]] = {
    "post": {},
    "pre": {"residual": PreNormConfig(), "position": RotaryConfig()},
    "parallel": {"residual": ParallelConfig(), "position": ALiBiConfig()},
    "grouped": {
        "attention": AttentionConfig(n_heads=4, n_kv_heads=2),
        "position": T5BiasConfig(buckets=6, max_distance=5),
    },
    "windows": {"layer_pattern": (LayerConfig(pattern=WindowPatternConfig(size=3)), LayerConfig())},
}
RULES: dict[str, ExitRule] = {
    "entropy": EntropyRule(1.9),
    "confidence": ConfidenceRule(0.2),
    "all_leave": EntropyRule(1e9),
}


def loud(model: Any) -> Any:
    """Weights so large that exits differ in how sure they are."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return model.double().eval()


def decoder(name: str = "post") -> DecoderModel:
    torch.manual_seed(3)
    return loud(DecoderConfig(**{**SIZES, **DECODERS[name]}).build(11))


def classifier(head: Any = None) -> EncoderModel:
    torch.manual_seed(3)
    return loud(EncoderConfig(**SIZES, head=head or ClassificationHeadConfig()).build(11, 3))


def texts(n: int = 9, length: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(11, (n, length), generator=generator)
    lengths = torch.randint(1, length + 1, (n,), generator=generator)
    lengths[0] = length
    return tokens, torch.arange(length) < lengths[:, None]


def batch_of(**inputs: Tensor) -> Batch:
    n = len(next(iter(inputs.values())))
    return Batch.of(inputs, torch.zeros(n, dtype=torch.long), [10 + i for i in range(n)])


def leaves(rule: ExitRule, logits: Tensor) -> bool:
    """The rule on one row, by the definitions."""
    p = sorted(logits.softmax(-1).tolist(), reverse=True)
    if isinstance(rule, EntropyRule):
        return -sum(x * math.log(x) for x in p if x > 0) < rule.threshold
    assert isinstance(rule, ConfidenceRule)
    return p[0] - p[1] > rule.threshold


# Classifiers.


@pytest.mark.parametrize("rule", [EntropyRule(0.0), ConfidenceRule(1.0)])
@pytest.mark.parametrize("head", [ClassificationHeadConfig(), TaggingHeadConfig()])
def test_the_strictest_threshold_equals_the_whole_model_to_the_bit(
    rule: ExitRule, head: Any
) -> None:
    model, (tokens, valid) = classifier(head).float(), texts()
    early = EarlyExit(rule)
    with torch.inference_mode():
        assert torch.equal(
            early.logits(model, batch_of(inputs=tokens, valid=valid)), model(tokens, valid)
        )
    assert early.depths == {4: 9}
    assert early.mean_depth == 4.0


@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.8, 1.0, 1.05, 2.0])
def test_each_text_leaves_at_its_first_certain_exit(threshold: float) -> None:
    model, (tokens, valid) = classifier(), texts()
    rule = EntropyRule(threshold)
    early = EarlyExit(rule)
    logits = early.logits(model, batch_of(inputs=tokens, valid=valid))
    for i in range(len(tokens)):
        row = tokens[i : i + 1, : int(valid[i].sum())]  # alone and without padding
        exits = list(model.exit_logits(row))
        depth = next((k for k, y in enumerate(exits[:-1], 1) if leaves(rule, y[0])), 4)
        assert early.depth_of[10 + i] == depth
        assert_close(logits[i], exits[depth - 1][0])
    assert early.depths.total() == 9


def test_a_text_that_left_is_not_computed_further() -> None:
    model, (tokens, valid) = classifier(), texts()
    sizes: list[int] = []
    for block in model.stack.blocks:
        block.register_forward_hook(lambda _, x, y: sizes.append(len(y)))
    early = EarlyExit(EntropyRule(0.8))
    early.logits(model, batch_of(inputs=tokens, valid=valid))
    left = [sum(n for k, n in early.depths.items() if k <= layer) for layer in range(4)]
    assert sizes == [9 - n for n in left if n < 9]
    assert len({*early.depths}) > 1


def test_tags_leave_when_all_real_tokens_would() -> None:
    model, (tokens, valid) = classifier(TaggingHeadConfig()), texts()
    rule = EntropyRule(1.0)
    early = EarlyExit(rule)
    logits = early.logits(model, batch_of(inputs=tokens, valid=valid))
    for i in range(len(tokens)):
        n = int(valid[i].sum())
        exits = list(model.exit_logits(tokens[i : i + 1, :n]))
        sure = [all(leaves(rule, y[0, t]) for t in range(n)) for y in exits[:-1]]
        depth = sure.index(True) + 1 if any(sure) else 4
        assert early.depth_of[10 + i] == depth
        assert_close(logits[i, :n], exits[depth - 1][0])


# Language models.


def by_hand(
    model: DecoderModel, tokens: Tensor, rule: ExitRule, free: int = 0
) -> tuple[Tensor, list[int]]:
    """One text, token by token: at every layer the whole past is recomputed from the states that
    each token had there; a token that left has the state with which it left. The first `free`
    tokens take every layer.
    """
    n_layers = len(model.stack.blocks)
    ctx = Context.over(tokens, Causal())
    inputs = [model.embed(tokens, ctx)]  # the states that enter each layer
    inputs += [torch.zeros_like(inputs[0]) for _ in range(n_layers)]
    answers, depths = [], []
    for t in range(tokens.shape[1]):
        so_far = Context.over(tokens[:, : t + 1], Causal())
        answer, depth = None, n_layers
        for i, block in enumerate(model.stack.blocks):
            if answer is None:
                past = inputs[i][:, : t + 1]
                inputs[i + 1][:, t] = block(past, so_far.restrict(model.stack.patterns[i]))[:, t]
                y = inputs[i + 1][:, t : t + 1]
                if str(i + 1) in model.exits and t >= free:
                    logits = model.exits[str(i + 1)](y, so_far)[0, 0]
                    if leaves(rule, logits):
                        answer, depth = logits, i + 1
            else:
                inputs[i + 1][:, t] = inputs[i][:, t]
        if answer is None:
            last = inputs[n_layers][:, t : t + 1]
            answer = model.head(model.stack.norm(last, None), so_far)[0, 0]
        answers.append(answer)
        depths.append(depth)
    return torch.stack(answers), depths


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_a_whole_text_equals_the_loop_over_its_tokens(name: str, rule: str) -> None:
    model, (tokens, valid) = decoder(name), texts(4)
    early = EarlyExit(RULES[rule])
    logits = early.logits(model, batch_of(tokens=tokens, valid=valid))
    depths: list[int] = []
    for i in range(len(tokens)):
        n = int(valid[i].sum())
        expected, taken = by_hand(model, tokens[i : i + 1, :n], RULES[rule])
        assert_close(logits[i, :n], expected)
        depths += taken
    assert sorted(early.depths.elements()) == sorted(depths)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_cached_generation_equals_the_loop_with_propagated_states(name: str, rule: str) -> None:
    """Ragged prompts, padded on the left; a row leaves the batch on the way."""
    model, early = decoder(name), EarlyExit(RULES[rule])
    prompts = [[3, 1, 4, 1, 5], [9, 2], [6]]
    following = torch.tensor([[2, 7, 1, 8], [2, 8, 1, 8], [2, 8, 4, 5]])
    writer = Continuation(model, early=early)
    logits = [writer.start(prompts)]
    rows = torch.arange(3)
    for t in range(4):
        if t == 2:
            rows = torch.tensor([0, 2])
            writer.select(rows)
        logits.append(writer.step(following[rows, t]))
    depths: list[int] = []
    means: list[float] = []
    for i, prompt in enumerate(prompts):
        steps = 4 if i != 1 else 2
        text = torch.tensor([prompt + following[i, :steps].tolist()])
        expected, taken = by_hand(model, text, RULES[rule], free=len(prompt))
        depths += taken[len(prompt) :]
        means.append(sum(taken[len(prompt) :]) / steps)
        for t in range(steps + 1):
            place = i if t < 3 else {0: 0, 2: 1}[i]
            of_token = expected[len(prompt) - 1 + t]
            assert_close(logits[t][place].double(), of_token, rtol=1e-5, atol=1e-5)
    assert early.text_depths == means
    assert sorted(early.depths.elements()) == sorted(depths)
    if rule != "all_leave" and name != "parallel":
        assert len({*depths}) > 1


@pytest.mark.parametrize("rule", [EntropyRule(0.0), ConfidenceRule(1.0)])
@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_generation_at_the_strictest_threshold_equals_the_whole_model_to_the_bit(
    name: str, rule: ExitRule
) -> None:
    model = decoder(name).float()
    whole, early = Continuation(model), Continuation(model, early=EarlyExit(rule))
    prompts = [[3, 1, 4], [9]]
    assert torch.equal(whole.start(prompts), early.start(prompts))
    for token in (2, 7, 1):
        tokens = torch.tensor([token, token])
        assert torch.equal(whole.step(tokens), early.step(tokens))


def test_layers_above_the_exit_of_all_rows_do_not_run() -> None:
    model, ran = decoder(), []
    early = EarlyExit(EntropyRule(1e9))
    writer = Continuation(model, early=early)
    writer.start([[1, 2]])
    for i, block in enumerate(model.stack.blocks):
        block.register_forward_hook(lambda *_, i=i: ran.append(i))
    writer.step(torch.tensor([3]))
    assert ran == [0]
    assert str(early) == "mean depth 1.00 layers · layer 1 100.0%"


# What is refused.


@pytest.mark.parametrize(
    "written", ["entropy", "entropy:x", "sure:0.3", "confidence:1.5", "entropy:-1", "entropy:nan"]
)
def test_invalid_rules_are_rejected(written: str) -> None:
    with pytest.raises(
        InputError, match=f"`exit = {written}`: write entropy:0.3 or confidence:0.9"
    ):
        exit_rule(written)
    assert exit_rule("entropy:0.3") == EntropyRule(0.3)
    assert exit_rule("confidence:0.9") == ConfidenceRule(0.9)


def test_models_that_cannot_exit_early_are_rejected() -> None:
    with pytest.raises(InputError, match=r"no early exits: train one with model.exits"):
        check_exits_early(DecoderConfig(**{**SIZES, "exits": ()}).build(11))
    config = DecoderConfig(**{**SIZES, "attention": RecurrentConfig()})
    with pytest.raises(InputError, match=r"layer 0 is .*must be attention"):
        check_exits_early(config.build(11))
    check_exits_early(decoder())
