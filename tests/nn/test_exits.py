"""Early exits: their own heads, and rows that exit once confident."""

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts import check_gradients, check_module, context
from torch import Tensor, nn
from torch.testing import assert_close

from addnorm.models import DecoderConfig, DecoderModel, EncoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.exits import ExitHead, check_exits, confidence, first_confident
from addnorm.nn.heads import ClassificationHeadConfig, HeadConfig, TaggingHeadConfig
from addnorm.nn.norms import BatchNorm, LayerNorm, LayerNormConfig

HEADS = [ClassificationHeadConfig(), TaggingHeadConfig()]


def build(head: HeadConfig | None = None) -> ExitHead:
    return ExitHead(LayerNormConfig().build(6), (head or ClassificationHeadConfig()).build(6, 4))


# The head.


@pytest.mark.parametrize("head", HEADS)
def test_contract(head: HeadConfig) -> None:
    x, ctx = torch.randn(2, 3, 6), context(2, 3)
    check_module(lambda: build(head), lambda module, dtype: module(x.to(dtype), ctx))
    check_gradients(build(head), lambda m, x: m(x, ctx), x, twice=True)


def test_an_exit_is_a_head_on_a_norm_of_its_own() -> None:
    module, x, ctx = build(), torch.randn(2, 3, 6), context(2, 3)
    assert_close(module(x, ctx), module.head(LayerNorm(6)(x), ctx))


def test_the_norm_is_told_what_is_padding() -> None:
    valid = torch.tensor([[True, True, False], [True, False, False]])
    module = ExitHead(BatchNorm(6), TaggingHeadConfig().build(6, 4))
    x, ctx = torch.randn(2, 3, 6), context(2, 3, valid=valid)
    dirty = x.masked_fill(~valid[..., None], 1e4)
    assert torch.equal(module(x, ctx)[valid], module(dirty, ctx)[valid])


def exiting(**fields: object) -> DecoderModel:
    torch.manual_seed(2)
    attention = AttentionConfig(n_heads=2)
    config = DecoderConfig(d_model=8, n_layers=5, attention=attention, dropout=0.0, **fields)  # type: ignore[arg-type]
    return config.build(11).eval()


def test_exits_are_named_by_their_layer() -> None:
    model = exiting(exits=(2, 4))
    assert list(model.exits) == ["2", "4"]
    assert model.exits["2"].norm is not model.exits["4"].norm
    assert model.exits["2"].head.weight is model.embed.tokens.weight  # tied, as the model's own
    assert not exiting().exits


def test_the_last_exit_is_the_model_and_the_others_are_shorter_models() -> None:
    model, tokens = exiting(exits=(2, 4)), torch.randint(11, (3, 6))
    outputs = list(model.exit_logits(tokens))
    assert len(outputs) == 3
    assert_close(outputs[2], model(tokens))
    shorter = exiting()
    shorter.stack.blocks = model.stack.blocks[:2]
    shorter.stack.norm, shorter.head = model.exits["2"].norm, model.head
    shorter.embed = model.embed
    assert_close(outputs[0], shorter(tokens))


def test_layers_above_a_confident_exit_never_run() -> None:
    model, ran = exiting(exits=(2,)), []
    for i, block in enumerate(model.stack.blocks, start=1):
        block.register_forward_hook(lambda *_, i=i: ran.append(i))
    first_confident(model.exit_logits(torch.randint(11, (3, 6))), threshold=0.0)
    assert ran == [1, 2]


def test_every_kind_of_head_can_exit() -> None:
    config = EncoderConfig(
        d_model=8,
        n_layers=3,
        attention=AttentionConfig(n_heads=2),
        head=ClassificationHeadConfig(),
        exits=(1,),
    )
    assert [tuple(y.shape) for y in config.build(9, 4).exit_logits(torch.randint(9, (2, 5)))] == [
        (2, 4)
    ] * 2


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([0, 2], r"\[0, 2\] must lie between 1 and 5"),
        ([2, 6], r"\[2, 6\] must lie between 1 and 5: of n_layers = 6"),
        ([4, 2], r"\[4, 2\] must rise: give \[2, 4\]"),
        ([2, 2], r"\[2, 2\] must rise: give \[2\]"),
    ],
)
def test_impossible_layers_are_refused(layers: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_exits(layers, 6)


# Which exit is taken.


def sure(*probabilities: float) -> Tensor:
    """Logits of two classes, the second of them this probable in each row."""
    p = torch.tensor(probabilities)
    return torch.stack((torch.zeros_like(p), torch.log(p / (1 - p))), -1)


class Asked:
    """Hands out outputs and counts them."""

    def __init__(self, *outputs: Tensor) -> None:
        self.outputs = outputs
        self.n = 0

    def __iter__(self) -> Iterator[Tensor]:
        for output in self.outputs:
            self.n += 1
            yield output


def test_confidence_is_the_highest_probability() -> None:
    assert_close(confidence(sure(0.9, 0.5, 0.2)), torch.tensor([0.9, 0.5, 0.8]))
    logits = 30 * torch.randn(3, 5, 7)
    assert confidence(logits.bfloat16()).dtype == torch.float32
    assert_close(confidence(logits.double()), logits.double().softmax(-1).max(-1).values)


def test_each_row_leaves_where_it_is_confident() -> None:
    rows = [(0.95, 0.6, 0.5), (0.4, 0.05, 0.6), (0.5, 0.5, 0.7), (0.5, 0.5, 0.8)]
    outputs = Asked(*(sure(*row) for row in rows))
    answer, taken = first_confident(outputs, 0.9)
    assert taken.tolist() == [0, 1, 3]
    assert_close(confidence(answer), torch.tensor([0.95, 0.95, 0.8]))
    assert answer.argmax(-1).tolist() == [1, 0, 1]


def test_what_nobody_waits_for_is_never_computed() -> None:
    outputs = Asked(sure(0.95, 0.6), sure(0.5, 0.91), sure(0.5, 0.5))
    _, taken = first_confident(outputs, 0.9)
    assert outputs.n == 2
    assert taken.tolist() == [0, 1]


def test_where_no_exit_is_confident_the_last_answers() -> None:
    outputs = Asked(sure(0.6, 0.7), sure(0.7, 0.6))
    answer, taken = first_confident(outputs, 0.9)
    assert torch.equal(answer, sure(0.7, 0.6))
    assert taken.tolist() == [1, 1]


def test_padding_is_not_waited_for() -> None:
    outputs = Asked(sure(0.95, 0.5), sure(0.5, 0.5))
    first_confident(outputs, 0.9, torch.tensor([True, False]))
    assert outputs.n == 1


def test_what_is_no_number_is_not_confident() -> None:
    outputs = Asked(sure(math.nan), sure(0.6))
    answer, taken = first_confident(outputs, 0.0)
    assert torch.equal(answer, sure(0.6))
    assert taken.tolist() == [1]


@given(
    threshold=st.floats(0, 1),
    shape=st.sampled_from([(), (3,), (2, 3)]),
    n=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_it_is_the_plain_loop_over_rows(
    threshold: float, shape: tuple[int, ...], n: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    outputs = [2 * torch.randn(*shape, 3, generator=generator) for _ in range(n)]
    asked = Asked(*outputs)
    answer, taken = first_confident(asked, threshold)
    rows = [output.reshape(-1, 3) for output in outputs]
    for i, (found, number) in enumerate(
        zip(answer.reshape(-1, 3), taken.reshape(-1).tolist(), strict=True)
    ):
        able = [k for k in range(n) if rows[k][i].softmax(0).max() >= threshold]
        assert number == (able[0] if able else n - 1)
        assert torch.equal(found, rows[number][i])
    assert asked.n == max(taken.reshape(-1).tolist()) + 1


@pytest.mark.parametrize("threshold", [-0.1, 1.1, math.nan])
def test_an_impossible_threshold_is_refused(threshold: float) -> None:
    with pytest.raises(ValueError, match=f"threshold = {threshold} is no probability"):
        first_confident([sure(0.5)], threshold)


def test_no_outputs_are_refused() -> None:
    with pytest.raises(ValueError, match="no exit has no answer"):
        first_confident([], 0.5)


# On a stack.


class Stack(nn.Module):
    """Stands for a stack: the hidden states after each block, as they are asked for."""

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(n_layers))
        self.run: list[int] = []

    def layer_outputs(self, x: Tensor) -> Iterator[tuple[int, Tensor]]:
        for layer, block in enumerate(self.blocks, start=1):
            self.run.append(layer)
            x = x + block(x).tanh()
            yield layer, x


def outputs_of(stack: Stack, exits: nn.ModuleDict, last: ExitHead, x: Tensor) -> Iterator[Tensor]:
    ctx = context(*x.shape[:2])
    for layer, hidden in stack.layer_outputs(x):
        if layer == len(stack.blocks):
            yield last(hidden, ctx)
        elif str(layer) in exits:
            yield exits[str(layer)](hidden, ctx)


def test_layers_above_the_exit_taken_do_not_run() -> None:
    stack, exits, last = Stack(6), nn.ModuleDict({"2": build(), "4": build()}), build()
    with torch.no_grad():
        exits["2"].head.proj.bias.copy_(torch.tensor([0.0, 0.0, 9.0, 0.0]))
    x = torch.randn(3, 5, 6)
    answer, taken = first_confident(outputs_of(stack, exits, last, x), 0.9)
    assert answer.argmax(-1).tolist() == [2, 2, 2]
    assert taken.tolist() == [0, 0, 0]
    assert stack.run == [1, 2]
    stack.run.clear()
    answer, taken = first_confident(outputs_of(stack, exits, last, x), 1.0)
    assert stack.run == [1, 2, 3, 4, 5, 6]
    *_, expected = outputs_of(stack, exits, last, x)
    assert torch.equal(answer, expected)
    assert taken.tolist() == [2, 2, 2]
