"""Published models as functions that return their configuration."""

from dataclasses import replace
from types import FunctionType
from typing import Any

from addnorm.errors import nearest
from addnorm.models.decoder import DecoderConfig
from addnorm.models.encoder import EncoderConfig
from addnorm.models.encoder_decoder import EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig, DotConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    HiddenHeadConfig,
    PoolerHeadConfig,
    TokenHeadConfig,
)
from addnorm.nn.norms import LayerNormConfig, RMSNormConfig
from addnorm.nn.patches import PatchEmbeddingConfig
from addnorm.nn.positions import (
    LearnedConfig,
    NoPositionConfig,
    RotaryConfig,
    T5BiasConfig,
    TransformerXLConfig,
)
from addnorm.nn.residuals import PreNormConfig


def __getattr__(name: str) -> Any:
    """Raise `AttributeError` with the nearest preset."""
    hint = "" if name.startswith("_") else nearest(name, _presets())
    raise AttributeError(f"no preset is called {name!r}.{hint}", name=name)


def _presets() -> list[str]:
    functions = {name for name, value in globals().items() if type(value) is FunctionType}
    return sorted(name for name in functions if name[0] != "_")


def bert_base() -> EncoderConfig:
    """BERT-base (Devlin et al. 2019, §3): 109,482,240 parameters with its vocabulary of 30,522."""
    return EncoderConfig(
        d_model=768,
        n_layers=12,
        max_len=512,
        position=LearnedConfig(),
        attention=AttentionConfig(n_heads=12, dropout=0.1),
        feedforward=FeedForwardConfig(activation="gelu"),
        norm=LayerNormConfig(eps=1e-12),
        embedding=_bert_embedding(n_types=2),
        head=PoolerHeadConfig(),
        init="bert",
    )


def _bert_embedding(n_types: int) -> EmbeddingConfig:
    return EmbeddingConfig(scale="one", norm=LayerNormConfig(eps=1e-12), n_types=n_types)


def bert_large() -> EncoderConfig:
    """BERT-large: 335,141,888 parameters with its vocabulary of 30,522."""
    heads = AttentionConfig(n_heads=16, dropout=0.1)
    return replace(bert_base(), d_model=1024, n_layers=24, attention=heads)


def roberta_base() -> EncoderConfig:
    """RoBERTa-base (Liu et al. 2019): 124,645,632 parameters with its vocabulary of 50,265.

    The first two of its 514 positions are never used.
    """
    return replace(bert_base(), max_len=514, embedding=_bert_embedding(n_types=1))


def distilbert_base() -> EncoderConfig:
    """DistilBERT-base (Sanh et al. 2019, §2): 66,362,880 parameters with BERT's vocabulary."""
    embedding = _bert_embedding(n_types=0)
    return replace(bert_base(), n_layers=6, embedding=embedding, head=HiddenHeadConfig())


def vit_b16() -> EncoderConfig:
    """ViT-B/16 (Dosovitskiy et al. 2021, table 1): 86,567,656 parameters with 1,000 classes.

    For images of 224 × 224, the size for which its position embeddings are learned.
    """
    return EncoderConfig(
        d_model=768,
        n_layers=12,
        position=NoPositionConfig(),
        attention=AttentionConfig(n_heads=12),
        feedforward=FeedForwardConfig(activation="gelu"),
        norm=LayerNormConfig(eps=1e-6),
        residual=PreNormConfig(),
        input=PatchEmbeddingConfig(size=(224, 224), channels=3, patch=16),
        head=ClassificationHeadConfig(pooling="first"),
        init="bert",
    )


def t5_small() -> EncoderDecoderConfig:
    """T5-small (Raffel et al. 2020, §3.1.1): 60,506,624 parameters with a vocabulary of 32,128."""
    return EncoderDecoderConfig(
        d_model=512,
        n_layers=6,
        position=T5BiasConfig(),
        attention=AttentionConfig(n_heads=8, bias=False, dropout=0.1, score=DotConfig()),
        feedforward=FeedForwardConfig(d_ff=2048, bias=False, dropout=0.1),
        norm=RMSNormConfig(),
        residual=PreNormConfig(),
        embedding=EmbeddingConfig(scale="one"),
    )


def t5_base() -> EncoderDecoderConfig:
    """T5-base: 222,903,552 parameters with a vocabulary of 32,128."""
    return replace(
        t5_small(),
        d_model=768,
        n_layers=12,
        attention=AttentionConfig(n_heads=12, bias=False, dropout=0.1, score=DotConfig()),
        feedforward=FeedForwardConfig(d_ff=3072, bias=False, dropout=0.1),
    )


def transformer_xl_base() -> DecoderConfig:
    """Transformer-XL base for WikiText-103 (Dai et al. 2019, table 1), about 151 M parameters.

    With its vocabulary of 267,735. The adaptive softmax of the original saves time but no
    parameters: its table is as wide for rare words as for frequent ones, and tied.
    """
    return DecoderConfig(
        d_model=410,
        n_layers=16,
        position=TransformerXLConfig(),
        attention=AttentionConfig(n_heads=10, bias=False),
        feedforward=FeedForwardConfig(d_ff=2100, dropout=0.1),
    )


def transformer_base() -> EncoderDecoderConfig:
    """The base model of Vaswani et al. 2017, table 3: 6 + 6 layers of width 512.

    About 65 M parameters with a shared vocabulary of 37,000.
    """
    return EncoderDecoderConfig(
        d_model=512,
        n_layers=6,
        attention=AttentionConfig(n_heads=8, bias=False),
        feedforward=FeedForwardConfig(d_ff=2048, dropout=0.1),
    )


def transformer_big() -> EncoderDecoderConfig:
    """The big model of Vaswani et al. 2017, table 3: 6 + 6 layers of width 1024, about 213 M."""
    return EncoderDecoderConfig(
        d_model=1024,
        n_layers=6,
        attention=AttentionConfig(n_heads=16, bias=False),
        feedforward=FeedForwardConfig(d_ff=4096, dropout=0.3),
        dropout=0.3,
    )


def gpt2_small() -> DecoderConfig:
    """GPT-2 small (Radford et al. 2019): 124,439,808 parameters with its vocabulary of 50,257."""
    return DecoderConfig(
        d_model=768,
        n_layers=12,
        max_len=1024,
        position=LearnedConfig(),
        attention=AttentionConfig(n_heads=12, dropout=0.1),
        feedforward=FeedForwardConfig(activation="gelu_tanh"),
        residual=PreNormConfig(),
        embedding=EmbeddingConfig(scale="one"),
        init="gpt2",
    )


def llama_7b() -> DecoderConfig:
    """LLaMA-7B (Touvron et al. 2023): 6,738,415,616 parameters with its vocabulary of 32,000."""
    return DecoderConfig(
        d_model=4096,
        n_layers=32,
        max_len=2048,
        position=RotaryConfig(),
        attention=AttentionConfig(n_heads=32, bias=False),
        feedforward=GatedFeedForwardConfig(d_ff=11008),
        norm=RMSNormConfig(),
        residual=PreNormConfig(),
        embedding=EmbeddingConfig(scale="one"),
        head=TokenHeadConfig(tied=False),
        dropout=0.0,
        init="gpt2",
    )
