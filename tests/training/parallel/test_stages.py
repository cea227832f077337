"""Stages in turn compute what the model does, whatever it embeds; their parameters have holders."""

import copy
from inspect import signature
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.training import tiny
from tests.training.parallel.cells import chosen, differentiated, is_staged
from tests.training.parallel.threads import together
from torch import Tensor, nn

from addnorm.checking.case import Case
from addnorm.checking.matrix import Cell
from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.models.earlier_layers import reads_of
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.audio import LogMelEmbeddingConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.heads import ClassificationHeadConfig, TokenHeadConfig
from addnorm.nn.hyper_connections import HyperConnectionsConfig, ManifoldConnectionsConfig
from addnorm.nn.patches import PatchEmbeddingConfig
from addnorm.nn.positions import T5BiasConfig
from addnorm.nn.residuals import PreNormConfig
from addnorm.training.parallel.context import SplitTexts, split_texts
from addnorm.training.parallel.pieces import Group
from addnorm.training.parallel.positions import Positions
from addnorm.training.parallel.stages import StagedModel, Stages, holders, sections_of

PARTS: dict[str, Any] = {
    "d_model": 8,
    "dropout": 0.0,
    "attention": AttentionConfig(n_heads=2),
    "residual": PreNormConfig(),
}

KINDS = (
    *("decoder", "narrow_table", "streams", "translator_with_streams"),
    *("images", "speech", "translator"),
)
"""The models of `model_of`."""


class Alone(Group):
    """One of several processes, which computes without the others."""

    def sum(self, tensor: Tensor) -> Tensor:
        raise NotImplementedError

    largest = sum

    def all(self, tensor: Tensor) -> list[Tensor]:
        raise NotImplementedError


@given(st.lists(st.integers(1, 9), min_size=1, max_size=2), st.data())
def test_each_layer_is_in_one_stage(layers: list[int], data: st.DataObject) -> None:
    stages = Stages.equal(tuple(layers), data.draw(st.integers(1, sum(layers))))
    order = [(i, layer) for i, n in enumerate(layers) for layer in range(n)]
    of_stages = [
        [(i, layer) for i, of_stack in enumerate(stages.of(stage)) for layer in of_stack]
        for stage in range(stages.total)
    ]
    assert [place for of_stage in of_stages for place in of_stage] == order
    sizes = {len(of_stage) for of_stage in of_stages}
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


def tokens(*shape: int) -> Tensor:
    return torch.randint(4, tiny.VOCAB, shape, generator=torch.Generator().manual_seed(0))


VALID = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])


def model_of(kind: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model of some layers, and its inputs."""
    torch.manual_seed(0)
    noise = torch.randn(2, 3, 8, 8)
    match kind:
        case "decoder":
            config = DecoderConfig(n_layers=5, position=T5BiasConfig(), **PARTS)
            return config.build(tiny.VOCAB), {"tokens": tokens(2, 5), "valid": VALID}
        case "narrow_table":
            config = DecoderConfig(
                n_layers=4,
                embedding=EmbeddingConfig(d_embed=4),
                head=TokenHeadConfig(tied=False),
                **PARTS,
            )
            return config.build(tiny.VOCAB), {"tokens": tokens(2, 5)}
        case "streams":
            streams = {**PARTS, "residual": HyperConnectionsConfig(streams=3)}
            config = DecoderConfig(n_layers=4, **streams)
            return config.build(tiny.VOCAB), {"tokens": tokens(2, 5), "valid": VALID}
        case "translator_with_streams":
            streams = {**PARTS, "residual": ManifoldConnectionsConfig(streams=2)}
            config = EncoderDecoderConfig(n_layers=3, n_decoder_layers=2, **streams)
            return config.build(tiny.VOCAB), {"source": tokens(2, 4), "target": tokens(2, 5)}
        case "images":
            embedding = PatchEmbeddingConfig(size=(8, 8), patch=4)
            config = EncoderConfig(
                n_layers=4, input=embedding, head=ClassificationHeadConfig(), **PARTS
            )
            return config.build(n_labels=3), {"inputs": noise}
        case "speech":
            config = EncoderDecoderConfig(
                n_layers=3, n_decoder_layers=2, input=LogMelEmbeddingConfig(n_mels=8), **PARTS
            )
            return config.build(tiny.VOCAB), {"source": noise[:, 0], "target": tokens(2, 5)}
        case _:
            config = EncoderDecoderConfig(n_layers=2, n_decoder_layers=3, **PARTS)
            inputs = {"source": tokens(2, 4), "target": tokens(2, 5)}
            valid = {"source_valid": VALID[:, :4], "target_valid": VALID}
            return config.build(tiny.VOCAB), inputs | valid


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_stages_in_turn_compute_as_the_model(kind: str, processes: int) -> None:
    model, inputs = model_of(kind)
    model.train()
    with torch.no_grad():
        expected = model(**inputs)
    received = torch.zeros(1)
    for stage in range(processes):
        staged = StagedModel(copy.deepcopy(model), processes, Alone(stage, processes))
        length = staged.length(inputs) + 3
        with torch.no_grad(), staged.at(stage, received):
            if staged.is_last:
                torch.testing.assert_close(staged.model(**inputs), expected)
                return
            hidden: Any = staged.model
            hidden.hidden(**inputs)
            received = staged.handed_on(length, torch.float32)
            assert received.shape == (length,)


@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize("kind", ["decoder", "streams", "images", "speech", "translator"])
def test_stages_of_parts_of_texts_compute_as_the_model(kind: str) -> None:
    """Outputs and gradients; two threads have other positions of each text."""
    model, inputs = model_of(kind)
    model.double()
    inputs = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
    outputs = model(**inputs)
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0)).double()
    (outputs * weights).sum().backward()

    def compute(group: Group) -> list[Tensor]:
        parts, splits = list[Any](), list[SplitTexts]()
        received = torch.zeros(1, dtype=torch.float64)
        for stage in range(3):
            parts.append(copy.deepcopy(model))
            parts[-1].zero_grad()
            splits.append(split_texts(parts[-1], group, by_token=True))
            alone = Alone(stage, 3)
            staged = StagedModel(parts[-1], 3, alone, splits[-1].own_length)
            with staged.at(stage, received):
                if not staged.is_last:
                    parts[-1].hidden(**inputs)
                    received = staged.handed_on(staged.length(inputs), torch.float64)
                    continue
                own = parts[-1](**inputs)
        if splits[-1].by_token:
            total = (own * Positions(group, weights.shape[1]).of(weights)).sum()
        else:
            total = (own * weights).sum() * (group.rank == 0)
        total.backward()
        own_gradients = [
            sum(x.grad for x in of_stages if x.grad is not None)
            for of_stages in zip(*(part.parameters() for part in parts), strict=True)
        ]
        return [group.sum(total.detach()), *(group.sum(torch.as_tensor(g)) for g in own_gradients)]

    expected = [(outputs * weights).sum(), *(p.grad for p in model.parameters())]
    for ours in together(2, compute):
        for a, b in zip(ours, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("types_unchecked")
def test_every_part_computes_as_in_one_process() -> None:
    """Outputs and gradients of each cell of the test matrix with as many stages as layers."""
    cells = [cell for cell in chosen() if cell.refusal() is None]
    staged = [cell for cell in cells if is_staged(cell)]
    assert {*cells} - {*staged} == {cell for cell in cells if reads_more(cell)}
    assert not {cell.id: by for cell in staged if not (by := difference(cell)) < 1e-12}


def reads_more(cell: Cell) -> bool:
    """Whether layers of a cell read more than hidden states: an earlier layer, or the tokens."""
    layers = [*cell.config().stacks.values()]
    return any(map(reads_of, layers)) or "per_layer" in cell.id


def difference(cell: Cell) -> float:
    """The largest difference of outputs and gradients; each parameter has those of all stages."""
    case = Case.of(cell)
    given, valid = case.batch("right")
    inputs = signature(case.model.forward).bind(*given).arguments
    results = [differentiated(case.model, given, valid)]
    results += [p.grad for p in case.model.parameters() if p.grad is not None]
    case.model.zero_grad()
    n = sum(len(section.stack.blocks) for section in sections_of(case.model))
    parts = [StagedModel(copy.deepcopy(case.model), n, Alone(i, n)) for i in range(n)]
    received = torch.zeros(1, dtype=torch.float64)
    for stage, staged in enumerate(parts[:-1]):
        with staged.at(stage, received):
            model: Any = staged.model
            model.hidden(**inputs)
            received = staged.handed_on(staged.length(inputs), torch.float64)
    with parts[-1].at(n - 1, received):
        ours = [differentiated(parts[-1].model, given, valid)]
    for copies in zip(*(part.model.parameters() for part in parts), strict=True):
        if gradients := [p.grad for p in copies if p.grad is not None]:
            ours.append(torch.stack(gradients).sum(0))
    pairs = zip(results, ours, strict=True)
    return max(float((a - b).abs().max() / (1 + a.abs().max())) for a, b in pairs)


def test_stages_of_one_process_take_turns() -> None:
    """Interleaved: with two processes, the first one has stages 0 and 2 of 4."""
    model, inputs = model_of("decoder")
    with torch.no_grad():
        expected = model(**inputs)
        parts = [StagedModel(copy.deepcopy(model), 4, Alone(rank, 2)) for rank in (0, 1)]
        assert [[*part.own] for part in parts] == [[0, 2], [1, 3]]
        received = torch.zeros(1)
        for stage in range(4):
            staged: Any = parts[stage % 2]
            with staged.at(stage, received):
                if staged.is_last:
                    torch.testing.assert_close(staged.model(**inputs), expected)
                else:
                    staged.model.hidden(**inputs)
                    received = staged.handed_on(staged.length(inputs), torch.float32)


def test_a_tied_table_is_held_by_the_first_and_the_last() -> None:
    model, _ = model_of("decoder")
    held = holders(model, 3, 3)
    assert held["embed.tokens.weight"] == (0, 2)
    assert held["embed.position.table.weight"] == (0, 1, 2)  # all layers add the same biases
    assert held["stack.norm.weight"] == (2,)
    assert held["stack.blocks.0.attention.q_proj.weight"] == (0,)
    assert held["stack.blocks.4.attention.q_proj.weight"] == (2,)
    untied, _ = model_of("narrow_table")
    assert holders(untied, 3, 3)["embed.tokens.weight"] == (0,)


def test_every_parameter_has_a_holder() -> None:
    for kind in KINDS:
        model, _ = model_of(kind)
        held = holders(model, 4, 2)
        assert held.keys() == dict(model.named_parameters()).keys()
        assert all(held.values())


def test_what_cannot_be_cut_is_refused() -> None:
    model, _ = model_of("decoder")
    with pytest.raises(InputError, match=r"6 stages .* the model has 5: give fewer"):
        holders(model, 6, 6)
    with pytest.raises(InputError, match="Linear has no stacks of blocks"):
        holders(nn.Linear(2, 2), 2, 2)
