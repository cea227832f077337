"""A masked language model from a BERT folder: its loss on our masks, and training that goes on."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from tests.runs.tiny import train_text, write_corpora

from addnorm.data.batches.buckets import build_loaders
from addnorm.data.ids.encoding import IGNORE
from addnorm.runs.evaluation import data_of, evaluation_of
from addnorm.runs.run import Run

pytestmark = pytest.mark.parity

RECIPE = """
[data]
kind = "text"
train = "play.txt"
valid_fraction = 0.2

[model]
kind = "encoder"
dropout = 0.0

[train]
start = "START"
steps = 3
batching = { kind = "masked", batch_size = 4, seq_len = 16, units = "words" }
lr = 1e-3
"""

WORDS = (
    *("to", "be", ",", "or", "not", "that", "is", "the", "question", ".", ":", "gr", "##ü"),
    *("##ße", "!", "##s", "quest", "##ion", "a", "b"),
)


def bert(folder: Path) -> Path:
    """A small BERT with the head that it was pretrained by, and a WordPiece tokenizer."""
    vocabulary = dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
    start = folder / "bert"
    start.mkdir()
    (start / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    settings = {"do_lower_case": True, "mask_token": "[MASK]", "tokenizer_class": "BertTokenizer"}
    (start / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_attention_heads=2,
        num_hidden_layers=2,
        intermediate_size=24,
        max_position_embeddings=20,
    )
    transformers.BertForMaskedLM(config).eval().save_pretrained(start)
    return start


@pytest.mark.long
def test_the_loss_equals_theirs_and_training_continues(tmp_path: Path) -> None:
    start = bert(tmp_path)
    write_corpora(tmp_path)
    opened = Run.open(start)
    assert opened.task == "masked_language"
    text = RECIPE.replace("START", str(start))
    run = train_text(tmp_path, "continued", text)
    loader = build_loaders(run.recipe.train.batching, data_of(run).encoded).valid
    assert loader is not None
    theirs = transformers.BertForMaskedLM.from_pretrained(start).eval()
    total, n = 0.0, 0
    for batch in loader.batches():
        valid = batch.inputs.get("valid")
        inputs = batch.inputs["inputs"]
        with torch.no_grad():
            ours = opened.model(inputs, valid)
            mask = None if valid is None else valid.long()
            out = theirs(input_ids=inputs, attention_mask=mask, labels=batch.targets)
        counted = batch.targets != IGNORE
        loss = torch.nn.functional.cross_entropy(ours[counted], batch.targets[counted])
        assert loss == pytest.approx(float(out.loss), rel=1e-5)
        total += float(out.loss) * int(counted.sum())
        n += int(counted.sum())
        assert (inputs[:, 0] == 2).all()  # [CLS], and [SEP] behind the text
    found = evaluation_of(run, "valid").scores["loss"]
    assert found < total / n  # three steps on


@pytest.mark.long
def test_masks_have_the_probabilities_of_theirs(tmp_path: Path) -> None:
    start = bert(tmp_path)
    found = Run.open(start).fill("to be [MASK] not to [MASK] .", top_k=3)
    tokenizer = transformers.AutoTokenizer.from_pretrained(start)
    inputs = tokenizer("to be [MASK] not to [MASK] .", return_tensors="pt")
    with torch.no_grad():
        logits = transformers.BertForMaskedLM.from_pretrained(start).eval()(**inputs).logits[0]
    places = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero().flatten()
    for mask, place in zip(found.masks, places, strict=True):
        row = logits[place].clone()
        row[:5] = -torch.inf  # special tokens are no words
        best = row.softmax(-1).topk(3)
        names = tokenizer.convert_ids_to_tokens(best.indices.tolist())
        assert [one.token.lstrip("#") for one in mask] == [name.lstrip("#") for name in names]
        ours = torch.tensor([one.probability for one in mask])
        torch.testing.assert_close(ours, best.values, rtol=1e-4, atol=1e-6)
