"""`problem_type` is read, applied and written as in transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.parity.families import made
from tests.runs.tiny import train_tiny
from torch.testing import assert_close

import addnorm
from addnorm.convert.folder import load, save
from addnorm.errors import InputError
from addnorm.nn.heads import ClassificationHeadConfig
from addnorm.tasks.registry import task_of_model
from addnorm.training.loss import loss_sum

pytestmark = pytest.mark.parity

SMALL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
}
KINDS: dict[str, tuple[Any, str]] = {
    "bert": (lambda **more: transformers.BertConfig(**SMALL, **more), "Bert"),
    "roberta": (lambda **more: transformers.RobertaConfig(**SMALL, **more), "Roberta"),
    "distilbert": (
        lambda **more: transformers.DistilBertConfig(
            vocab_size=64, dim=16, n_heads=2, n_layers=1, hidden_dim=24, **more
        ),
        "DistilBert",
    ),
    "modernbert": (
        lambda **more: transformers.ModernBertConfig(**SMALL, pad_token_id=0, **more),
        "ModernBert",
    ),
}
TOKENS = torch.tensor([[4, 5, 6, 7], [9, 8, 7, 6]])
TASKS = {
    None: "classification",
    "regression": "regression",
    "single_label_classification": "classification",
    "multi_label_classification": "multi_label",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("problem", TASKS)
@pytest.mark.parametrize("n", [1, 3])
def test_read_followed_and_written(kind: str, problem: str | None, n: int, tmp_path: Path) -> None:
    if n == 1 and problem == "single_label_classification":
        return  # neither library takes it
    config, stem = KINDS[kind]
    config = config(num_labels=n, problem_type=problem)
    theirs, loaded = made(f"{stem}ForSequenceClassification", config, tmp_path)
    task = "regression" if problem is None and n == 1 else TASKS[problem]
    assert task_of_model(loaded.spec.model).name == task
    targets = {
        "classification": torch.tensor([0, n - 1]),
        "multi_label": torch.tensor([[True] * n, [False, True, True][:n]]),
        "regression": torch.tensor([[0.5, -100.0, 3.0][:n]] * 2, dtype=torch.float64),
    }[task]
    labels = targets.double() if task == "multi_label" else targets
    with torch.no_grad():
        expected = theirs(TOKENS, labels=labels).loss
        got = loss_sum(load(tmp_path, dtype=torch.float64).model(TOKENS), targets)
    assert_close(got / targets.numel(), expected, rtol=1e-6, atol=1e-6)
    save(tmp_path / "out", loaded.spec, loaded.model, None, model_type=kind)
    assert load(tmp_path / "out").spec == loaded.spec
    written = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert written.num_labels == n
    assert TASKS[written.problem_type] == task


def test_an_unknown_problem_is_refused(tmp_path: Path) -> None:
    made("BertForSequenceClassification", KINDS["bert"][0](num_labels=3), tmp_path)
    file = tmp_path / "config.json"
    file.write_text(file.read_text().replace("{", '{"problem_type": "regresion",', 1))
    with pytest.raises(InputError, match=r"problem_type = 'regresion'.* Did you mean 'regression'"):
        load(tmp_path)
    file.write_text(file.read_text().replace('"regresion"', '"single_label_classification"'))
    alone = file.read_text().replace('"id2label": {', '"id2label": {"0": "a"}, "other": {')
    file.write_text(alone)
    with pytest.raises(InputError, match="a single label leaves no choice"):
        load(tmp_path)


def test_a_cross_encoder_answers_with_its_number(tmp_path: Path) -> None:
    """A run and its export give what transformers gives, and no probability of 1."""
    config = KINDS["bert"][0](num_labels=1)
    model = made("BertForSequenceClassification", config, tmp_path / "in")[1].spec.model
    rows = [{"t": "a fine day", "v": 1.5}, {"t": "a wet day", "v": -3}]
    data = addnorm.table(rows, text="t", values="v")
    batching = addnorm.TokensConfig(tokens=64)
    run = addnorm.train(model, data, tokenizer="word", steps=3, batching=batching, progress=False)
    texts = ["a fine day", "a wet fine day"]
    found = run.predict(texts)
    assert found.shape == (2, 1)
    torch.testing.assert_close(run.predict(texts[0]), found[0])  # one is padded
    run.export(tmp_path / "out")
    again = addnorm.load(tmp_path / "out")
    assert (again.task, again.labels) == ("regression", ("value",))
    assert_close(again.predict(texts), found)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        expected = [theirs(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
    assert_close(found, torch.stack(expected), rtol=0, atol=1e-5)
    with pytest.raises(InputError, match=r"a regression model does not classify texts"):
        run.classify("x")


def test_several_labels_are_those_above_a_threshold(tmp_path: Path) -> None:
    run = addnorm.load(train_tiny(tmp_path, "multi_label"))
    one = run.classify("a fine day")
    ids = run.tokenizers.source.encode("a fine day")
    eos = run.tokenizers.source.eos_id
    logits = run.model(torch.tensor([[run.tokenizers.source.bos_id, *ids, eos]]))[0]
    assert list(one.probabilities.values()) == pytest.approx(logits.sigmoid().tolist(), rel=1e-5)
    lower = min(one.probabilities.values())
    assert run.classify("a fine day", threshold=0.0).labels == run.labels
    [above] = run.classify(["a fine day"], threshold=lower)
    assert above.labels == (one.label,)
    assert isinstance(run.recipe.model.head, ClassificationHeadConfig)
    with pytest.raises(InputError, match="a multi label model gives no numbers"):
        run.predict("x")
