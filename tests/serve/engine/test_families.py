"""The families of Hugging Face that write text are served as each gives its answers alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.parity import (
    test_bart,
    test_gemma,
    test_gpt_neox,
    test_llama,
    test_marian,
    test_qwen,
    test_t5,
)
from tests.parity.families import made, small_config
from tests.serve.engine.test_paged import check_served
from tests.serve.engine.tiny import run_around

from addnorm.convert.folder import load

pytestmark = pytest.mark.parity

SIZES = {"intermediate_size": 40, "num_key_value_heads": 2, "head_dim": 8}
OPT = {"ffn_dim": 40, "word_embed_proj_dim": 16}
WINDOW = {"sliding_window": 5}
FAMILIES: dict[str, tuple[str, Callable[[], Any]]] = {
    "gpt2": ("GPT2LMHeadModel", lambda: small_config("GPT2Config")),
    "llama": ("LlamaForCausalLM", lambda: test_llama.config(**test_llama.CONFIGS["llama3"])),
    "mistral": ("MistralForCausalLM", lambda: small_config("MistralConfig", **SIZES, **WINDOW)),
    "qwen2": ("Qwen2ForCausalLM", lambda: test_qwen.config(2)),
    "qwen3": ("Qwen3ForCausalLM", lambda: test_qwen.config(3, head_dim=8)),
    "gemma": ("GemmaForCausalLM", lambda: test_gemma.config("gemma")),
    "gemma2": ("Gemma2ForCausalLM", lambda: test_gemma.config("gemma2", **WINDOW)),
    "gemma3": ("Gemma3ForCausalLM", lambda: test_gemma.config("gemma3_text", **WINDOW)),
    "gpt_neox": ("GPTNeoXForCausalLM", test_gpt_neox.config),
    "opt": ("OPTForCausalLM", lambda: small_config("OPTConfig", **OPT)),
    "t5": ("T5ForConditionalGeneration", lambda: transformers.T5Config(**test_t5.SMALL)),
    "mt5": ("MT5ForConditionalGeneration", lambda: transformers.MT5Config(**test_t5.SMALL)),
    "bart": (
        "BartForConditionalGeneration",
        lambda: transformers.BartConfig(**test_bart.SMALL),
    ),
    "marian": ("MarianMTModel", lambda: transformers.MarianConfig(**test_marian.SMALL)),
}
"""The class of each family's model in transformers, and a small configuration of it."""


LONG = {"gpt2", "gemma2", "opt", "marian"}
"""The families of the long lane; the others take as long, and are for the slow one."""


def marked(name: str) -> object:
    return pytest.param(name, marks=pytest.mark.long if name in LONG else pytest.mark.slow)


@pytest.mark.parametrize("name", [marked(name) for name in FAMILIES])
def test_served_as_alone(name: str, tmp_path: Path) -> None:
    kind, config = FAMILIES[name]
    made(kind, config(), tmp_path)
    loaded = load(tmp_path, dtype=torch.float32)
    check_served(run_around(loaded.model.eval(), loaded.spec.model))
