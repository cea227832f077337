"""GPT-J: parallel sublayers with one norm; only the first features of each head are rotated."""

from addnorm.convert.core import keys
from addnorm.convert.core.family import Family, ModelSpec, attention_of
from addnorm.convert.core.maps import within
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import DecoderHead
from addnorm.convert.families.gpt2 import SIZES
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.positions import RotaryConfig
from addnorm.nn.residuals import ParallelConfig
from addnorm.parts import kind_of


def _read_rotary(settings: Settings) -> keys.Fields:
    d_model = settings.required_int("n_embd", "hidden_size")
    n_heads = settings.required_int("n_head", "num_attention_heads")
    turned = settings.get("rotary_dim", 64)
    if d_model % n_heads or not 0 < turned <= d_model // n_heads:
        raise settings.refuse("rotary_dim", f"it is a part of {d_model} / {n_heads} features")
    return {"position": RotaryConfig(layout="interleaved", fraction=turned * n_heads / d_model)}


def _write_rotary(spec: ModelSpec) -> Json:
    position, heads = spec.model.position, attention_of(spec.model).heads(spec.model.d_model)
    if not isinstance(position, RotaryConfig):
        raise InputError(f"this family has rotary positions, not {kind_of(position)}")
    return {"rotary_dim": position.width(heads.d_head)}


GPTJ = Family(
    model_type="gptj",
    config=keys.ConfigTable(
        DecoderConfig(
            position=RotaryConfig(layout="interleaved"),
            attention=AttentionConfig(n_heads=1, bias=False, out_bias=False),
            residual=ParallelConfig(),
            embedding=EmbeddingConfig(scale="one"),
            init="gpt2",
        ),
        (
            *SIZES,
            keys.Choice(
                "feedforward.activation", "activation_function", keys.ACTIVATIONS, "gelu_new"
            ),
            keys.Computed(_read_rotary, _write_rotary),
            keys.Fixed("scale_attn_weights rotary", True),
            DecoderHead("GPTJ", tied=False, bias=True),
        ),
    ),
    names={
        "embed.tokens": "transformer.wte",
        "stack.norm": "transformer.ln_f",
        "head": "lm_head",
        **within(
            "stack.blocks.*",
            "transformer.h.*",
            {
                "norm": "ln_1",
                **{
                    f"attention.{part}_proj": f"attn.{part}_proj" for part in ("q", "k", "v", "out")
                },
                "feedforward.up_proj": "mlp.fc_in",
                "feedforward.down_proj": "mlp.fc_out",
            },
        ),
    },
    prefix="transformer.",
    ignored=(r".*\.attn\.(bias|masked_bias)",),
    ties=(("lm_head.weight", "transformer.wte.weight"),),
)
"""Wang & Komatsuzaki 2021."""
