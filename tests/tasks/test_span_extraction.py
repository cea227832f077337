"""Span extraction: places of answers, best spans, scores, and a run from table to prediction."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.commands import run_all
from torch.nn import functional as F

import addnorm as an
from addnorm.data import Corpus
from addnorm.data.ids.compact import IGNORE
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import BPEConfig, CharConfig
from addnorm.errors import InputError
from addnorm.nn.heads import SpanHeadConfig
from addnorm.tasks.span_extraction import (
    QuestionAnswer,
    SpanExtraction,
    exact_match,
    offsets_of,
    word_f1,
)

TASK = SpanExtraction()
CONTEXT = "Ada Lovelace wrote the first program in 1843, in London. Ada was 27."


def tokenizers(kind: str = "char") -> Tokenizers:
    config = CharConfig() if kind == "char" else BPEConfig(vocab_size=300)
    tokenizer = config.train([CONTEXT, "Who wrote it? When? Where? éüß日本"])
    return Tokenizers(tokenizer, tokenizer)


@pytest.mark.parametrize("kind", ["char", "bpe"])
@given(st.data())
def test_the_targets_are_the_tokens_of_the_answer_and_read_back_as_it(
    kind: str, data: st.DataObject
) -> None:
    both = tokenizers(kind)
    start = data.draw(st.integers(0, len(CONTEXT) - 2))
    end = data.draw(st.integers(start + 1, len(CONTEXT)))
    answer = CONTEXT[start:end]
    example = QuestionAnswer("Who?", CONTEXT, (answer,), (start,))
    [encoded] = TASK.encode([example], both, {})
    first, last = encoded.targets
    assert encoded.spans[2] <= first <= last < encoded.spans[3]
    offsets = offsets_of(both, CONTEXT)
    first, last = first - encoded.spans[2], last - encoded.spans[2]
    assert offsets[first][0] <= start < offsets[first][1]
    assert offsets[last][0] < end <= offsets[last][1]
    logits = torch.zeros(len(encoded.tokens), 2)
    logits[encoded.targets[0], 0] = logits[encoded.targets[1], 1] = 9.0
    found = TASK.result(logits, example, both, ())
    assert found.score == 18.0
    assert answer.strip() in found.answer
    if found.start is not None:
        assert CONTEXT[found.start : found.end] == found.answer


def test_the_best_span_equals_a_search_over_all_pairs() -> None:
    both = tokenizers()
    example = QuestionAnswer("Who?", CONTEXT)
    [encoded] = TASK.encode([example], both, {})
    first, stop = encoded.spans[2], encoded.spans[3]
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        logits = torch.randn(len(encoded.tokens), 2, generator=generator)
        score, start, end = max(
            (float(logits[i, 0] + logits[j, 1]), i, j)
            for i in range(first, stop)
            for j in range(i, stop)
        )
        nothing = float(logits[0].sum())
        found = TASK.result(logits, example, both, ())
        assert found.score == pytest.approx(score - nothing, abs=1e-5)
        if score > nothing:
            assert found.answer == CONTEXT[start - first : end - first + 1].strip()
        else:
            assert (found.answer, found.start) == ("", None)


def test_an_answer_may_be_as_long_as_its_text() -> None:
    both = tokenizers()
    example = QuestionAnswer("Who?", CONTEXT, (CONTEXT,))
    [encoded] = TASK.encode([example], both, {})
    logits = torch.zeros(len(encoded.tokens), 2)
    logits[encoded.targets[0], 0] = logits[encoded.targets[1], 1] = 9.0
    assert TASK.result(logits, example, both, ()).answer == CONTEXT


def test_no_answer_is_the_first_token_and_an_unknown_one_is_left_out() -> None:
    both = tokenizers()
    [nothing, asked] = TASK.encode(
        [QuestionAnswer("Who?", CONTEXT, ()), QuestionAnswer("Who?", CONTEXT)], both, {}
    )
    assert nothing.targets == [0, 0]
    assert asked.targets == []


@pytest.mark.parametrize("max_len", [12, 20, 40, 60])
def test_a_shortened_text_keeps_the_places_or_loses_the_answer(max_len: int) -> None:
    both = tokenizers()
    example = QuestionAnswer("Who wrote it?", CONTEXT, ("Lovelace",))
    [encoded] = TASK.encode([example], both, {})
    cut = TASK.layout.shortened(encoded, max_len, (1, 1))
    assert len(cut.tokens) <= max_len
    if cut.targets == [IGNORE, IGNORE]:
        assert cut.spans[3] - cut.spans[2] < len("Ada Lovelace")
    else:
        ids = cut.tokens[cut.targets[0] : cut.targets[1] + 1]
        assert both.source.decode(ids) == "Lovelace"


def test_an_answer_that_is_not_in_the_text_is_refused() -> None:
    with pytest.raises(InputError, match="does not have the answer 'Bob'"):
        Corpus([QuestionAnswer("Who?", CONTEXT, ("Bob",))])
    with pytest.raises(InputError, match="does not have the answer 'Ada' at character 3"):
        Corpus([QuestionAnswer("Who?", CONTEXT, ("Ada",), (3,))])
    Corpus([QuestionAnswer("Who?", CONTEXT, ("Ada",), (57,))])


@pytest.mark.parametrize(
    ("answers", "starts", "problem"),
    [
        ((), (0,), "0 answers and 1 starts"),
        (("Ada",), (57, 57), "1 answers and 2 starts"),
        (("Ada", "Ada"), (57,), "2 answers and 1 starts"),
        ((" ",), (), "an answer is blank"),
        (("Ada", ""), (), "an answer is blank"),
        (None, (0,), "0 answers and 1 starts"),
    ],
)
def test_answers_that_contradict_are_refused(
    answers: tuple[str, ...] | None, starts: tuple[int, ...], problem: str
) -> None:
    with pytest.raises(InputError, match=f"train example 1: {problem}"):
        Corpus([QuestionAnswer("Who?", CONTEXT, answers, starts)])


def test_the_loss_is_that_of_both_ends_without_padding() -> None:
    torch.manual_seed(0)
    head = SpanHeadConfig().build(4, 0)
    logits = torch.randn(2, 5, 2, dtype=torch.float64)
    valid = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    targets = torch.tensor([[1, 4], [0, 2]])
    right = sum(
        F.cross_entropy(row[:n, side], target[side])
        for row, n, target in zip(logits, (5, 3), targets, strict=True)
        for side in (0, 1)
    )
    torch.testing.assert_close(head.loss_sum(logits, targets, valid), right)
    half = torch.tensor([[1, 4], [IGNORE, IGNORE]])
    assert head.loss_sum(logits, half, valid) < right


def test_scores_are_those_of_squad() -> None:
    """Rajpurkar et al. 2016: without case, punctuation and articles."""
    assert exact_match("The cat!", "cat") == 1.0
    assert word_f1("the black cat", "a cat") == pytest.approx(2 * 0.5 / 1.5)
    assert word_f1("", "") == 1.0
    assert word_f1("", "cat") == word_f1("dog", "cat") == 0.0
    assert word_f1("cat cat", "cat") == pytest.approx(2 * 0.5 / 1.5)


RECIPE = """
[data]
kind = "records"
example = "QuestionAnswer"
columns = { answers = "answers.text", starts = "answers.answer_start" }
train = "train.jsonl"
valid = "train.jsonl"

[tokenizer]
kind = "char"

[model]
kind = "encoder"
d_model = 16
n_layers = 1
attention = { n_heads = 2 }
head = "span"

[train]
steps = 4
batching = { kind = "tokens", tokens = 400 }
select = "best"
"""


def row(answer: str, start: int) -> str:
    answers = {"text": [answer], "answer_start": [start]}
    return json.dumps({"question": "Who?", "context": CONTEXT, "answers": answers})


@pytest.mark.long
def test_a_model_is_trained_on_records_evaluated_and_asked(tmp_path: Path) -> None:
    lines = [row("Ada", 0), row("London", 49), row("1843", 40)] * 3
    (tmp_path / "train.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "qa.toml").write_text(RECIPE, encoding="utf-8")
    question = {"question": "Who?", "context": CONTEXT}
    ask = [question | {"context": ""}, question]
    (tmp_path / "ask.jsonl").write_text("\n".join(map(json.dumps, ask)), encoding="utf-8")
    done = run_all(
        [
            ["train", "qa.toml", "--out", "run"],
            ["evaluate", "run", "--split", "valid"],
            ["predict", "run", "ask.jsonl", "--errors", "skip"],
        ],
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert '"f1": ' in done.stdout
    assert "ask.jsonl:1: empty context: skipped" in done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer.keys() == {"answer", "start", "end", "score"}
    assert answer["answer"] in CONTEXT
    run = an.load(tmp_path / "run")
    assert run.predict(question).answer == answer["answer"]
    assert run.predict([question, question])[1].answer == answer["answer"]
    assert run.predict([]) == []
    assert run.predict([QuestionAnswer("Who?", CONTEXT)])[0].answer == answer["answer"]
    for lacking, reason in (("context", "empty context"), ("question", "empty question")):
        with pytest.raises(InputError, match=f"row 2: {reason}"):
            run.predict([question, question | {lacking: " "}])
    (tmp_path / "train.jsonl").write_text(row("Eve", 0), encoding="utf-8")
    refused = run_all([["train", "qa.toml", "--out", "other"]], tmp_path)
    assert refused.returncode == 2
    assert "train.jsonl:1" in refused.stderr
    assert "does not have the answer 'Eve' at character 0" in refused.stderr


@pytest.mark.slow
def test_it_learns_which_words_answer() -> None:
    generator = torch.Generator().manual_seed(0)
    names = ["ada", "bob", "eve", "dan"]
    examples: list[QuestionAnswer] = []
    for _ in range(120):
        order = torch.randperm(4, generator=generator).tolist()
        text = f"{names[order[0]]} met {names[order[1]]}."
        side = int(torch.randint(2, (), generator=generator))
        question = ("who came?", "whom?")[side]
        examples.append(QuestionAnswer(question, text, (names[order[side]],)))
    corpus = Corpus(examples[20:], examples[:20])
    config = an.EncoderConfig(
        d_model=32, n_layers=2, head=SpanHeadConfig(), position=an.RotaryConfig()
    )
    run = an.train(config, corpus, tokenizer="char", steps=150, lr=3e-3, progress=False)
    assert run.evaluate(corpus)["exact"] > 0.8
