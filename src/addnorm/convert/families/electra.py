"""ELECTRA: BERT whose embeddings are mapped to the width of the model, as generator or as body."""

from addnorm.convert.core import keys
from addnorm.convert.core.family import Family, ModelSpec, embedding_of
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import ENDINGS, EncoderHeads
from addnorm.convert.families.bert import (
    BERT_KEYS,
    BERT_MODEL,
    HEADS,
    OTHER_HEADS,
    RENAMES,
    body_names,
)
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    HiddenHeadConfig,
    TokenHeadConfig,
    TransformConfig,
)


def _read_width(settings: Settings) -> keys.Fields:
    """The width of the embedding table, of its positions and types, and of the token head."""
    d_model = settings.required_int("hidden_size")
    width = settings.optional_int("embedding_size", missing=128) or d_model
    if width == d_model:
        return {}
    return {
        "embedding.d_embed": width,
        "embedding.map": "last",
        "head.transform.d_out": width if scores_tokens(settings) else None,
    }


def scores_tokens(settings: Settings, *endings: str) -> bool:
    """Whether the class in `architectures` has a token head, judged by the ending of its name."""
    name = (settings.string_list("architectures") or [""])[0]
    return name.endswith(("ForMaskedLM", *endings))


def _write_width(spec: ModelSpec) -> Json:
    return {"embedding_size": embedding_of(spec.model).width(spec.model.d_model)}


WIDTH = keys.Computed(_read_width, _write_width)
"""The width of embeddings, for ELECTRA and ALBERT."""

ELECTRA = Family(
    model_type="electra",
    config=keys.ConfigTable(
        BERT_MODEL,
        (
            EncoderHeads(
                "Electra",
                {
                    **HEADS,
                    "body": HiddenHeadConfig(),
                    "sequence": ClassificationHeadConfig(
                        pooling="first", transform=TransformConfig(activation="gelu")
                    ),
                },
                {**ENDINGS, "ForPreTraining": "body"},
            ),
            WIDTH,
            keys.Size("max_len", "max_position_embeddings"),
            *BERT_KEYS,
            # Of a head for multiple choice.
            keys.Ignored("summary_type summary_use_proj summary_activation summary_last_dropout"),
        ),
    ),
    names={
        **body_names("electra"),
        "embed.proj_last": "electra.embeddings_project",
        "head": "generator_lm_head",
    },
    heads={
        TokenHeadConfig: {
            "transform.proj": "generator_predictions.dense",
            "transform.norm": "generator_predictions.LayerNorm",
        },
        ClassificationHeadConfig: {
            "transform.proj": "classifier.dense",
            "proj": "classifier.out_proj",
        },
        **OTHER_HEADS,
    },
    prefix="electra.",
    renames=RENAMES,
    ignored=(r"(electra\.)?embeddings\.position_ids",),
    left_aside=("discriminator_predictions",),
    ties=(("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"),),
)
"""Clark et al. 2020. The discriminator's head, which tells replaced tokens, is left out."""
