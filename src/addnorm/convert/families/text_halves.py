"""The text model in folders that also read images; one warning names the parts left out.

Gemma 3 (4 B and larger), Mistral 3, LLaVA, SmolVLM, Qwen2.5-VL, Qwen3-VL and Qwen3.5. Their
language model stands under `text_config`, and its tensors under a prefix. With text alone, the
three positions of a token are equal, so that their M-RoPE is RoPE (Wang et al. 2024, §2.1).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from warnings import warn

from addnorm.convert.core.family import ConfigMap, Family, ModelSpec
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.families.gemma import GEMMA3
from addnorm.convert.families.gemma4 import GEMMA4
from addnorm.convert.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from addnorm.convert.families.qwen_delta import M_ROPE, QWEN3_5, QWEN3_5_MOE
from addnorm.errors import IgnoredSettings, InputError

LEFT_ASIDE = re.compile(
    r".*(image|vision|video|audio|projector|spatial_merge|mm_tokens|boi_|eoi_|boa_|eoa_|"
    r"perceiver|resampler|pixel_shuffle).*"
)
"""Keys about images, videos and sounds."""

TOP = ("text_config", "scale_factor", "_pad_token_id", "ignore_index", "vocab_size")
"""Keys of the whole model that are read here, or concern images, or stand in the table of text."""


@dataclass(frozen=True)
class TextConfig:
    """The language model's keys, under `text_config` or, in older files, next to the others.

    `defaults` are what transformers takes for absent keys; `text` is the family of the text alone.
    """

    text: Family
    stem: str
    tied: bool
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def read(self, settings: Settings) -> ModelSpec:
        inner = settings.table("text_config")
        where = settings.where if inner is None else inner.where
        others = dict(settings.tree)
        given = others if inner is None else inner.tree
        warn(
            f"{settings.where}: only the text half is read: the model's images are left aside "
            f"({', '.join(key for key in others if LEFT_ASIDE.fullmatch(key)) or 'vision_config'})",
            IgnoredSettings,
            stacklevel=2,
        )
        tree = {**self.defaults, **given, **self._from_top(settings)}
        text = Settings(_without_images(tree), where)
        spec = self.text.config.read(text)
        text.check_all_read()
        settings.ignore(*TOP, *filter(LEFT_ASIDE.fullmatch, others))
        if inner is None:
            settings.ignore(*others)
        return spec

    def _from_top(self, settings: Settings) -> Json:
        """The class of the language model, and whether its head is tied."""
        names = settings.string_list("architectures") or [f"{self.stem}Model"]
        ending = "Model" if names[0].endswith("Model") else "ForCausalLM"
        return {
            "model_type": self.text.model_type,
            "architectures": [f"{self.stem}{ending}"],
            "tie_word_embeddings": settings.get("tie_word_embeddings", self.tied),
        }

    def write(self, spec: ModelSpec) -> Json:
        raise InputError(f"the text half of a model of images is written as {self.text.model_type}")


def _without_images(tree: Json) -> Json:
    """The keys of a language model, with rotary positions for text only."""
    text = {key: value for key, value in tree.items() if not LEFT_ASIDE.fullmatch(key)}
    for name in ("rope_scaling", "rope_parameters"):
        table = text.get(name)
        if isinstance(table, dict):
            plain = {key: value for key, value in table.items() if key not in M_ROPE}
            for key in ("type", "rope_type"):
                if plain.get(key) == "mrope":
                    plain[key] = "default"
            text[name] = plain
    return text


def _half(model_type: str, config: TextConfig) -> Family:
    """The family of a model of images, reading only the tensors of `config.text`."""
    read: ConfigMap = config
    return replace(
        config.text,
        model_type=model_type,
        config=read,
        renames=(
            (r"^(model\.)?language_model\.lm_head\.", "lm_head."),
            (r"^(model\.)?(language_model|text_model)\.(model\.)?", "model."),
            *config.text.renames,
        ),
        ignored=(
            r"(model\.)?(vision_tower|vision_model|visual|multi_modal_projector|connector)\..*",
            r"(model\.)?(audio_tower|embed_vision|embed_audio)\..*",
            *config.text.ignored,
        ),
    )


LLAMA_SIZES = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}
"""What transformers takes for a LLaMA whose file leaves its sizes out, as LLaVA 1.5's does."""

GEMMA3_SIZES = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
}
"""The same for Gemma 3, whose files name few sizes."""

GEMMA3_IMAGES = _half("gemma3", TextConfig(GEMMA3, "Gemma3", True, GEMMA3_SIZES))
"""Gemma Team 2025, from 4 B on."""

GEMMA4_IMAGES = _half("gemma4", TextConfig(GEMMA4, "Gemma4", True))
"""Google 2026, with images, videos and sounds."""

MISTRAL3 = _half("mistral3", TextConfig(MISTRAL, "Mistral", False, {"sliding_window": None}))
"""Mistral Small 3.1 and later."""

LLAVA = _half("llava", TextConfig(LLAMA, "Llama", False, LLAMA_SIZES))
"""Liu et al. 2023, over LLaMA."""

SMOLVLM = _half("smolvlm", TextConfig(LLAMA, "Llama", False, LLAMA_SIZES))
IDEFICS3 = _half("idefics3", TextConfig(LLAMA, "Llama", False, LLAMA_SIZES))
"""SmolVLM 2 and 1: Marafioti et al. 2025."""

QWEN2_5_VL = _half("qwen2_5_vl", TextConfig(QWEN2, "Qwen2", False))
"""Bai et al. 2025."""

QWEN3_VL = _half("qwen3_vl", TextConfig(QWEN3, "Qwen3", False))
"""Qwen Team 2025."""

QWEN3_5_IMAGES = _half("qwen3_5", TextConfig(QWEN3_5, "Qwen3_5", False))
"""Qwen Team 2026."""

QWEN3_5_MOE_IMAGES = _half("qwen3_5_moe", TextConfig(QWEN3_5_MOE, "Qwen3_5Moe", False))
"""Qwen Team 2026, with a mixture of experts."""
