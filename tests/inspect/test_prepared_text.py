"""One text as a model reads it, and its loss: as training reads it, and as the model is scored."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from addnorm.errors import InputError
from addnorm.inspect.prepared_text import loss_of, prepare_text
from addnorm.runs.run import Run

RunOf = Callable[[str], Path]
pytestmark = pytest.mark.usefixtures("types_unchecked")


def test_a_text_to_continue(run_of: RunOf) -> None:
    run = Run.open(run_of("language"))
    prepared = prepare_text(run, "To be")
    assert prepared.pieces == {"stack": ("T", "o", " ", "b", "e")}
    outputs = run.model(*prepared.inputs)
    loss, what = loss_of(run, prepared, outputs)
    expected = torch.nn.functional.cross_entropy(outputs[0, :-1], prepared.inputs[0][0, 1:])
    torch.testing.assert_close(loss, expected)
    assert what == f"loss of the text, {expected.item():.2f} nats a token"


def test_a_pair_is_read_as_in_training(run_of: RunOf) -> None:
    run = Run.open(run_of("translation"))
    prepared = prepare_text(run, "a red cat", "eine rote katze")
    assert prepared.pieces["encoder"] == ("a", "red", "cat", "<eos>")
    assert prepared.pieces["decoder"] == ("<bos>", "eine", "rote", "katze")
    assert prepared.produced == ("eine", "rote", "katze", "<eos>")
    outputs = run.model(*prepared.inputs)
    assert prepared.targets is not None
    loss, _ = loss_of(run, prepared, outputs)
    torch.testing.assert_close(
        loss, torch.nn.functional.cross_entropy(outputs[0], prepared.targets[0])
    )


def test_without_a_target_it_is_the_translation(run_of: RunOf) -> None:
    run = Run.open(run_of("translation"))
    prepared = prepare_text(run, "a red cat")
    assert prepared.translation == run.translate("a red cat")
    assert prepared.pieces["decoder"][1:] == prepared.produced[:-1]


@pytest.mark.parametrize(
    ("task", "what"),
    [
        ("classification", "−log p of its own class, "),
        ("multi_label", "−log p of its own labels"),
        ("regression", "the numbers' sum"),
        ("tagging", "−log p of its own tags"),
    ],
)
def test_what_judges_is_differentiated_at_its_own_answer(
    task: str, what: str, run_of: RunOf
) -> None:
    run = Run.open(run_of(task))
    prepared = prepare_text(run, "a fine day")
    outputs = run.model(*prepared.inputs)
    loss, name = loss_of(run, prepared, outputs)
    assert loss is not None
    assert name.startswith(what)
    if task == "classification":
        said = run.classify("a fine day")
        assert name == what + said.label
        assert float(loss.detach().neg().exp()) == pytest.approx(said.probabilities[said.label])
    if task == "tagging":
        log_p = outputs.log_softmax(-1).max(-1).values
        torch.testing.assert_close(loss, -log_p.mean())


def test_what_cannot_be_read(run_of: RunOf) -> None:
    run = Run.open(run_of("language"))
    with pytest.raises(InputError, match="blank text"):
        prepare_text(run, " \n")
    with pytest.raises(InputError, match="only an encoder–decoder reads a target"):
        prepare_text(run, "To be", "Sein")
    loss, why = loss_of(run, two := prepare_text(run, "To"), run.model(*two.inputs))
    assert loss is not None
    loss, why = loss_of(run, one := prepare_text(run, "T"), run.model(*one.inputs))
    assert (loss, why) == (None, "no gradient: a text of one token has no next token")
