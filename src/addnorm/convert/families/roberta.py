"""RoBERTa: BERT with positions offset by the padding index, and different heads."""

from collections.abc import Iterator

from addnorm.convert.core.family import NO_PADDING, Family, ModelSpec, encoder
from addnorm.convert.core.maps import TensorMap, weight_and_bias
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import labels_for, task_of, without_pooler
from addnorm.convert.families.bert import (
    RENAMES,
    body_maps,
    body_of,
    head_of,
    norm_of,
    scores,
    settings_of,
)
from addnorm.errors import InputError
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    PoolerHeadConfig,
    TaggingHeadConfig,
    TokenHeadConfig,
    TransformConfig,
)

PAD = 1
"""The usual token of padding, and the row of the position table that stands for it."""


def _first_row(spec: ModelSpec) -> int:
    """The row of the first position, which comes after that of padding."""
    if spec.pad_id == NO_PADDING:
        raise InputError("positions of roberta begin after padding, and the tokenizer has none")
    return (PAD if spec.pad_id is None else spec.pad_id) + 1


def _family(model_type: str, stem: str) -> Family:
    def read(settings: Settings) -> ModelSpec:
        pad = settings.get("pad_token_id", PAD)
        if pad < 0:
            raise settings.refuse("pad_token_id", "positions begin after the row of that number")
        task = task_of(settings, stem)
        # The activation before the token logits is always GELU.
        transform = TransformConfig(activation="gelu", norm=norm_of(settings))
        head = head_of(settings, task, transform)
        return ModelSpec(
            model=body_of(settings, head, first_row=pad + 1),
            vocab_size=settings.required_int("vocab_size"),
            labels=labels_for(settings, task),
            pad_id=pad,
        )

    def write(spec: ModelSpec) -> Json:
        first_row = _first_row(spec)
        common = settings_of(spec, stem, first_row=first_row)
        return common | {"model_type": model_type, "pad_token_id": first_row - 1}

    return Family(
        model_types=(model_type,),
        read=read,
        write=write,
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
    model = encoder(spec)
    yield from body_maps(model, "roberta", first_row=_first_row(spec))
    match model.head:
        case TokenHeadConfig() as head:
            yield from weight_and_bias("head.transform.proj", "lm_head.dense")
            yield from weight_and_bias("head.transform.norm", "lm_head.layer_norm")
            yield from scores("lm_head", tied=head.tied)
        case ClassificationHeadConfig():
            yield from weight_and_bias("head.transform.proj", "classifier.dense")
            yield from weight_and_bias("head.proj", "classifier.out_proj")
        case TaggingHeadConfig():
            yield from weight_and_bias("head.proj", "classifier")
        case PoolerHeadConfig():
            yield from weight_and_bias("head.proj", "roberta.pooler.dense")
        case _:
            pass


ROBERTA = _family("roberta", "Roberta")
"""Liu et al. 2019."""

XLM_ROBERTA = _family("xlm-roberta", "XLMRoberta")
"""Conneau et al. 2020: RoBERTa in a hundred languages."""

CAMEMBERT = _family("camembert", "Camembert")
"""Martin et al. 2020: RoBERTa in French."""
