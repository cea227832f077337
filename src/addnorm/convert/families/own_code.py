"""GTE and Jina embeddings v3 as their authors published them: with code of their own.

That code is never run: the model is the one that transformers has under another `model_type`, under
which it is written.
"""

from dataclasses import replace
from warnings import warn

from addnorm.convert.core import keys
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import EncoderHeads
from addnorm.convert.families.bert import HEADS
from addnorm.convert.families.rotary_bert import (
    GTE,
    GTE_PARTS,
    JINA_PARTS,
    JINA_V3,
    WITHOUT_POOLER,
    rotary_table,
)
from addnorm.errors import IgnoredSettings, InputError
from addnorm.nn.positions import LinearScaling, RotaryConfig


def _written_as(model_type: str) -> keys.Entry:
    def write(spec: ModelSpec) -> Json:
        raise InputError(f"a model published with code of its own is written as {model_type}")

    return keys.Computed(lambda settings: {}, write)


def _read_ntk(settings: Settings) -> keys.Fields:
    """Frequencies `(θ s)^(-2i/d) / s^(2/d)`: a larger base, and linear scaling.

    Zhang et al. 2024, §2.1; `mixed_b` would lower each pair by a factor of its own.
    """
    theta, table = settings.get("rope_theta", 10_000.0), settings.table("rope_scaling")
    if table is None:
        return {"position": RotaryConfig(theta=theta)}
    table.expect("type", "ntk")
    table.expect("mixed_b", None)
    factor = table.get("factor", 1.0)
    table.check_all_read()
    width = settings.required_int("hidden_size") // settings.required_int("num_attention_heads")
    scaling = LinearScaling(factor=factor ** (2 / width))
    return {"position": RotaryConfig(theta=theta * factor, scaling=scaling)}


def _read_rotary(settings: Settings) -> keys.Fields:
    settings.expect("position_embedding_type", "rotary")
    return {"position": RotaryConfig(theta=settings.get("rotary_emb_base", 10_000.0))}


def _without_adapters(settings: Settings) -> keys.Fields:
    """Say that the adapters of tasks are left aside, as theirs are where no task is named."""
    if tasks := settings.string_list("lora_adaptations"):
        warn(
            f"{settings.where}: the adapters of lora_adaptations ({', '.join(tasks)}) are left "
            "aside: the model is the one that is used where no task is named",
            IgnoredSettings,
            stacklevel=2,
        )
    return {}


GTE_OWN = replace(
    GTE,
    model_type="new",
    config=rotary_table(
        EncoderHeads("New", WITHOUT_POOLER),
        *GTE_PARTS,
        keys.Computed(_read_ntk),
        _written_as("gte"),
    ),
    # The published multilingual model also weighs single tokens.
    left_aside=(*GTE.left_aside, "classifier"),
)
"""The folders `gte-*-v1.5` and `gte-multilingual-*`."""

JINA_V3_OWN = replace(
    JINA_V3,
    published_as={"model_type": "xlm-roberta", "position_embedding_type": "rotary"},
    config=rotary_table(
        EncoderHeads("XLMRoberta", HEADS),
        *JINA_PARTS,
        keys.Computed(_read_rotary),
        keys.Computed(_without_adapters),
        keys.Fixed("emb_pooler truncate_dim", None),
        keys.Ignored("lora_alpha lora_dropout_p lora_main_params_trainable lora_rank"),
        keys.Ignored("load_trained_adapters matryoshka_dimensions task_instructions"),
        keys.Ignored("use_flash_attn"),
        _written_as("jina_embeddings_v3"),
    ),
    renames=(*JINA_V3.renames, (r"\.parametrizations\.weight\.original$", ".weight")),
    ignored=(*JINA_V3.ignored, r".*\.parametrizations\.weight\.0\.lora_[AB]"),
)
"""The folder `jina-embeddings-v3`."""
