"""Adapters beside PEFT's: it loads ours, and we load its, with the same logits."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file
from tests.runs.tiny import LANGUAGE, train_text, write_corpora
from torch.testing import assert_close

from addnorm.convert.core.family import ModelSpec
from addnorm.convert.folder import build_untrained, save
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import BPEConfig
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.norms import LayerNormConfig, RMSNormConfig
from addnorm.nn.positions import LearnedConfig, RotaryConfig
from addnorm.runs.run import Run

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]

SMALL: dict[str, Any] = {
    "d_model": 16,
    "n_layers": 2,
    "max_len": 64,
    "dropout": 0.0,
    "embedding": EmbeddingConfig(scale="one"),
    "head": TokenHeadConfig(tied=False),
}
MODELS = {
    "llama": DecoderConfig(
        **SMALL,
        attention=AttentionConfig(n_heads=4, n_kv_heads=2, bias=False),
        feedforward=GatedFeedForwardConfig(d_ff=24, bias=False),
        norm=RMSNormConfig(),
        residual="pre",
        position=RotaryConfig(),
    ),
    "gpt2": DecoderConfig(
        **SMALL,
        attention=AttentionConfig(n_heads=4),
        feedforward=FeedForwardConfig(activation="gelu_tanh", d_ff=64),
        norm=LayerNormConfig(),
        residual="pre",
        position=LearnedConfig(),
    ),
    "gpt_neox": DecoderConfig(
        **SMALL,
        attention=AttentionConfig(n_heads=4),
        feedforward=FeedForwardConfig(activation="gelu", d_ff=64),
        norm=LayerNormConfig(),
        residual="pre",
        position=RotaryConfig(),
    ),
}
TOKENS = torch.tensor([[7, 3, 9, 20, 11, 5], [40, 41, 42, 8, 8, 9]])


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_corpora(tmp_path)
    return tmp_path


def base(root: Path, family: str, *, tied: bool = False) -> Any:
    """A small Hugging Face folder with a tokenizer, and its model there."""
    torch.manual_seed(0)
    tokenizer = BPEConfig(vocab_size=270).train(["To be, or not to be"])
    config = replace(MODELS[family], head=TokenHeadConfig(tied=tied))
    spec = ModelSpec(model=config, vocab_size=tokenizer.vocab_size)
    model = build_untrained(spec).eval()
    save(root / "base", spec, model, Tokenizers(tokenizer, tokenizer), model_type=family)
    return transformers.AutoModelForCausalLM.from_pretrained(root / "base")


def recipe(adapter: str) -> str:
    text = LANGUAGE.replace('[tokenizer]\nkind = "char"\n', "")
    model = text[text.index("[model]") : text.index("[train]")]
    return text.replace(model, "").replace(
        "[train]", f'[train]\nstart = "base"\nadapter = {adapter}\nlr = 3e-2'
    )


@pytest.mark.long
@pytest.mark.parametrize("adapter", ["lora", "dora", "some"])
@pytest.mark.parametrize("family", MODELS)
def test_it_loads_ours(root: Path, family: str, adapter: str) -> None:
    theirs = base(root, family)
    written = {
        "lora": '{ kind = "lora", rank = 3, alpha = 4 }',
        "dora": '{ kind = "dora", rank = 2 }',
        "some": '{ kind = "lora", rank = 2, targets = ["q_proj", "v_proj", "down_proj"] }',
    }[adapter]
    ours = train_text(root, "adapted", recipe(written))
    before = theirs(TOKENS).logits
    with torch.no_grad():
        loaded = peft.PeftModel.from_pretrained(theirs, root / "adapted").eval()
        found = loaded(TOKENS).logits
        assert float((found - before).abs().max()) > 1e-3
        assert_close(found, ours.model(TOKENS), rtol=0, atol=2e-5)
        assert_close(Run.open(root / "adapted").model(TOKENS), ours.model(TOKENS))


CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {"r": 4, "lora_alpha": 6},
    "rslora": {"r": 4, "use_rslora": True},
    "dora": {"r": 4, "use_dora": True},
    "ranks": {"r": 4, "rank_pattern": {r".*\.1\..*": 2}, "alpha_pattern": {r".*\.0\..*": 3}},
    "saved": {"r": 2, "modules_to_save": ["lm_head", "embed_out"]},
}
TARGETS = {
    "llama": ["q_proj", "down_proj"],
    "gpt2": ["c_attn", "c_fc"],
    "gpt_neox": ["query_key_value", "dense_h_to_4h"],
}


@pytest.mark.long
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("family", MODELS)
def test_we_load_its(root: Path, family: str, config: str) -> None:
    theirs = base(root, family)
    options = peft.LoraConfig(
        **CONFIGS[config], target_modules=TARGETS[family], fan_in_fan_out=family == "gpt2"
    )
    model = peft.get_peft_model(theirs, options).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                weight.add_(0.1 * torch.randn_like(weight))
        expected = model(TOKENS).logits
    model.save_pretrained(root / "theirs")
    file = root / "theirs" / "adapter_config.json"
    settings = json.loads(file.read_text())
    assert Path(settings["base_model_name_or_path"]) == root / "base"
    with torch.no_grad():
        assert_close(Run.open(root / "theirs").model(TOKENS), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "LOHA"}, "peft_type = 'LOHA' is not supported"),
        ({"lora_bias": True}, "lora_bias = True is not supported"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"init_lora_weights": "pissa_niter_4"}, "also changed the weights of the base"),
        ({"base_model_name_or_path": "nobody/nothing"}, "'nobody/nothing' is not a folder"),
        ({"r": 5}, "its rank is 5"),
        ({"use_dora": True}, "do not go together"),
        ({"a_key_of_tomorrow": 3}, "a_key_of_tomorrow = 3 is not supported"),
    ],
    ids=str,
)
def test_adapter_settings_that_would_change_the_result_are_refused(
    root: Path, change: dict[str, Any], message: str
) -> None:
    model = peft.get_peft_model(base(root, "llama"), peft.LoraConfig(target_modules=["q_proj"]))
    model.save_pretrained(root / "theirs")
    file = root / "theirs" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InputError, match=r"theirs") as caught:
        Run.open(root / "theirs")
    assert message in str(caught.value)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
def test_a_tied_table_stays_tied_or_is_refused(root: Path) -> None:
    """PEFT parts a table that it trains from the head, unless it is told to keep them tied."""
    for tied in (False, True):
        config = peft.LoraConfig(
            target_modules=["q_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=tied
        )
        model = peft.get_peft_model(base(root, "llama", tied=True), config).eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.requires_grad:
                    weight += torch.randn_like(weight)
            expected = model(TOKENS).logits
        model.save_pretrained(root / "theirs")
        if tied:
            with torch.no_grad():
                found = Run.open(root / "theirs").model(TOKENS)
            assert_close(found, expected, rtol=0, atol=1e-4)
        else:
            with pytest.raises(InputError, match=r"which the base ties: PEFT unties them"):
                Run.open(root / "theirs")


def test_biases_of_changed_layers_are_read(root: Path) -> None:
    config = peft.LoraConfig(target_modules=["query_key_value"], bias="all")
    model = peft.get_peft_model(base(root, "gpt_neox"), config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.3 * torch.randn_like(weight)
        expected = model(TOKENS).logits
    model.save_pretrained(root / "theirs")
    with torch.no_grad():
        assert_close(Run.open(root / "theirs").model(TOKENS), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dora", [False, True])
def test_a_head_whose_base_is_saved_too_is_changed(root: Path, dora: bool) -> None:
    config = peft.LoraConfig(r=4, target_modules=["lm_head", "q_proj"], use_dora=dora)
    model = peft.get_peft_model(base(root, "llama"), config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight += 0.1 * torch.randn_like(weight)
        expected = model(TOKENS).logits
    model.save_pretrained(root / "theirs", save_embedding_layers=True)  # as it does by itself
    kept = load_file(root / "theirs" / "adapter_model.safetensors")
    assert any(name.endswith("lm_head.base_layer.weight") for name in kept)
    with torch.no_grad():
        assert_close(Run.open(root / "theirs").model(TOKENS), expected, rtol=0, atol=2e-5)


def test_training_begins_with_its(root: Path) -> None:
    model = peft.get_peft_model(base(root, "llama"), peft.LoraConfig(target_modules=["q_proj"]))
    model.save_pretrained(root / "theirs")
    text = recipe('{ kind = "lora" }').replace('"base"', '"theirs"')
    run = train_text(root, "further", text)
    opened = Run.open(root / "further")
    assert all(torch.equal(w, run.weights[name]) for name, w in opened.weights.items())
