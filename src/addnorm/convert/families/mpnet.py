"""MPNet: BERT with learned positions and T5's bias at once."""

from collections.abc import Iterator
from dataclasses import replace

from addnorm.convert.core import keys
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.maps import SkipRows, TensorMap
from addnorm.convert.core.settings import Settings
from addnorm.convert.core.tasks import EncoderHeads
from addnorm.convert.families.bert import (
    BERT_MODEL,
    HEADS,
    PAD,
    body_names,
    like_roberta,
    untied_scores,
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


ATTENTION = {f"{part}_proj": f"attn.{part[0]}" for part in ("q", "k", "v", "out")}

MPNET = like_roberta(
    "mpnet",
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
        **body_names("mpnet", ATTENTION, "LayerNorm"),
        "embed.position.bias.table": "mpnet.encoder.relative_attention_bias",
    },
    others=_mpnet_tensors,
)
"""Song et al. 2020, the body of all-mpnet-base-v2."""
