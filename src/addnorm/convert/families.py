"""Every family of foreign checkpoints there is."""

from addnorm.convert.bert import BERT
from addnorm.convert.distilbert import DISTILBERT
from addnorm.convert.family import Family
from addnorm.convert.gpt2 import GPT2
from addnorm.convert.llama import LLAMA
from addnorm.convert.marian import MARIAN
from addnorm.convert.mistral import MISTRAL
from addnorm.convert.qwen import QWEN2, QWEN3
from addnorm.convert.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA

FAMILIES: tuple[Family, ...] = (
    GPT2,
    BERT,
    ROBERTA,
    XLM_ROBERTA,
    CAMEMBERT,
    MARIAN,
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    DISTILBERT,
)
"""Where a model could be exported as several, the first stands."""
