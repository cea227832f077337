"""All supported model families, by their Hugging Face `model_type`."""

from addnorm.convert.core.family import Family
from addnorm.convert.families.albert import ALBERT
from addnorm.convert.families.bert import BERT, CAMEMBERT, DISTILBERT, ROBERTA, XLM_ROBERTA
from addnorm.convert.families.bloom import BLOOM, MPT
from addnorm.convert.families.clip import CLIP, CLIP_IMAGE, CLIP_TEXT, SIGLIP, SIGLIP_VISION
from addnorm.convert.families.cohere import COHERE, COHERE2
from addnorm.convert.families.deberta import DEBERTA_V2
from addnorm.convert.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE
from addnorm.convert.families.dino import DINOV2, DINOV2_WITH_REGISTERS, DINOV3
from addnorm.convert.families.electra import ELECTRA
from addnorm.convert.families.eurobert import EUROBERT
from addnorm.convert.families.fairseq import BART, MARIAN, WHISPER
from addnorm.convert.families.falcon import FALCON
from addnorm.convert.families.gemma import GEMMA, GEMMA2, GEMMA3
from addnorm.convert.families.gemma4 import GEMMA4
from addnorm.convert.families.glm import GLM, GLM4
from addnorm.convert.families.gpt2 import GPT2
from addnorm.convert.families.gpt_neo import GPT_NEO
from addnorm.convert.families.gpt_neox import GPT_NEOX
from addnorm.convert.families.gpt_oss import GPT_OSS
from addnorm.convert.families.gptj import GPTJ
from addnorm.convert.families.granite import GRANITE
from addnorm.convert.families.granite_hybrid import GRANITE_HYBRID
from addnorm.convert.families.lfm2 import LFM2
from addnorm.convert.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from addnorm.convert.families.llama_relatives import (
    ARCEE,
    HELIUM,
    MINISTRAL,
    SEED_OSS,
    SMOLLM3,
)
from addnorm.convert.families.mbart import M2M_100, MBART, PEGASUS
from addnorm.convert.families.mixtral import MIXTRAL, QWEN2_MOE, QWEN3_MOE
from addnorm.convert.families.modernbert import MODERNBERT
from addnorm.convert.families.mpnet import MPNET
from addnorm.convert.families.nemotron import APERTUS, NEMOTRON
from addnorm.convert.families.olmo import OLMO, OLMO2, OLMO3
from addnorm.convert.families.opt import OPT
from addnorm.convert.families.phi import PHI, PHI3
from addnorm.convert.families.qwen_delta import QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT
from addnorm.convert.families.rotary_bert import GTE, JINA_V3, NOMIC_BERT
from addnorm.convert.families.stablelm import STABLELM
from addnorm.convert.families.starcoder import GPT_BIGCODE, STARCODER2
from addnorm.convert.families.t5 import MT5, T5, UMT5
from addnorm.convert.families.text_halves import (
    GEMMA3_IMAGES,
    GEMMA4_IMAGES,
    IDEFICS3,
    LLAVA,
    MISTRAL3,
    QWEN2_5_VL,
    QWEN3_5_IMAGES,
    QWEN3_5_MOE_IMAGES,
    QWEN3_VL,
    SMOLVLM,
)
from addnorm.convert.families.vit import DEIT, VIT
from addnorm.convert.families.wav2vec2 import HUBERT, WAV2VEC2

FAMILIES: tuple[Family, ...] = (
    GPT2,
    BERT,
    ROBERTA,
    XLM_ROBERTA,
    CAMEMBERT,
    MARIAN,
    BART,
    T5,
    MT5,
    WHISPER,
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    DISTILBERT,
    GPT_NEOX,
    MODERNBERT,
    GEMMA,
    GEMMA2,
    GEMMA3,
    VIT,
    OPT,
    ARCEE,
    SEED_OSS,
    MINISTRAL,
    HELIUM,
    SMOLLM3,
    PHI,
    PHI3,
    MIXTRAL,
    QWEN3_MOE,
    STARCODER2,
    GPT_BIGCODE,
    STABLELM,
    GLM,
    GLM4,
    GRANITE,
    COHERE,
    COHERE2,
    GPTJ,
    GPT_NEO,
    BLOOM,
    MPT,
    FALCON,
    UMT5,
    MBART,
    PEGASUS,
    JINA_V3,
    GTE,
    NOMIC_BERT,
    ELECTRA,
    M2M_100,
    MPNET,
    EUROBERT,
    DEBERTA_V2,
    ALBERT,
    GPT_OSS,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    GLM4_MOE,
    QWEN2_MOE,
    OLMO,
    OLMO2,
    OLMO3,
    NEMOTRON,
    APERTUS,
    QWEN3_NEXT,
    QWEN3_5,
    QWEN3_5_MOE,
    LFM2,
    GRANITE_HYBRID,
    GEMMA3_IMAGES,
    MISTRAL3,
    LLAVA,
    SMOLVLM,
    IDEFICS3,
    QWEN2_5_VL,
    QWEN3_VL,
    DEIT,
    DINOV2,
    DINOV2_WITH_REGISTERS,
    DINOV3,
    QWEN3_5_IMAGES,
    QWEN3_5_MOE_IMAGES,
    WAV2VEC2,
    HUBERT,
    GEMMA4,
    GEMMA4_IMAGES,
    CLIP,
    SIGLIP,
    CLIP_TEXT,
    CLIP_IMAGE,
    SIGLIP_VISION,
)
"""All families; if a model can be exported as several, the first is used."""
