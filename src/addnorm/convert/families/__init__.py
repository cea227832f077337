"""All supported model families, by their Hugging Face `model_type`, imported on first use."""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module

from addnorm.convert.core.family import Family

MODULES = {
    "gpt2": "gpt2",
    "bert": "bert",
    "roberta": "bert",
    "xlm-roberta": "bert",
    "camembert": "bert",
    "marian": "fairseq",
    "bart": "fairseq",
    "t5": "t5",
    "mt5": "t5",
    "whisper": "fairseq",
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "llama",
    "qwen3": "llama",
    "distilbert": "bert",
    "gpt_neox": "gpt_neox",
    "modernbert": "modernbert",
    "gemma": "gemma",
    "gemma2": "gemma",
    "gemma3_text": "gemma",
    "vit": "vit",
    "opt": "opt",
    "arcee": "llama_relatives",
    "seed_oss": "llama_relatives",
    "ministral": "llama_relatives",
    "helium": "llama_relatives",
    "smollm3": "llama_relatives",
    "phi": "phi",
    "phi3": "phi",
    "mixtral": "mixtral",
    "qwen3_moe": "mixtral",
    "starcoder2": "starcoder",
    "gpt_bigcode": "starcoder",
    "stablelm": "llama_relatives",
    "glm": "llama_relatives",
    "glm4": "llama_relatives",
    "granite": "llama_relatives",
    "cohere": "cohere",
    "cohere2": "cohere",
    "gptj": "gptj",
    "gpt_neo": "gpt_neo",
    "bloom": "bloom",
    "mpt": "bloom",
    "falcon": "falcon",
    "umt5": "t5",
    "mbart": "mbart",
    "pegasus": "mbart",
    "jina_embeddings_v3": "rotary_bert",
    "gte": "rotary_bert",
    "nomic_bert": "rotary_bert",
    "electra": "electra",
    "m2m_100": "mbart",
    "mpnet": "mpnet",
    "eurobert": "eurobert",
    "deberta-v2": "deberta",
    "albert": "albert",
    "gpt_oss": "gpt_oss",
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
    "glm4_moe": "deepseek",
    "qwen2_moe": "mixtral",
    "olmo": "olmo",
    "olmo2": "olmo",
    "olmo3": "olmo",
    "nemotron": "nemotron",
    "apertus": "nemotron",
    "nemotron_h": "nemotron_hybrid",
    "qwen3_next": "qwen_delta",
    "qwen3_5_text": "qwen_delta",
    "qwen3_5_moe_text": "qwen_delta",
    "lfm2": "lfm2",
    "granitemoehybrid": "granite_hybrid",
    "gemma3": "text_halves",
    "mistral3": "text_halves",
    "llava": "text_halves",
    "smolvlm": "text_halves",
    "idefics3": "text_halves",
    "qwen2_5_vl": "text_halves",
    "qwen3_vl": "text_halves",
    "deit": "vit",
    "dinov2": "dino",
    "dinov2_with_registers": "dino",
    "dinov3_vit": "dino",
    "qwen3_5": "text_halves",
    "qwen3_5_moe": "text_halves",
    "wav2vec2": "wav2vec2",
    "hubert": "wav2vec2",
    "gemma4_text": "gemma4",
    "gemma4": "text_halves",
    "clip": "clip",
    "siglip": "clip",
    "clip_text_model": "clip",
    "clip_vision_model": "clip",
    "siglip_vision_model": "clip",
    "new": "own_code",
}
"""The module of each family; if a model can be exported as several, the first is used."""


class BuiltIn(Mapping[str, Family]):
    """The families of `MODULES`; to look at names alone imports none."""

    def __getitem__(self, model_type: str) -> Family:
        return _family(MODULES[model_type], model_type)

    def __contains__(self, model_type: object) -> bool:
        return model_type in MODULES

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


FAMILIES = BuiltIn()


@cache
def _family(module: str, model_type: str) -> Family:
    values = vars(import_module(f"{__name__}.{module}")).values()
    [family] = {
        id(value): value
        for value in values
        if isinstance(value, Family) and value.model_type == model_type
    }.values()
    return family


UNDER_OTHER_TYPES = {"xlm-roberta": "own_code"}
"""The modules of families whose files have the `model_type` of another (`Family.published_as`)."""


def families_under(model_type: str) -> Iterator[Family]:
    """The families whose files name another family, of this `model_type`."""
    if model_type in UNDER_OTHER_TYPES:
        for value in vars(import_module(f"{__name__}.{UNDER_OTHER_TYPES[model_type]}")).values():
            if isinstance(value, Family) and value.published_as.get("model_type") == model_type:
                yield value
