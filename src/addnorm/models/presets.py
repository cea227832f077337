"""Published models as functions that return their configuration."""

from addnorm.models.decoder import DecoderConfig
from addnorm.models.encoder_decoder import EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import LearnedConfig, RotaryConfig
from addnorm.nn.residuals import PreNormConfig


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
