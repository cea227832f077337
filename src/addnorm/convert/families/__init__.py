"""All supported model families, by their Hugging Face `model_type`."""

from addnorm.convert.core.family import Family
from addnorm.convert.families.bert import BERT, CAMEMBERT, DISTILBERT, ROBERTA, XLM_ROBERTA
from addnorm.convert.families.fairseq import BART, MARIAN, WHISPER
from addnorm.convert.families.gemma import GEMMA, GEMMA2, GEMMA3
from addnorm.convert.families.gpt2 import GPT2
from addnorm.convert.families.gpt_neox import GPT_NEOX
from addnorm.convert.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from addnorm.convert.families.modernbert import MODERNBERT
from addnorm.convert.families.opt import OPT
from addnorm.convert.families.t5 import MT5, T5
from addnorm.convert.families.vit import VIT

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
)
"""All families; if a model can be exported as several, the first is used."""
