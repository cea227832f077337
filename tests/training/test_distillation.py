"""Distillation: the loss against its formula, its gradient, and training with it."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.tiny import batches, build, journal
from torch import Tensor
from torch.testing import assert_close

from addnorm.training.average import weights_of
from addnorm.training.distillation import imitation_sum
from addnorm.training.loss import cross_entropy_sum
from addnorm.training.settings import TrainConfig
from addnorm.training.trainer import Trainer


def written_out(student: Tensor, teacher: Tensor, targets: Tensor, temperature: float) -> float:
    """Hinton et al. 2015, §2, token by token."""
    total = 0.0
    for s, t, target in zip(student.double(), teacher.double(), targets.tolist(), strict=True):
        if target != -100:
            p, q = (t / temperature).softmax(-1), (s / temperature).softmax(-1)
            total += float((p * (p / q).log()).sum()) * temperature**2
    return total


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(0, 5),
    vocab=st.integers(1, 6),
    temperature=st.sampled_from([0.5, 1.0, 3.0]),
    seed=st.integers(0, 1000),
)
def test_the_formula(n: int, vocab: int, temperature: float, seed: int) -> None:
    torch.manual_seed(seed)
    student, teacher = (torch.randn(n, vocab, dtype=torch.float64) * 3 for _ in range(2))
    targets = torch.randint(-1, vocab, (n,))
    targets[targets < 0] = -100
    found = imitation_sum(student, teacher, targets, temperature)
    assert found.item() == pytest.approx(
        written_out(student, teacher, targets, temperature), abs=1e-9
    )
    assert found.item() >= -1e-9


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_gradient(temperature: float) -> None:
    """`T (q - p)` at each target that counts, zero elsewhere; none for the teacher."""
    student = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[1, -100, 2], [-100, 0, -100]])
    imitation_sum(student, teacher, targets, temperature).backward()
    q, p = ((x.detach() / temperature).softmax(-1) for x in (student, teacher))
    assert_close(student.grad, temperature * (q - p) * (targets != -100)[..., None])
    assert teacher.grad is None
    assert torch.autograd.gradcheck(
        lambda s: imitation_sum(s, teacher, targets, temperature), student
    )


def test_a_certain_teacher_is_its_labels() -> None:
    """A distribution of one class: the divergence is the cross-entropy."""
    student, targets = torch.randn(7, 5), torch.randint(0, 5, (7,))
    teacher = torch.zeros(7, 5).scatter_(1, targets[:, None], 200.0)
    expected = cross_entropy_sum(student, targets)
    assert_close(imitation_sum(student, teacher, targets), expected)


def test_narrow_types_and_what_a_token_says_do_not_matter() -> None:
    student, teacher = torch.randn(2, 4, 9), torch.randn(2, 4, 9)
    targets = torch.randint(0, 9, (2, 4))
    narrow = imitation_sum(student.bfloat16(), teacher.bfloat16(), targets)
    assert narrow.dtype == torch.float32
    wide = imitation_sum(student.bfloat16().float(), teacher.bfloat16().float(), targets)
    assert_close(narrow, wide)
    assert wide.equal(
        imitation_sum(student.bfloat16().float(), teacher.bfloat16().float(), 0 * targets)
    )
    whole = imitation_sum(student[:, 0], teacher[:, 0], targets[:, 0])
    assert whole.shape == ()


@pytest.mark.long
def test_a_student_comes_nearer(tmp_path: Path) -> None:
    teacher, student = build(seed=1), build(dropout=0.0, seed=2)
    before = {name: one.clone() for name, one in weights_of(teacher).items()}
    config = TrainConfig(steps=30, lr=0.01, device="cpu", label_smoothing=0.1)
    trainer = Trainer(student, batches(), config, tmp_path, teacher=teacher)
    trainer.fit()
    losses = [line["loss"] for line in journal(tmp_path)]
    assert sum(losses[-7:]) < 0.5 * sum(losses[:7])
    for name, one in weights_of(teacher).items():
        assert one.equal(before[name])
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert not any(module.training for module in teacher.modules())


def test_the_teacher_itself_has_nothing_to_learn(tmp_path: Path) -> None:
    teacher, student = build("decoder", seed=1), build("decoder", dropout=0.0, seed=1)
    config = TrainConfig(steps=1, device="cpu")
    trainer = Trainer(student, batches("decoder"), config, tmp_path, teacher=teacher)
    trainer.fit()
    [line] = journal(tmp_path)
    assert abs(line["loss"]) < 1e-6
    assert abs(line["grad_norm"]) < 1e-5


def test_a_checkpoint_does_not_hold_the_teacher(tmp_path: Path) -> None:
    """What began with a teacher goes on without one, from the weights that it had."""
    settings = {"steps": 4, "save_every": 2, "device": "cpu"}
    student = build("decoder", seed=2)
    first = Trainer(
        student, batches("decoder"), TrainConfig(**settings), tmp_path, teacher=build("decoder")
    )
    first.fit()
    again = Trainer(
        build("decoder", seed=3),
        batches("decoder"),
        TrainConfig(**settings | {"steps": 5}),
        tmp_path,
    )
    assert again.resume() == []
    for name, one in weights_of(again.model).items():
        assert one.equal(weights_of(student)[name])
    again.fit()
    assert again.state.step == 5
