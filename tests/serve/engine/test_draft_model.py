"""A smaller model drafts, and changes no answer."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serve.engine.test_speculation import PROMPTS, RUN, asked
from tests.serve.engine.tiny import TINY, answered, run_around, run_of

from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import CharConfig
from addnorm.errors import InputError
from addnorm.models import DecoderModel
from addnorm.nn.positions import NoPositionConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.runs.trained_model import TrainedModel
from addnorm.serve.engine.draft_model import (
    DraftModel,
    check_drafts_for,
    memory_of_draft,
)
from addnorm.serve.engine.engine import Engine
from addnorm.serve.engine.options import Options
from addnorm.serve.engine.schedule import Limits
from addnorm.serve.engine.sequence import Request
from addnorm.serve.engine.speculation import StepTime


def noisy(run: TrainedModel, share: float) -> TrainedModel:
    """The same model with other weights, but not much."""
    model = TINY.build(30).eval()
    model.load_state_dict(run.model.state_dict())
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(share * torch.randn_like(weight))
    return run_around(model, TINY)


NOISY = noisy(RUN, 0.02)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 99), st.integers(1, 5), st.sampled_from([2**12, 2**16]))
def test_answers_are_those_without_drafts(seed: int, page_size: int, memory: int) -> None:
    """Where the pages of the small model do not hold all texts, some have no draft."""
    expected = answered(Engine(RUN, memory=2**20), asked(seed))
    limits = Limits(rows=4, chunk=5)
    engine = Engine(RUN, memory=2**14, limits=limits, page_size=page_size)
    drafter = DraftModel(NOISY, memory, page_size)
    engine.speculate(drafter)
    answers = answered(engine, asked(seed))
    assert answers.keys() == expected.keys()
    for key, answer in answers.items():
        assert answer.tokens == expected[key].tokens
        assert answer.finished == expected[key].finished
        assert answer.log_probs == pytest.approx(expected[key].log_probs, abs=1e-5)
    assert engine.stats().pages == 0
    assert drafter.n_pages_held == 0


@pytest.mark.parametrize("options", [{"decoding": "greedy"}, {"temperature": 1.5, "seed": 3}])
def test_a_model_that_agrees_drafts_rightly(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same random numbers draft what the same model then chooses."""
    monkeypatch.setattr(StepTime, "cost_of_row", lambda *_: 0.1)
    request = Request(
        name="a", prompt=PROMPTS[3], limit=60, options=Options(ignore_eos=True, **options)
    )
    for draft, least in ((RUN, 1.0), (NOISY, 0.25)):
        engine = Engine(RUN, memory=2**20)
        engine.speculate(DraftModel(draft, 2**18))
        answered(engine, [request])
        stats = engine.stats()
        assert stats.drafted > 20
        assert stats.accepted >= least * stats.drafted


def test_other_tokenizers_and_models_are_refused_by_name() -> None:
    other = CharConfig().train(["abcdefghijklmnopqrstuvwxyzé"])
    assert isinstance(RUN.model, DecoderModel)
    letters = TrainedModel(None, NOISY.recipe, Tokenizers(other, other), (), NOISY.model)
    with pytest.raises(InputError, match=r"tokenizer is not that of .*: token 30 is 'é' there"):
        check_drafts_for(letters, RUN)
    wide = run_around(TINY.build(32).eval(), TINY)
    with pytest.raises(InputError, match=r"it writes 32 tokens, and .* writes 30"):
        check_drafts_for(wide, RUN)
    recurrent = run_of(replace(TINY, position=NoPositionConfig(), attention=RecurrentConfig()))
    with pytest.raises(InputError, match="not in pages: layer 0"):
        check_drafts_for(recurrent, RUN)
    check_drafts_for(NOISY, RUN)
    assert memory_of_draft(2**20, NOISY, RUN) == 2**19
