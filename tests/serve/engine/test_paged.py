"""Whatever the parts of a model, its answers are served as it gives them alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.serve.engine.tiny import Answered, answered, run_of

from addnorm.checking.case import randomise
from addnorm.checking.matrix import Cell, cells
from addnorm.generate import Continuation, SampleConfig, Translation
from addnorm.generate.decode import write
from addnorm.models import DecoderModel, EncoderDecoderModel
from addnorm.nn.heads import HiddenHeadConfig
from addnorm.runs.trained_model import TrainedModel
from addnorm.serve.engine.engine import Engine
from addnorm.serve.engine.options import Options
from addnorm.serve.engine.schedule import Limits
from addnorm.serve.engine.sequence import Request

LENGTHS = (1, 5, 13, 12)
LIMIT = 7


def writes_text(cell: Cell) -> bool:
    """Does a cell of the matrix have a model that writes text?"""
    if cell.family == "encoder" or cell.refusal() is not None:
        return False
    return not isinstance(getattr(cell.config(), "head", None), HiddenHeadConfig)


def covering() -> list[Cell]:
    """Few cells which together have each part, mixer and variant."""
    chosen, parts = list[Cell](), set[tuple[str, str | None]]()
    for cell in cells():
        new = {*cell.parts, (cell.family, cell.mixer), (cell.family, cell.variant)} - parts
        if new and writes_text(cell):
            chosen.append(cell)
            parts |= new
    return chosen


FEW = covering()


def tokens_and_scores(
    run: TrainedModel, prompt: tuple[int, ...], seed: int
) -> tuple[list[int], list[float]]:
    """The sampled tokens after one prompt and their log-probabilities, as `generate` has them."""
    model = run.model
    if isinstance(model, DecoderModel):
        next_token = Continuation(model)
    else:
        assert isinstance(model, EncoderDecoderModel)
        next_token = Translation(model, run.tokenizers.target.bos_id)
    choose = SampleConfig(seed=seed).choose([0])
    pieces = list(write(next_token, [prompt], choose, [LIMIT], run.tokenizers.target.eos_ids))
    return [piece.token for piece in pieces], [piece.log_p for piece in pieces]


def served_cell(cell: Cell) -> None:
    run = run_of(cell.config())
    randomise(run.model)
    check_served(run)


def check_served(run: TrainedModel, memory: int = 2**14) -> None:
    draw = torch.Generator().manual_seed(3)
    prompts = [tuple(torch.randint(4, 30, (n,), generator=draw).tolist()) for n in LENGTHS]
    prompts[3] = prompts[2][:10] + prompts[3][10:]
    engine = Engine(run, memory=memory, page_size=4, limits=Limits(chunk=5, rows=3))
    requests = [
        Request(
            name=str(i),
            prompt=prompt,
            limit=LIMIT,
            options=Options(decoding="sample", seed=i, log_probs=0),
        )
        for i, prompt in enumerate(prompts)
    ]
    answers = answered(engine, requests)
    for i, prompt in enumerate(prompts):
        tokens, scores = tokens_and_scores(run, prompt, i)
        assert answers[str(i), 0].tokens == tokens
        ours = torch.tensor(answers[str(i), 0].log_probs)
        torch.testing.assert_close(ours, torch.tensor(scores), atol=1e-5, rtol=1e-5)
    assert engine.stats().pages == 0


@pytest.mark.parametrize("cell", FEW[::24], ids=lambda cell: cell.id)
def test_served_as_alone(cell: Cell) -> None:
    served_cell(cell)


@pytest.mark.long
def test_many_parts_are_served_as_alone() -> None:
    for cell in FEW[1::6]:
        served_cell(cell)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_combination_is_served_as_alone() -> None:
    for cell in filter(writes_text, cells()):
        served_cell(cell)


def test_pages_shared_or_not_the_answers_are_the_same() -> None:
    """The salts keep the second time from finding the pages of the first."""
    run = run_of()
    engine = Engine(run, memory=2**16, page_size=4)
    prompt = tuple(range(4, 24))

    def ask(name: str, **more: Any) -> Answered:
        options = Options(decoding="greedy", log_probs=0)
        asked = Request(name=name, prompt=prompt, limit=9, options=options)
        return answered(engine, [replace(asked, **more)])[name, 0]

    first, shared, apart = ask("a"), ask("b"), ask("c", salt="another")
    assert [each.events[0].cached for each in (first, shared, apart)] == [0, 16, 0]
    assert first.tokens == shared.tokens == apart.tokens
    assert first.log_probs == pytest.approx(shared.log_probs, abs=1e-5)
    assert first.log_probs == pytest.approx(apart.log_probs, abs=1e-6)
