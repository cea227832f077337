"""Cases depend only on their name, and expect the definition or each text alone."""

import random
from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from addnorm.checking.axes import VARIANTS
from addnorm.checking.case import (
    LENGTHS,
    SIDES,
    VOCABULARY,
    Case,
    drawn,
    flat,
    gradients,
    padded,
    pieces,
    real,
    row,
    weights_of,
)
from addnorm.checking.matrix import USUAL, Cell

PARTS = tuple({**USUAL, "position": "alibi", "norm": "rmsnorm"}.items())
ENCODER = Cell(family="encoder", parts=PARTS)


def test_a_case_depends_on_the_name_alone() -> None:
    torch.manual_seed(5)
    first = Case.of(ENCODER)
    torch.manual_seed(6)
    second, other = Case.of(ENCODER), Case.of(replace(ENCODER, variant="no_attention_bias"))
    assert torch.equal(first.run("left"), second.run("left"))
    assert first.texts == second.texts != other.texts
    for name, parameter in first.model.named_parameters():
        assert ((parameter - parameter.round()).abs() > 0).all(), name


def test_without_a_definition_each_text_alone_is_expected() -> None:
    case = Case.of(ENCODER)
    alone = replace(case, defined=False).expected()
    torch.testing.assert_close(alone, case.expected())
    assert [len(text) for text in case.split(alone)] == [*LENGTHS]


def test_heads_that_judge_texts_have_a_row_for_each() -> None:
    parts = tuple(USUAL.items())
    case = Case.of(Cell(family="encoder", parts=parts, variant="classification_max"))
    assert len(case.split(case.expected())) == len(case.expected()) == len(LENGTHS)
    assert real(torch.ones(2, 3), torch.tensor([[True]])).shape == (2, 3)


def test_dynamic_scaling_may_not_be_cached() -> None:
    parts = tuple(USUAL.items())
    cached = {
        name: Case.of(Cell(family="decoder", parts=parts, variant=name)).may_cache()
        for name in VARIANTS
        if name.startswith("rotary")
    }
    assert [name for name, may in cached.items() if not may] == [
        "rotary_dynamic",
        "rotary_longrope",
    ]


def test_gradients_of_all_parameters() -> None:
    case = Case.of(ENCODER)
    ours, expected = gradients(case.model, case.run("right"), case.expected())
    assert ours.shape == (sum(p.numel() for p in case.model.parameters()),)
    torch.testing.assert_close(ours, expected)
    assert "head.weight" in weights_of(case.model)  # tied, and there by both names


TEXTS = st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6), min_size=1)


@given(TEXTS, st.sampled_from(SIDES), st.integers(0, 99))
def test_the_real_tokens_of_a_batch_are_the_texts(
    texts: list[list[int]], side: str, seed: int
) -> None:
    tokens, valid = padded(texts, side, random.Random(seed))  # type: ignore[arg-type]
    assert tokens[valid].tolist() == flat(texts)
    assert valid.sum(1).tolist() == [len(text) for text in texts]
    edges = {"right": valid[:, 0], "left": valid[:, -1], "between": valid[0, :0]}
    assert edges[side].all()
    assert int(tokens.max()) < VOCABULARY


@given(st.integers(2, 9), st.integers(0, 99))
def test_pieces_are_the_whole(n: int, seed: int) -> None:
    parts = pieces(n, random.Random(seed))
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(n))
    assert all(part.stop > part.start for part in parts)
    assert len(parts) > 1


def test_drawn() -> None:
    assert drawn(5, random.Random(1)) == drawn(5, random.Random(1))
    assert torch.equal(row([1, 2]), torch.tensor([[1, 2]]))
