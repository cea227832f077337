"""Every family of foreign checkpoints there is."""

from addnorm.convert.bart import BART
from addnorm.convert.bert import BERT
from addnorm.convert.distilbert import DISTILBERT
from addnorm.convert.family import Family
from addnorm.convert.gemma import GEMMA, GEMMA2, GEMMA3
from addnorm.convert.gpt2 import GPT2
from addnorm.convert.gpt_neox import GPT_NEOX
from addnorm.convert.llama import LLAMA
from addnorm.convert.marian import MARIAN
from addnorm.convert.mistral import MISTRAL
from addnorm.convert.modernbert import MODERNBERT
from addnorm.convert.opt import OPT
from addnorm.convert.qwen import QWEN2, QWEN3
from addnorm.convert.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from addnorm.convert.t5 import MT5, T5
from addnorm.convert.vit import VIT
from addnorm.convert.whisper import WHISPER

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
"""Where a model could be exported as several, the first stands."""
