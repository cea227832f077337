"""Rerankers: the logits of "yes" and "no" after the prompt that a template writes of a pair."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import addnorm
from addnorm.errors import InputError

pytestmark = pytest.mark.parity

WORDS = ["<pad>", "<s>", "</s>", "yes", "no", "judge", ":", "cats", "dogs", "sleep", "bark", "all"]
PAIRS = [("cats", "cats sleep"), ("cats", "dogs bark all all"), ("dogs", "bark")]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role == 'system' and 'all ' or '' }}"
    "{% if message.role == 'query' %}judge : {{ message.content }}{% endif %}"
    "{% if message.role == 'document' %} : {{ message.content }} :{% endif %}"
    "{% endfor %}{% if add_generation_prompt %} all{% endif %}"
)
SIZES: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 24,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def saved(folder: Path, kind: str, template: str | None = TEMPLATE, **keys: Any) -> tuple[Any, Any]:
    """A folder of a random model with a tokenizer of whole words; the model and the tokenizer."""
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token=":"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = template
    torch.manual_seed(0)
    model = getattr(transformers, kind)(transformers.Qwen3Config(**SIZES, **keys)).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def outputs(model: Any, tokenizer: Any, system: str | None = None) -> torch.Tensor:
    """The logits of each pair by itself, of the last token where there are several."""
    rows = []
    for query, document in PAIRS:
        messages = [{"role": "system", "content": system}] if system else []
        messages += [{"role": "query", "content": query}, {"role": "document", "content": document}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        with torch.no_grad():
            logits = model(ids).logits[0]
        rows.append(logits if logits.ndim == 1 else logits[-1])
    return torch.stack(rows)


def test_a_language_model_judges_by_yes_and_no(tmp_path: Path) -> None:
    logits = outputs(*saved(tmp_path, "Qwen3ForCausalLM"))
    run = addnorm.load(tmp_path)
    scores = run.predict(PAIRS, batch_size=2)
    torch.testing.assert_close(scores[:, 0], logits[:, 3] - logits[:, 4], rtol=1e-5, atol=1e-5)
    written = run.classify_lines(PAIRS)
    found = torch.tensor([line.fields["score"] for line in written])
    torch.testing.assert_close(found, scores[:, 0], rtol=1e-6, atol=1e-6)
    assert run.predict([]).shape == (0, 1)


def test_modules_name_the_tokens_and_the_instruction(tmp_path: Path) -> None:
    """As sentence-transformers writes a CrossEncoder of a causal model."""
    made = saved(tmp_path, "Qwen3ForCausalLM")
    kinds = ("base.modules.transformer.Transformer", "cross_encoder.modules.LogitScore")
    listed = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_Score" * i,
            "type": f"sentence_transformers.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    (tmp_path / "1_Score").mkdir()
    tokens = {"true_token_id": 9, "false_token_id": None}
    (tmp_path / "1_Score/config.json").write_text(json.dumps(tokens))
    prompts = {"prompts": {"mine": "bark"}, "default_prompt_name": "mine"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    scores = addnorm.load(tmp_path).predict(PAIRS)
    expected = outputs(*made, system="bark")[:, 9]
    torch.testing.assert_close(scores[:, 0], expected, rtol=1e-5, atol=1e-5)


def test_a_classifier_reads_pairs_by_its_template(tmp_path: Path) -> None:
    expected = outputs(*saved(tmp_path, "Qwen3ForSequenceClassification", num_labels=1))
    scores = addnorm.load(tmp_path).predict(PAIRS)
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)


def test_single_texts_and_templates_without_the_roles_are_refused(tmp_path: Path) -> None:
    saved(tmp_path / "judge", "Qwen3ForCausalLM")
    with pytest.raises(InputError, match="judges a document by a query: give pairs"):
        addnorm.load(tmp_path / "judge").predict(["cats"])
    for name, template in (("none", None), ("chat", "{% for m in messages %}all {% endfor %}")):
        saved(tmp_path / name, "Qwen3ForCausalLM", template)
        with pytest.raises(InputError, match=r"use `run.generate\(texts\)`"):
            addnorm.load(tmp_path / name).classify_lines(PAIRS)


def test_words_of_several_tokens_are_named(tmp_path: Path) -> None:
    saved(tmp_path, "Qwen3ForCausalLM")
    file = tmp_path / "tokenizer.json"
    tree = json.loads(file.read_text())
    tree["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"Regex": "e"},
        "behavior": "Isolated",
        "invert": False,
    }
    file.write_text(json.dumps(tree))
    with pytest.raises(InputError, match="'yes' is 3 tokens"):
        addnorm.load(tmp_path).predict(PAIRS)
