"""Differences of two configurations, with their defaults written out."""

from addnorm.convert.core.differences import differences, explicit
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig

DEFAULTS = DecoderConfig(d_model=8, attention=AttentionConfig(n_heads=2))


def test_defaults_written_out_make_no_difference() -> None:
    spelt = DecoderConfig(
        d_model=8,
        attention=AttentionConfig(n_heads=2, n_kv_heads=2, d_head=4, out_bias=True, dropout=0.5),
        feedforward=FeedForwardConfig(d_ff=32),
        dropout=0.3,
        init="gpt2",
    )
    assert not differences(explicit(DEFAULTS), explicit(spelt))
    untied = DecoderConfig(
        d_model=8, attention=AttentionConfig(n_heads=2), head=TokenHeadConfig(tied=False)
    )
    assert differences(explicit(DEFAULTS), explicit(untied)) == {"head.tied": (True, False)}
