"""EuroBERT: the layers of LLaMA in both directions."""

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import MAX_LEN, ROTARY
from addnorm.convert.core.family import Family, ModelSpec
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import EncoderHeads
from addnorm.convert.families.llama import (
    ACTIVATION,
    ATTENTION_BIAS,
    LLAMA,
    LLAMA_MODEL,
    NAMES,
    head_width,
)
from addnorm.models import EncoderConfig
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    HiddenHeadConfig,
    TaggingHeadConfig,
    TokenHeadConfig,
    TransformConfig,
)

POOLINGS = {"bos": ("first", "hidden"), "mean": ("mean", "hidden"), "late": ("mean", "transformed")}
"""Our pooling for each `classifier_pooling`, and its place: the late one follows the layer."""


def _read_pooling(settings: Settings) -> keys.Fields:
    settings.expect("clf_pooling", "late")  # the name in the authors' folders
    pooling, pooled = settings.choose("classifier_pooling", POOLINGS, "late")
    return {"head.pooling": pooling, "head.pooled": pooled}


def _write_pooling(spec: ModelSpec) -> Json:
    head = spec.model.head
    if not isinstance(head, ClassificationHeadConfig):
        return {}
    return {"classifier_pooling": keys.their_name((head.pooling, head.pooled), POOLINGS)}


def _heads_of(settings: Settings) -> int:
    return settings.required_int("num_attention_heads")


EUROBERT = Family(
    model_type="eurobert",
    config=keys.ConfigTable(
        EncoderConfig(
            position=LLAMA_MODEL.position,
            attention=LLAMA_MODEL.attention,
            feedforward=LLAMA_MODEL.feedforward,
            norm=LLAMA_MODEL.norm,
            residual=LLAMA_MODEL.residual,
            embedding=LLAMA_MODEL.embedding,
            dropout=0.0,
            init="bert",
        ),
        (
            EncoderHeads(
                "EuroBert",
                {
                    "tokens": TokenHeadConfig(),
                    "sequence": ClassificationHeadConfig(transform=TransformConfig()),
                    "tags": TaggingHeadConfig(),
                    "body": HiddenHeadConfig(),
                },
            ),
            keys.VOCABULARY,
            MAX_LEN,
            ROTARY,
            *keys.SIZES,
            keys.Size("attention.n_kv_heads", "num_key_value_heads", _heads_of),
            head_width(None),
            keys.Value("attention.dropout", "attention_dropout", 0.0),
            ATTENTION_BIAS,
            ACTIVATION,
            # The head of tokens has a bias where the feed-forward has one.
            keys.Value("feedforward.bias head.bias", "mlp_bias", False),
            keys.Value("norm.eps", "rms_norm_eps", 1e-5),
            keys.Value("head.tied", "tie_word_embeddings", False),
            keys.Computed(_read_pooling, _write_pooling),
            keys.Ignored("clf_dropout"),
        ),
        # The default ids belong to a particular vocabulary.
        dict.fromkeys(f"{kind}_token_id" for kind in ("bos", "eos", "pad")),
    ),
    names=NAMES,
    heads={
        ClassificationHeadConfig: {"transform.proj": "dense", "proj": "classifier"},
        TaggingHeadConfig: {"proj": "classifier"},
    },
    prefix="model.",
    ignored=LLAMA.ignored,
    ties=LLAMA.ties,
)
"""Boizard et al. 2025."""
