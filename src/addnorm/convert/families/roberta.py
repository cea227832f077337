"""RoBERTa: BERT with positions offset by the padding index, and different heads."""

from collections.abc import Iterator

from addnorm.convert.core import keys
from addnorm.convert.core.family import NO_PADDING, Family, ModelSpec
from addnorm.convert.core.maps import TensorMap
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import EncoderHeads, HeadNames, head_maps, without_pooler
from addnorm.convert.families.bert import (
    BERT_KEYS,
    BERT_MODEL,
    HEADS,
    RENAMES,
    body_maps,
    scores,
)
from addnorm.errors import InputError
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    PoolerHeadConfig,
    TaggingHeadConfig,
    TokenHeadConfig,
)

PAD = 1
"""The usual token of padding, and the row of the position table that stands for it."""


def _first_row(spec: ModelSpec) -> int:
    """The row of the first position, which comes after that of padding."""
    if spec.pad_id == NO_PADDING:
        raise InputError("positions of roberta begin after padding, and the tokenizer has none")
    return (PAD if spec.pad_id is None else spec.pad_id) + 1


def _read_positions(settings: Settings) -> keys.Fields:
    pad = settings.get("pad_token_id", PAD)
    if pad < 0:
        raise settings.refuse("pad_token_id", "positions begin after the row of that number")
    return {"max_len": settings.required_int("max_position_embeddings") - pad - 1, "pad_id": pad}


def _write_positions(spec: ModelSpec) -> Json:
    first_row = _first_row(spec)
    return {
        "max_position_embeddings": spec.model.max_len + first_row,
        "pad_token_id": first_row - 1,
    }


def _family(model_type: str, stem: str) -> Family:
    # The activation before the scores of tokens is always GELU.
    positions = keys.Computed(_read_positions, _write_positions)
    table = keys.ConfigTable(BERT_MODEL, (EncoderHeads(stem, HEADS), positions, *BERT_KEYS))
    return Family(
        model_types=(model_type,),
        read=table.read,
        write=table.write,
        maps=_maps,
        prefix="roberta.",
        renames=RENAMES,
        ignored=(r"(roberta\.)?embeddings\.position_ids", r"(roberta\.)?pooler\..*"),
        ties=(
            ("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
            ("lm_head.decoder.bias", "lm_head.bias"),
        ),
        refine_by_names=without_pooler,
    )


def _maps(spec: ModelSpec) -> Iterator[TensorMap]:
    yield from body_maps(spec.model, "roberta", first_row=_first_row(spec))
    yield from head_maps(spec.model.head, HEAD_NAMES)
    if isinstance(spec.model.head, TokenHeadConfig):
        yield from scores("lm_head", tied=spec.model.head.tied)


HEAD_NAMES: HeadNames = {
    TokenHeadConfig: {
        "transform.proj": "lm_head.dense",
        "transform.norm": "lm_head.layer_norm",
    },
    ClassificationHeadConfig: {
        "transform.proj": "classifier.dense",
        "proj": "classifier.out_proj",
    },
    TaggingHeadConfig: {"proj": "classifier"},
    PoolerHeadConfig: {"proj": "roberta.pooler.dense"},
}

ROBERTA = _family("roberta", "Roberta")
"""Liu et al. 2019."""

XLM_ROBERTA = _family("xlm-roberta", "XLMRoberta")
"""Conneau et al. 2020: RoBERTa in a hundred languages."""

CAMEMBERT = _family("camembert", "Camembert")
"""Martin et al. 2020: RoBERTa in French."""
