"""Choices between kernels: who decides, and that all of them compute the same."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, DecoderModel
from addnorm.nn import choices as module
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.choices import (
    KernelChoices,
    choices,
    choices_for,
    given_choices,
    read_choices,
    use_choices,
)
from addnorm.nn.heads import TokenHead
from addnorm.train.loss import head_cross_entropy_sum

ALL = [
    KernelChoices(),
    KernelChoices(product="onednn"),
    KernelChoices(few_queries=0),
    KernelChoices(few_queries=100),
    KernelChoices(logits_at_once=64),
    KernelChoices(keep_pages=False),
]
IN_BFLOAT16 = [
    KernelChoices(short_keys=0),
    KernelChoices(short_keys=1024, many_scores=2**60),
    KernelChoices(short_keys=1024, many_scores=0),
]


def gradients(precision: torch.dtype) -> list[Tensor]:
    """The logits of a decoder, its loss and the gradients of all weights."""
    torch.manual_seed(0)
    config = DecoderConfig(d_model=32, n_layers=2, attention=AttentionConfig(n_heads=4))
    model = config.build(40)
    assert isinstance(model, DecoderModel)
    assert isinstance(model.head, TokenHead)
    tokens = torch.randint(0, 40, (3, 17))
    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        logits = model.eval()(tokens)
        x, ctx = model.hidden(tokens)
        loss = head_cross_entropy_sum(model.head, x, ctx, tokens.roll(-1, 1)) / tokens.numel()
    return [
        logits.detach().float(),
        loss.detach(),
        *torch.autograd.grad(loss, [*model.parameters()]),
    ]


@pytest.mark.parametrize("chosen", ALL)
def test_every_choice_gives_the_same_numbers(chosen: KernelChoices) -> None:
    with use_choices(KernelChoices()):
        expected = gradients(torch.float32)
    with use_choices(chosen):
        found = gradients(torch.float32)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("chosen", IN_BFLOAT16)
def test_every_choice_in_bfloat16_is_as_near(chosen: KernelChoices) -> None:
    """To the same in float32, within what bfloat16 rounds: 2⁻⁹ in each of some dozen products."""
    with use_choices(chosen):
        found, expected = gradients(torch.bfloat16), gradients(torch.float32)
    for got, want in zip(found, expected, strict=True):
        assert (got - want).norm() <= 0.08 * want.norm() + 1e-3


def test_a_file_of_choices_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kernels.json"
    file.write_text('{"product": "torch", "few_queries": 3}')
    monkeypatch.setenv("ADDNORM_KERNELS", str(file))
    monkeypatch.setattr(module, "_known", None)
    with use_choices(None):
        assert choices() == KernelChoices(product="torch", few_queries=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"product": "mkl"}', "product"),
        ('{"few": 3}', "few"),
        ("{", "kernels.json"),
        ('{"few_queries": -1}', "few_queries"),
    ],
)
def test_a_wrong_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "kernels.json").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_choices(tmp_path / "kernels.json")
    assert "kernels.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_word_it_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADDNORM_KERNELS")
    measured: list[KernelChoices] = []

    def measure() -> KernelChoices:
        measured.append(KernelChoices(few_queries=5))
        return measured[-1]

    monkeypatch.setattr(module, "_measured", measure)
    monkeypatch.setattr(module, "_known", None)
    with use_choices(None):
        assert choices() is choices()
    assert len(measured) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"prodct": "torch"}', "prodct is not a field. Did you mean 'product'?"),
        ('{"product": "onedn"}', "Did you mean 'onednn'?"),
        (None, "No such file"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(
    text: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kernels.json"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("ADDNORM_KERNELS", str(file))
    with pytest.raises(InputError) as caught:
        given_choices()
    message = str(caught.value)
    assert message.startswith(f"ADDNORM_KERNELS: {file}: ")
    assert says in message
    assert "\n" not in message


def test_choices_for_other_threads_are_measured_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADDNORM_KERNELS")
    asked: list[int] = []

    def measure() -> KernelChoices:
        asked.append(torch.get_num_threads())
        return KernelChoices(few_queries=asked[-1])

    monkeypatch.setattr(module, "_measured", measure)
    before = torch.get_num_threads()
    with use_choices(None):
        assert choices_for(before + 1).few_queries == before + 1
    assert asked == [before + 1]
    assert torch.get_num_threads() == before
    with use_choices(KernelChoices(few_queries=3)):
        assert choices_for(1).few_queries == 3


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_in_groups_needs_no_gradients(smoothing: float) -> None:
    config = DecoderConfig(d_model=32, n_layers=1, attention=AttentionConfig(n_heads=4))
    model = config.build(40).eval()
    assert isinstance(model, DecoderModel)
    assert isinstance(model.head, TokenHead)
    tokens = torch.randint(0, 40, (3, 17))
    targets = tokens.masked_fill(tokens == 3, -100)
    losses = []
    for chosen in (KernelChoices(), KernelChoices(logits_at_once=100)):
        for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
            with use_choices(chosen), mode():
                x, ctx = model.hidden(tokens)
                losses.append(
                    float(head_cross_entropy_sum(model.head, x, ctx, targets, smoothing).detach())
                )
    assert losses == pytest.approx([losses[0]] * 6, rel=1e-6)
