"""Distillation: losses against their formulas, training with a teacher, and what is refused."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.tiny import batches, build, journal
from torch import Tensor, nn
from torch.testing import assert_close

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.models.weights import weights_of
from addnorm.nn.attention.multihead import AttentionConfig, SelfAttention
from addnorm.nn.heads import ClassificationHeadConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.training.distillation import (
    MAPS,
    AttentionRelationsConfig,
    AttentionWeightsConfig,
    DistillationConfig,
    HiddenStatesConfig,
    LayerLoss,
    from_teacher,
    imitation_sum,
    learned_maps,
    mean_divergence,
    relations,
    teacher_layer,
)
from addnorm.training.loss import CrossEntropyConfig, cross_entropy_sum
from addnorm.training.objective import Objective
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
def test_the_loss_equals_its_formula(n: int, vocab: int, temperature: float, seed: int) -> None:
    torch.manual_seed(seed)
    student, teacher = (torch.randn(n, vocab, dtype=torch.float64) * 3 for _ in range(2))
    targets = torch.randint(-1, vocab, (n,))
    targets[targets < 0] = -100
    loss = imitation_sum(student, teacher, targets, temperature)
    assert loss.item() == pytest.approx(
        written_out(student, teacher, targets, temperature), abs=1e-9
    )
    assert loss.item() >= -1e-9


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_gradient_equals_its_formula(temperature: float) -> None:
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


def test_a_certain_teacher_equals_its_labels() -> None:
    """A distribution of one class: the divergence is the cross-entropy."""
    student, targets = torch.randn(7, 5), torch.randint(0, 5, (7,))
    teacher = torch.zeros(7, 5).scatter_(1, targets[:, None], 200.0)
    expected = cross_entropy_sum(student, targets)
    assert_close(imitation_sum(student, teacher, targets), expected)


def test_the_loss_is_float32_and_independent_of_target_values() -> None:
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
def test_training_brings_the_student_nearer_to_its_teacher(tmp_path: Path) -> None:
    teacher, student = build(seed=1), build(dropout=0.0, seed=2)
    before = {name: weight.clone() for name, weight in weights_of(teacher).items()}
    config = TrainConfig(steps=30, lr=0.01, device="cpu", label_smoothing=0.1)
    trainer = Trainer(student, batches(), config, tmp_path, teacher=teacher)
    trainer.fit()
    losses = [line["loss"] for line in journal(tmp_path)]
    assert sum(losses[-7:]) < 0.5 * sum(losses[:7])
    for name, weight in weights_of(teacher).items():
        assert weight.equal(before[name])
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
    """A run that began with a teacher can resume without one, with the same weights."""
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
    for name, weight in weights_of(again.model).items():
        assert weight.equal(weights_of(student)[name])
    again.fit()
    assert again.state.step == 5


# Layers that learn from layers.


VOCAB = 17


def encoder(d_model: int = 8, n_layers: int = 2, n_heads: int = 2, **more: object) -> nn.Module:
    config = EncoderConfig(
        d_model=d_model,
        n_layers=n_layers,
        attention=AttentionConfig(n_heads=n_heads),
        head=ClassificationHeadConfig(),
        **more,  # pyright: ignore[reportArgumentType]
    )
    return config.build(VOCAB, n_labels=3).double().eval()


def ragged(n: int = 3, width: int = 6) -> dict[str, Tensor]:
    lengths = torch.tensor([width, 2, 4][:n])
    return {
        "inputs": torch.randint(VOCAB, (n, width)),
        "valid": torch.arange(width) < lengths[:, None],
    }


@torch.no_grad()
def layer_outputs(model: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    from addnorm.models.inputs import embedded

    x, ctx = embedded(model.embed, inputs["inputs"], inputs["valid"])  # pyright: ignore
    return [*model.stack.layer_outputs(x, ctx)]  # pyright: ignore


def watched(
    loss: LayerLoss, student: nn.Module, teacher: nn.Module, inputs: dict[str, Tensor]
) -> Tensor:
    with loss.recording() as layer_loss:
        with torch.no_grad():
            teacher(**inputs)
        student(**inputs)
        return layer_loss()


@pytest.mark.parametrize("wide", [8, 12])
@pytest.mark.parametrize("layers", ["uniform", "last"])
def test_the_loss_of_hidden_states_equals_plain_loops(layers: str, wide: int) -> None:
    torch.manual_seed(0)
    student, teacher, inputs = encoder(), encoder(wide, n_layers=5), ragged()
    hidden = HiddenStatesConfig(weight=3.0, layers=layers)  # pyright: ignore[reportArgumentType]
    with learned_maps(student, hidden, (8, wide)):
        student.double()
        loss = watched(LayerLoss(student, teacher, hidden=hidden), student, teacher, inputs)
        maps = {n: p for n, p in student.named_parameters() if n.startswith(MAPS)}
        assert [*maps] == ([f"{MAPS}.stack.weight"] if wide != 8 else [])
        (loss * 2).backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in maps.values())
    ours, theirs = layer_outputs(student, inputs), layer_outputs(teacher, inputs)
    pairs = {"uniform": [(0, 1), (1, 4)], "last": [(1, 4)]}[layers]  # round(2.5) is 2
    total = 0.0
    for i, k in pairs:
        values = [
            float((wide_of(maps, ours[i][row, t]) - theirs[k][row, t]).square().mean())
            for row, t in inputs["valid"].nonzero().tolist()
        ]
        total += 3.0 * sum(values) / len(values) / len(pairs)
    assert float(loss.detach()) == pytest.approx(total, rel=1e-9)
    assert not any(name.startswith(MAPS) for name in weights_of(student))


def wide_of(maps: dict[str, nn.Parameter], x: Tensor) -> Tensor:
    return x if not maps else next(iter(maps.values())).detach() @ x


def test_the_loss_of_attention_weights_equals_plain_loops() -> None:
    torch.manual_seed(1)
    student, teacher, inputs = encoder(), encoder(12, n_layers=4), ragged()
    config = AttentionWeightsConfig(weight=0.5)
    loss = watched(LayerLoss(student, teacher, attention=config), student, teacher, inputs)
    sides = [attention_of(model, inputs) for model in (student, teacher)]
    total, n = 0.0, 0
    for i, k in ((0, 1), (1, 3)):
        for row, t in inputs["valid"].nonzero().tolist():
            for head in range(2):
                real = inputs["valid"][row]
                ours, theirs = (
                    side[at][row, head, t][real] for side, at in zip(sides, (i, k), strict=True)
                )
                total += float((theirs * (theirs.log() - ours.log())).sum().detach())
                n += 1
    assert float(loss.detach()) == pytest.approx(0.5 * total / n, rel=1e-6)
    loss.backward()
    assert student.get_parameter("stack.blocks.0.attention.q_proj.weight").grad is not None


def attention_of(model: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    from addnorm.inspect.capture import attention_weights

    with attention_weights(model) as weights, torch.no_grad():
        model(**inputs)
    return [*weights.values()]


def test_relations_of_other_heads_and_widths_equal_plain_loops() -> None:
    torch.manual_seed(2)
    heads = torch.randn(2, 4, 5, 3, dtype=torch.float64)
    valid = torch.tensor([[True] * 5, [True, True, True, False, False]])
    related = relations(heads, 6, valid)
    flat = torch.cat([heads[:, h] for h in range(4)], -1)
    for row in range(2):
        n = int(valid[row].sum())
        for r in range(6):
            a = flat[row, :n, 2 * r : 2 * r + 2]
            expected = (a @ a.T / 2**0.5).softmax(-1)
            assert torch.allclose(related[row, r, :n, :n], expected)
    assert not related[1, :, :, 3:].any()
    student, teacher, inputs = encoder(8, n_heads=4), encoder(12, n_layers=3, n_heads=3), ragged()
    config = AttentionRelationsConfig(n_heads=2)
    loss = watched(LayerLoss(student, teacher, attention=config), student, teacher, inputs)
    core_inputs: dict[nn.Module, list[Tensor]] = {}
    for model in (student, teacher):
        core = last_attention(model).core
        hook = core.register_forward_pre_hook(lambda m, args: core_inputs.update({m: [*args[:3]]}))
        with torch.no_grad():
            model(**inputs)
        hook.remove()
    expected = sum(
        mean_divergence(
            relations(t, 2, inputs["valid"]), relations(s, 2, inputs["valid"]), inputs["valid"]
        )
        for s, t in zip(*core_inputs.values(), strict=True)
    )
    assert float(loss.detach()) == pytest.approx(
        float(torch.as_tensor(expected).detach()), rel=1e-6
    )


def last_attention(model: nn.Module) -> SelfAttention:
    return [module for module in model.modules() if isinstance(module, SelfAttention)][-1]


def test_a_student_that_is_its_teacher_has_nothing_to_learn() -> None:
    torch.manual_seed(3)
    model, inputs = encoder(n_layers=3), ragged()
    for attention in (
        AttentionWeightsConfig(),
        AttentionRelationsConfig(n_heads=4, layers="uniform"),
    ):
        loss = LayerLoss(model, model, hidden=HiddenStatesConfig(), attention=attention)
        assert float(watched(loss, model, model, inputs).detach()) == pytest.approx(0, abs=1e-12)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())  # pyright: ignore[reportPrivateUsage]


def test_fully_masked_queries_have_a_finite_gradient() -> None:
    theirs = torch.tensor([[[[0.0, 0.0], [0.5, 0.5]]]])
    ours = torch.tensor([[[[0.0, 0.0], [1.0, 0.0]]]], requires_grad=True)
    loss = mean_divergence(theirs, ours, None)
    assert torch.isfinite(loss)
    loss.backward()
    assert ours.grad is not None
    assert torch.isfinite(ours.grad).all()


@pytest.mark.parametrize(
    ("n", "of", "expected"), [(3, 6, [1, 3, 5]), (2, 5, [1, 4]), (4, 4, [0, 1, 2, 3]), (1, 7, [6])]
)
def test_teacher_layers_are_evenly_spaced(n: int, of: int, expected: list[int]) -> None:
    assert [teacher_layer(i, n, of) for i in range(n)] == expected


def test_a_student_starts_from_evenly_spaced_layers() -> None:
    student, teacher = encoder(n_layers=2), encoder(n_layers=4)
    renamed = from_teacher(weights_of(teacher), student, teacher)
    assert renamed.keys() == weights_of(student).keys()
    theirs = weights_of(teacher)
    for i, k in ((0, 1), (1, 3)):
        name = "attention.q_proj.weight"
        assert torch.equal(renamed[f"stack.blocks.{i}.{name}"], theirs[f"stack.blocks.{k}.{name}"])
    assert torch.equal(renamed["embed.tokens.weight"], theirs["embed.tokens.weight"])


def test_both_stacks_of_a_translator_learn() -> None:
    torch.manual_seed(4)
    sizes = [
        EncoderDecoderConfig(d_model=8, n_layers=n, attention=AttentionConfig(n_heads=2))
        for n in (1, 2)
    ]
    student, teacher = (config.build(VOCAB, VOCAB).eval() for config in sizes)
    inputs = {"source": torch.randint(VOCAB, (2, 5)), "target": torch.randint(VOCAB, (2, 3))}
    loss = LayerLoss(
        student, teacher, hidden=HiddenStatesConfig(), attention=AttentionWeightsConfig()
    )
    watched(loss, student, teacher, inputs).backward()
    for stack in ("encoder", "decoder"):
        grad = student.get_parameter(f"{stack}.blocks.0.attention.k_proj.weight").grad
        assert grad is not None
        assert grad.abs().sum() > 0


def test_the_objective_adds_the_layer_loss_once_for_each_target() -> None:
    torch.manual_seed(5)
    student, teacher, inputs = encoder(), encoder(), ragged()
    targets = torch.tensor([0, 2, 1])
    configs = [
        DistillationConfig(teacher=Path("t"), hidden_states=hidden)
        for hidden in (None, HiddenStatesConfig())
    ]
    plain, with_hidden = (
        Objective(CrossEntropyConfig(), teacher=teacher, distillation=config, student=student)(
            student, inputs, targets
        )
        for config in configs
    )
    alone = watched(
        LayerLoss(student, teacher, hidden=HiddenStatesConfig()), student, teacher, inputs
    )
    assert float((with_hidden - plain).detach()) == pytest.approx(
        3 * float(alone.detach()), rel=1e-5
    )


def test_layers_that_cannot_be_compared_are_rejected_by_name() -> None:
    with pytest.raises(InputError, match=r"student's stack has 3 layers, and the teacher's 2"):
        LayerLoss(encoder(n_layers=3), encoder(), hidden=HiddenStatesConfig())
    with pytest.raises(InputError, match=r'4 heads, and the teacher 2: take .*kind = "relations"'):
        LayerLoss(encoder(n_heads=4), encoder(), attention=AttentionWeightsConfig())
    with pytest.raises(
        InputError, match=r"does not divide the 8 features of this student.*that does is 2"
    ):
        LayerLoss(encoder(), encoder(12), attention=AttentionRelationsConfig(n_heads=3))
    lstm = EncoderConfig(
        d_model=8,
        n_layers=2,
        attention=RecurrentConfig(cell="lstm"),
        head=ClassificationHeadConfig(),
    )
    with pytest.raises(InputError, match="which has no heads to compare"):
        LayerLoss(lstm.build(VOCAB, n_labels=3), encoder(), attention=AttentionWeightsConfig())
    decoder = DecoderConfig(d_model=8, n_layers=1, attention=AttentionConfig(n_heads=2)).build(
        VOCAB
    )
    last_attention(decoder).core = nn.Identity()
    with pytest.raises(InputError, match="Identity does not show its weights"):
        LayerLoss(decoder, decoder, attention=AttentionWeightsConfig())


def test_sequences_of_different_lengths_are_rejected() -> None:
    student, teacher, inputs = encoder(), encoder(), ragged()
    loss = LayerLoss(student, teacher, hidden=HiddenStatesConfig())
    with loss.recording() as layer_loss, torch.no_grad():
        teacher(**{k: v[:, :4] for k, v in inputs.items()})
        student(**inputs)
        with pytest.raises(InputError, match="both models must read the same sequence"):
            layer_loss()
