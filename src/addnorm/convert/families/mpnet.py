"""MPNet: BERT with learned positions and T5's bias at once."""

from collections.abc import Iterator
from dataclasses import replace

from addnorm.convert.core import keys
from addnorm.convert.core.family import Family, ModelSpec
from addnorm.convert.core.maps import SkipRows, TensorMap, within
from addnorm.convert.core.settings import Settings
from addnorm.convert.core.tasks import EncoderHeads, without_pooler
from addnorm.convert.families.bert import BERT_MODEL, HEADS, PAD, RENAMES, untied_scores
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    PoolerHeadConfig,
    TaggingHeadConfig,
    TokenHeadConfig,
)
from addnorm.nn.positions import LearnedT5Config

FIRST_ROW = PAD + 1
"""The row of the first position, after that of padding, whose token is 1 in every MPNet."""


def _read_length(settings: Settings) -> keys.Fields:
    return {"max_len": settings.required_int("max_position_embeddings") - FIRST_ROW}


def _mpnet_tensors(spec: ModelSpec) -> Iterator[TensorMap]:
    table = "mpnet.embeddings.position_embeddings.weight"
    yield SkipRows("embed.position.learned.table.weight", table, FIRST_ROW)
    yield from untied_scores(spec, "lm_head")


MPNET = Family(
    model_type="mpnet",
    config=keys.ConfigTable(
        replace(BERT_MODEL, position=LearnedT5Config()),
        (
            EncoderHeads("MPNet", HEADS),
            keys.VOCABULARY,
            *keys.SIZES,
            keys.Computed(
                _read_length,
                lambda spec: {"max_position_embeddings": spec.model.max_len + FIRST_ROW},
            ),
            keys.Fixed("pad_token_id", PAD, written=True),
            # transformers computes 32 buckets up to 128 tokens, whatever the key says.
            keys.Fixed("relative_attention_num_buckets", 32, written=True),
            keys.Value("attention.dropout", "attention_probs_dropout_prob", 0.1),
            keys.Choice("feedforward.activation", "hidden_act", keys.ACTIVATIONS, "gelu"),
            keys.Value(
                "norm.eps embedding.norm.eps head.transform.norm.eps", "layer_norm_eps", 1e-12
            ),
            keys.Value("dropout head.dropout", "hidden_dropout_prob", 0.1),
            keys.Value("head.tied", "tie_word_embeddings", True),
        ),
    ),
    names={
        "embed.tokens": "mpnet.embeddings.word_embeddings",
        "embed.norm": "mpnet.embeddings.LayerNorm",
        "embed.position.bias.table": "mpnet.encoder.relative_attention_bias",
        "head": "lm_head",
        **within(
            "stack.blocks.*",
            "mpnet.encoder.layer.*",
            {
                **within(
                    "attention",
                    "attention.attn",
                    {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o"},
                ),
                "attention_residual.norm": "attention.LayerNorm",
                "feedforward.up_proj": "intermediate.dense",
                "feedforward.down_proj": "output.dense",
                "feedforward_residual.norm": "output.LayerNorm",
            },
        ),
    },
    heads={
        TokenHeadConfig: {
            "transform.proj": "lm_head.dense",
            "transform.norm": "lm_head.layer_norm",
        },
        ClassificationHeadConfig: {
            "transform.proj": "classifier.dense",
            "proj": "classifier.out_proj",
        },
        TaggingHeadConfig: {"proj": "classifier"},
        PoolerHeadConfig: {"proj": "mpnet.pooler.dense"},
    },
    others=_mpnet_tensors,
    prefix="mpnet.",
    renames=RENAMES,
    ignored=(r"(mpnet\.)?embeddings\.position_ids", r"(mpnet\.)?pooler\..*"),
    ties=(
        ("lm_head.decoder.weight", "mpnet.embeddings.word_embeddings.weight"),
        ("lm_head.decoder.bias", "lm_head.bias"),
    ),
    refine_by_names=without_pooler,
)
"""Song et al. 2020, the body of all-mpnet-base-v2."""
