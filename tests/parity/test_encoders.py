"""Every encoder of text against transformers, over random configurations and all heads."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.parity.encoders import check_encoder

from addnorm.convert.core.settings import Settings
from addnorm.convert.folder import read_config
from addnorm.convert.registry import family_of
from addnorm.errors import InputError

pytestmark = pytest.mark.parity

Draw = random.Random
Keys = dict[str, Any]


def sizes(draw: Draw) -> Keys:
    """Sizes, activations and norms under BERT's names."""
    n_heads = draw.choice((1, 2, 3))
    return {
        "vocab_size": draw.randint(40, 101),
        "hidden_size": n_heads * draw.choice((2, 6, 7, 8)),
        "num_attention_heads": n_heads,
        "num_hidden_layers": draw.randint(1, 3),
        "intermediate_size": draw.randint(5, 30),
        "max_position_embeddings": draw.randint(20, 30),
        "type_vocab_size": draw.randint(1, 3),
        "hidden_act": draw.choice(("gelu", "gelu_new", "relu")),
        "layer_norm_eps": draw.choice((1e-12, 1e-5, 1e-3)),
        "tie_word_embeddings": draw.random() < 0.7,
        "id2label": {i: f"label {i}" for i in range(draw.randint(2, 4))},
    }


def without_types(draw: Draw) -> Keys:
    return {key: value for key, value in sizes(draw).items() if key != "type_vocab_size"}


def distilbert(draw: Draw) -> Keys:
    tree = sizes(draw)
    return {
        "vocab_size": tree["vocab_size"],
        "dim": tree["hidden_size"],
        "n_heads": tree["num_attention_heads"],
        "n_layers": tree["num_hidden_layers"],
        "hidden_dim": tree["intermediate_size"],
        "max_position_embeddings": tree["max_position_embeddings"],
        "activation": draw.choice(("gelu", "relu")),
        "tie_word_embeddings": tree["tie_word_embeddings"],
        "sinusoidal_pos_embds": draw.random() < 0.3,
        "id2label": tree["id2label"],
    }


def narrow(draw: Draw) -> Keys:
    tree = sizes(draw)
    width = draw.choice((4, 25, tree["hidden_size"]))
    return tree | {"embedding_size": width}


def albert(draw: Draw) -> Keys:
    tree = narrow(draw) | {"num_hidden_layers": draw.randint(1, 5)}
    return tree | {"num_hidden_groups": draw.randint(1, tree["num_hidden_layers"])}


def deberta(draw: Draw) -> Keys:
    tree = sizes(draw) | {"type_vocab_size": draw.choice((0, 0, 2))}
    if not tree["type_vocab_size"]:
        tree["embedding_size"] = draw.choice((5, tree["hidden_size"]))
    return tree | {
        "relative_attention": True,
        "position_biased_input": False,
        "max_relative_positions": draw.choice((-1, 4, 9)),
        "position_buckets": draw.choice((-1, 4, 5)),
        "pos_att_type": draw.choice(("p2c|c2p", "c2p", ["p2c"], ["c2p", "p2c"])),
        "share_att_key": draw.random() < 0.5,
        "norm_rel_ebd": draw.choice(("none", "layer_norm")),
        "pooler_hidden_act": draw.choice(("gelu", "tanh")),
        "conv_kernel_size": draw.choice((0, 0, 1, 3, 5)),
        "conv_act": draw.choice(("gelu", "tanh")),
    }


def rotary(draw: Draw) -> Keys:
    """A base, at times with a scaling."""
    linear = draw.choice(({"rope_type": "default"}, {"rope_type": "linear", "factor": 2.0}))
    return {"rope_parameters": {**linear, "rope_theta": draw.choice((50.0, 300.0, 1e4))}}


def rotary_bert(draw: Draw) -> Keys:
    tree = sizes(draw) | rotary(draw) | {"pad_token_id": 1}
    return tree | {"hidden_size": tree["num_attention_heads"] * draw.choice((2, 6, 8))}


def gte(draw: Draw) -> Keys:
    return rotary_bert(draw) | {"type_vocab_size": draw.randint(0, 3)}


def nomic_bert(draw: Draw) -> Keys:
    return rotary_bert(draw) | {"head_dim": draw.choice((4, 6))}


def eurobert(draw: Draw) -> Keys:
    tree = without_types(draw)
    n_kv = draw.choice((1, 2))
    tree["num_attention_heads"] = n_kv * draw.choice((1, 2))
    del tree["layer_norm_eps"]
    return tree | {
        "hidden_size": tree["num_attention_heads"] * draw.choice((4, 6)),
        "num_key_value_heads": n_kv,
        "rms_norm_eps": draw.choice((1e-5, 1e-3)),
        "classifier_pooling": draw.choice(("bos", "mean", "late")),
        "attention_bias": draw.random() < 0.5,
        "mlp_bias": draw.random() < 0.5,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "mask_token_id": 3,
        **rotary(draw),
    }


LABELS = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
ALL = (*LABELS, "ForQuestionAnswering")


@dataclass(frozen=True)
class Encoder:
    """An encoder of transformers: the stem of its classes, and a random configuration.

    `body` is the output of its model without a head; `pad` is the token of padding.
    """

    stem: str
    draw: Callable[[Draw], Keys]
    body: str = "last_hidden_state"
    pad: int = 0
    endings: tuple[str, ...] = ALL

    def config(self, seed: int, ending: str) -> Any:
        """A random configuration of transformers."""
        tree = self.draw(random.Random(f"{self.stem} {ending} {seed}"))
        return getattr(transformers, f"{self.stem}Config")(**tree)

    def check(self, seed: int, ending: str, folder: Path) -> None:
        """Compare a random model with one head."""
        config = self.config(seed, ending)
        picks = {"Model": self.body, "ForQuestionAnswering": "spans"}
        if ending == "ForQuestionAnswering":
            config.num_labels = 2
        check_encoder(
            f"{self.stem}{ending}",
            config,
            folder,
            pick=picks.get(ending, "logits"),
            pad=self.pad,
            types=getattr(config, "type_vocab_size", None) or 0,
        )


ENCODERS = {
    "bert": Encoder("Bert", sizes, "pooler_output"),
    "roberta": Encoder("Roberta", sizes, "pooler_output", pad=1),
    "distilbert": Encoder("DistilBert", distilbert),
    "electra": Encoder("Electra", narrow),
    "mpnet": Encoder("MPNet", without_types, "pooler_output", pad=1),
    "deberta": Encoder("DebertaV2", deberta),
    "albert": Encoder("Albert", albert, "pooler_output"),
    "jina": Encoder("JinaEmbeddingsV3", rotary_bert, "pooler_output", pad=1),
    "gte": Encoder("Gte", gte, pad=1, endings=LABELS),
    "nomic": Encoder("NomicBert", nomic_bert, pad=1, endings=LABELS),
    "eurobert": Encoder("EuroBert", eurobert, endings=LABELS),
}

REFUSED: dict[str, list[tuple[Keys, str]]] = {
    "distilbert": [
        ({"architectures": ["DistilBertForMultipleChoice"]}, "Valid: DistilBertModel"),
        ({"activation": "gulu"}, "Did you mean 'gelu'"),
        ({"type_vocab_size": 2}, "type_vocab_size = 2 is not supported"),
        ({"n_heads": 500}, "does not divide into n_heads = 500"),
    ],
    "electra": [
        ({"architectures": ["ElectraForMultipleChoice"]}, "Valid: ElectraModel"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"something_new": 3}, "something_new = 3 is not supported"),
    ],
    "mpnet": [
        ({"architectures": ["MPNetForMultipleChoice"]}, "Valid: MPNetModel"),
        ({"relative_attention_num_buckets": 16}, "relative_attention_num_buckets = 16"),
        ({"pad_token_id": 0}, "pad_token_id = 0 is not supported, only 1"),
    ],
    "deberta": [
        ({"conv_kernel_size": 4}, "conv_kernel_size = 4 .* an odd number"),
        ({"conv_kernel_size": 3, "conv_groups": 2}, "conv_groups = 2"),
        ({"relative_attention": False}, "relative_attention = False .* must be true"),
        ({"relative_attention": None}, "relative_attention = None .* must be true"),
        ({"position_biased_input": True}, "position_biased_input = True .* must be false"),
        ({"position_biased_input": None}, "position_biased_input = None .* must be false"),
        ({"pos_att_type": "p2p"}, "pos_att_type = 'p2p' .* c2p, p2c, or both"),
        ({"pos_att_type": 3}, "pos_att_type = 3 .* c2p, p2c, or both"),
        ({"norm_rel_ebd": "batch_norm"}, "norm_rel_ebd = 'batch_norm'"),
        ({"position_buckets": 3}, "position_buckets = 3 .* from 4 to"),
        ({"legacy": False}, "legacy = False"),
        ({"pooler_hidden_size": 3}, "pooler_hidden_size = 3"),
        ({"embedding_size": 5, "type_vocab_size": 2}, "embedding_size = 5"),
    ],
    "albert": [
        ({"num_hidden_groups": 0}, "num_hidden_groups = 0 .* from 1 to"),
        ({"num_hidden_groups": 99}, "num_hidden_groups = 99 .* from 1 to"),
        ({"inner_group_num": 2}, "inner_group_num = 2 is not supported, only 1"),
        ({"something_new": 3}, "something_new = 3 is not supported"),
    ],
    "jina": [
        ({"position_embedding_type": "rotary"}, "position_embedding_type"),
        ({"lora_adaptations": ["classification"]}, "lora_adaptations"),
    ],
    "gte": [
        ({"hidden_act": "gulu"}, "Did you mean 'gelu'"),
        ({"layer_norm_type": "rms_norm"}, "layer_norm_type = 'rms_norm'"),
        ({"architectures": ["GteForQuestionAnswering"]}, "Valid: GteModel"),
    ],
    "nomic": [
        ({"rotary_emb_fraction": 0.5}, "rotary_emb_fraction = 0.5"),
        ({"qkv_proj_bias": True}, "qkv_proj_bias = True"),
        ({"rotary_scaling_factor": 2}, "rotary_scaling_factor = 2"),
        ({"num_local_experts": 8}, "num_local_experts = 8"),
    ],
    "eurobert": [
        ({"classifier_pooling": "max"}, "classifier_pooling = 'max' is not supported"),
        ({"hidden_act": "gulu"}, "Did you mean 'gelu'"),
        ({"something_new": 3}, "something_new = 3 is not supported"),
    ],
}


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [(name, *case) for name, cases in REFUSED.items() for case in cases],
)
def test_unsupported_settings_are_named(name: str, changes: Keys, expected: str) -> None:
    architectures = {"architectures": [f"{ENCODERS[name].stem}ForSequenceClassification"]}
    tree = ENCODERS[name].config(0, "Model").to_dict() | architectures | changes
    settings = Settings(tree)
    with pytest.raises(InputError, match=expected):
        read_config(family_of(settings), settings)


HEADS = [(name, ending) for name, each in ENCODERS.items() for ending in ("Model", *each.endings)]


@pytest.mark.parametrize("ending", ["Model", *ALL])
def test_bert_is_equal_to_transformers(ending: str, tmp_path: Path) -> None:
    ENCODERS["bert"].check(0, ending, tmp_path)


@pytest.mark.sampled(2)
@pytest.mark.long
@pytest.mark.parametrize(("name", "ending"), HEADS)
def test_an_encoder_is_equal_to_transformers(name: str, ending: str, tmp_path: Path) -> None:
    ENCODERS[name].check(1, ending, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ending"), HEADS)
def test_thirty_configurations_of_an_encoder_are_equal(
    name: str, ending: str, tmp_path: Path
) -> None:
    for seed in range(2, 32):
        ENCODERS[name].check(seed, ending, tmp_path / str(seed))
