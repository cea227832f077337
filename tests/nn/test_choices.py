"""Choices between kernels: who decides, and that all of them compute the same."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import torch
from torch import Tensor

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, DecoderModel
from addnorm.nn import choices as module
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.choices import (
    DEFAULTS,
    KernelChoices,
    check_choices,
    choices,
    given_choices,
    read_choices,
    use_choices,
)
from addnorm.nn.heads import TokenHead
from addnorm.nn.linear import linear
from addnorm.training.loss import head_cross_entropy_sum

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
    monkeypatch.setattr(module, "_of_machine", {})
    with use_choices(None):
        assert choices() == KernelChoices(product="torch", few_queries=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"product": "onednm"}', "product = 'onednm' does not exist. Did you mean 'onednn'?"),
        ('{"few_querys": 3}', "few_querys is not a field. Did you mean 'few_queries'?"),
        ("{", "the file: invalid JSON"),
        ("[]", "the file: "),
        ('{"few_queries": -1}', "few_queries = -1: "),
    ],
)
def test_a_wrong_file_is_named(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kernels.json"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        read_choices(file)
    assert str(caught.value).startswith(f"{file}: {message}")
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("ADDNORM_KERNELS", str(file))
    with pytest.raises(InputError) as named:
        given_choices()
    assert str(named.value) == f"ADDNORM_KERNELS: {caught.value}"


def test_a_file_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels.json").write_text("{}")
    monkeypatch.setenv("ADDNORM_KERNELS", str(tmp_path / "kernel.json"))
    with use_choices(None), pytest.raises(InputError) as caught:
        check_choices()
    assert str(caught.value).startswith(f"ADDNORM_KERNELS: {tmp_path / 'kernel.json'}: ")
    assert str(caught.value).endswith("Did you mean 'kernels.json'?")
    with use_choices(KernelChoices()):
        check_choices()  # nobody reads it


def test_each_thread_has_its_own() -> None:
    both = Barrier(2)

    def in_a_thread(n: int) -> list[int]:
        with use_choices(KernelChoices(few_queries=n)):
            both.wait(10)
            inside = choices().few_queries
            both.wait(10)
        return [inside, choices().few_queries]

    with ThreadPoolExecutor(2) as pool:
        found = [*pool.map(in_a_thread, [1, 2])]
    usual = choices().few_queries
    assert found == [[1, usual], [2, usual]]


def test_a_backward_pass_in_another_thread_is_that_of_its_forward() -> None:
    """None of its kernels asks what is in force."""
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    with use_choices(KernelChoices(product="onednn")):
        y = linear(x, weight).square().sum()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(torch.autograd.grad, y, [x, weight]).result()
    for got, want in zip(
        found, torch.autograd.grad((x @ weight.t()).square().sum(), [x, weight]), strict=True
    ):
        torch.testing.assert_close(got, want)


@pytest.mark.long
def test_a_whole_graph_is_compiled_again_for_other_choices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_newest", KernelChoices(short_keys=7))

    def keys(x: Tensor) -> Tensor:
        return x + choices().short_keys

    compiled = torch.compile(keys, fullgraph=True, backend="eager")
    x = torch.zeros(())
    found = [float(compiled(x))]
    for n in (3, 4):
        with use_choices(KernelChoices(short_keys=n)), ThreadPoolExecutor(1) as pool:
            found += [float(compiled(x)), float(pool.submit(compiled, x).result())]
    assert found == [7.0, 3.0, 7.0, 4.0, 7.0]


def test_without_a_word_it_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADDNORM_KERNELS")
    measured: list[KernelChoices] = []

    def measure() -> KernelChoices:
        measured.append(KernelChoices(few_queries=5))
        return measured[-1]

    monkeypatch.setattr(module, "_measured", measure)
    monkeypatch.setattr(module, "_of_machine", {})
    monkeypatch.setattr(module, "_newest", DEFAULTS)
    with use_choices(None):
        assert choices() is choices()
        assert len(measured) == 1
        monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
        assert choices() is choices()
    assert len(measured) == 2
