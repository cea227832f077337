"""Whole inputs: the same results as the run's own methods, for every task."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from addnorm.data.tokenizing.sides import around, start_of_prompts
from addnorm.errors import InputError
from addnorm.runs.run import Run
from addnorm.serve.whole_inputs import outputs_for, token_counts

RunOf = Callable[[str], Path]
TEXTS = ["one dog", "the cat sees a dog"]


def test_classes_and_numbers(run_of: RunOf) -> None:
    for task in ("classification", "multi_label"):
        run = Run.open(run_of(task))
        outputs, n = outputs_for(run, run.task_value.endpoint, TEXTS, {"threshold": 0.4})
        for output, result in zip(outputs, run.classify(TEXTS, threshold=0.4), strict=True):
            assert output["label"] == result.label
            assert output["labels"] == result.labels
            assert output["probabilities"] == result.probabilities
        assert n == 2 + 5 + 4
    run = Run.open(run_of("regression"))
    outputs, _ = outputs_for(run, "/classify", TEXTS, {})
    assert [[*row["numbers"].values()] for row in outputs] == run.predict(TEXTS).tolist()


def test_tags_of_words(run_of: RunOf) -> None:
    run = Run.open(run_of("tagging"))
    outputs, _ = outputs_for(run, "/tag", ["Ann saw Rome", ["Ann", "saw"]], {})
    assert [output["tokens"] for output in outputs] == [["Ann", "saw", "Rome"], ["Ann", "saw"]]
    assert [output["tags"] for output in outputs] == run.tag(["Ann saw Rome", ["Ann", "saw"]])
    counts = [outputs_for(run, "/tag", [x], {})[1] for x in ("Ann saw", ["Ann", "saw"])]
    assert counts[0] == counts[1] > 2


def test_translations_best_first(run_of: RunOf) -> None:
    run = Run.open(run_of("translation"))
    outputs, _ = outputs_for(run, "/translate", TEXTS, {"beams": 3, "n_best": 2})
    blank, _ = outputs_for(run, "/translate", [TEXTS[0], " ", TEXTS[1]], {"beams": 3, "n_best": 2})
    nothing = [{"text": "", "score": 0.0, "finished": "eos"}]
    assert [[x["text"] for x in best] for best in blank] == [
        [x["text"] for x in best] for best in (outputs[0], nothing, outputs[1])
    ]
    for output, best in zip(outputs, run.write(TEXTS, beams=3, n_best=2), strict=True):
        assert [(x["text"], x["score"]) for x in output] == [(x.text, x.score) for x in best]


def test_vectors_of_texts_and_of_their_ids(run_of: RunOf) -> None:
    run = Run.open(run_of("classification"))
    ids = [5, 4, 6]
    text = run.tokenizers.source.decode(ids)
    outputs, n = outputs_for(run, "/v1/embeddings", [TEXTS[0], ids], {})
    torch.testing.assert_close(torch.tensor(outputs), run.embed([TEXTS[0], text]))
    assert n == 2 + 3 + 4
    with pytest.raises(InputError, match="check_embedding_ctx_length=False"):
        outputs_for(run, "/v1/embeddings", [[99999]], {})


@pytest.mark.parametrize("task", ["classification", "language", "translation"])
def test_ids_may_have_special_tokens(run_of: RunOf, task: str) -> None:
    """Those around a text are its own, and change nothing; others are read where they stand."""
    run = Run.open(run_of(task))
    tokenizer = run.tokenizers.source
    ids = tokenizer.encode("one dog")
    before, after = around(task, tokenizer)
    before = start_of_prompts(tokenizer) if task == "language" else before
    rows = [ids, [*before, *ids], [*ids, *after], [*before, *ids, *after]]
    vectors, n = outputs_for(run, "/v1/embeddings", ["one dog", *rows], {})
    assert vectors == [vectors[0]] * 5
    assert n == 5 * len(rows[-1])
    [inside], _ = outputs_for(run, "/v1/embeddings", [[*ids, tokenizer.unk_id or 1, *ids]], {})
    assert inside != vectors[0]


def test_an_endpoint_that_does_not_exist(run_of: RunOf) -> None:
    with pytest.raises(InputError, match="Did you mean '/classify'"):
        outputs_for(Run.open(run_of("classification")), "/clasify", TEXTS, {})


def test_unknown_tokens_are_counted(run_of: RunOf) -> None:
    run = Run.open(run_of("classification"))
    unknown = run.tokenizers.source.unk_id
    assert token_counts(run, ["☃ ☃"])[1] == 2
    assert token_counts(run, [[5, unknown, 4], [6, unknown]])[1] == 2
