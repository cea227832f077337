"""OPT: a GPT decoder with ReLU, biases in all projections or none, positions from row 2."""

from addnorm.convert.core import keys
from addnorm.convert.core.family import Family, ModelSpec, embedding_of
from addnorm.convert.core.maps import SkipRows, within
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import DecoderHead, decoder_head
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.heads import TokenHeadConfig, TransformConfig
from addnorm.nn.positions import LearnedConfig
from addnorm.nn.residuals import PostNormConfig, PreNormConfig

FIRST_ROW = 2
PROJECTIONS = ("q", "k", "v", "out")


def _read_width(settings: Settings) -> keys.Fields:
    """The width of the embedding table, and a map from hidden states if it differs from theirs."""
    d_model = settings.required_int("hidden_size")
    width = settings.optional_int("word_embed_proj_dim") or d_model
    if width == d_model:
        return {}
    head = decoder_head(settings, tied=settings.get("tie_word_embeddings", True))
    if not isinstance(head, TokenHeadConfig):
        raise settings.refuse(
            "architectures",
            f"its vectors are mapped to word_embed_proj_dim = {width}, which a model without a "
            "head lacks",
        )
    transform = TransformConfig(activation="identity", bias=False, d_out=width)
    return {"embedding.d_embed": width, "head.transform": transform}


def _write_width(spec: ModelSpec) -> Json:
    return {"word_embed_proj_dim": embedding_of(spec.model).width(spec.model.d_model)}


def _check_final_norm(settings: Settings) -> keys.Fields:
    before = settings.get("do_layer_norm_before", True)
    settings.expect("_remove_final_layer_norm", False, *(() if before else (True,)))
    return {}


TABLE = keys.ConfigTable(
    DecoderConfig(
        position=LearnedConfig(),
        attention=AttentionConfig(n_heads=1),
        embedding=EmbeddingConfig(scale="one"),
        init="gpt2",
    ),
    (
        keys.VOCABULARY,
        keys.Size("max_len", "max_position_embeddings"),
        keys.Size("d_model", "hidden_size"),
        keys.Size("n_layers", "num_hidden_layers"),
        keys.Size("attention.n_heads", "num_attention_heads"),
        keys.Value("attention.bias feedforward.bias", "enable_bias", True),
        keys.Value("attention.dropout", "attention_dropout", 0.0),
        keys.Size("feedforward.d_ff", "ffn_dim"),
        keys.Choice("feedforward.activation", "activation_function", keys.ACTIVATIONS, "relu"),
        keys.Choice(
            "residual",
            "do_layer_norm_before",
            {True: PreNormConfig(), False: PostNormConfig()},
            True,
        ),
        keys.Value("dropout", "dropout", 0.1),
        DecoderHead("OPT", tied=True),
        keys.Computed(_read_width, _write_width),
        keys.Computed(_check_final_norm),
        keys.Fixed("layer_norm_elementwise_affine learned_embeddings", True),
        keys.Fixed("scale_embeddings", False),
        keys.Ignored("layerdrop activation_dropout"),
    ),
)


OPT = Family(
    model_type="opt",
    config=TABLE,
    names={
        "embed.tokens": "model.decoder.embed_tokens",
        "embed.proj": "model.decoder.project_in",
        "stack.norm": "model.decoder.final_layer_norm",
        "head.transform.proj": "model.decoder.project_out",
        "head": "lm_head",
        **within(
            "stack.blocks.*",
            "model.decoder.layers.*",
            {
                **{f"attention.{part}_proj": f"self_attn.{part}_proj" for part in PROJECTIONS},
                "attention_residual.norm": "self_attn_layer_norm",
                "feedforward.up_proj": "fc1",
                "feedforward.down_proj": "fc2",
                "feedforward_residual.norm": "final_layer_norm",
            },
        ),
    },
    others=lambda spec: [
        SkipRows("embed.position.table.weight", "model.decoder.embed_positions.weight", FIRST_ROW)
    ],
    prefix="model.",
    ties=(("lm_head.weight", "model.decoder.embed_tokens.weight"),),
)
"""Zhang et al. 2022."""
