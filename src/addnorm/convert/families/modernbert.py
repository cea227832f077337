"""ModernBERT: rotary positions, gated feed-forward, and alternating local and global attention."""

from collections.abc import Iterator, Sequence

from addnorm.convert.core.activations import activation_name, activation_of
from addnorm.convert.core.family import Family, ModelSpec, attention_of, encoder, eps_of, layers
from addnorm.convert.core.maps import Concatenated, Renamed, TensorMap, weight_and_bias
from addnorm.convert.core.rotary import rotary_of, write_rotary
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import (
    Task,
    architecture,
    label_keys,
    labels_for,
    problem_of,
    task_of,
)
from addnorm.convert.core.windows import (
    FULL,
    SLIDING,
    read_layer_types,
    shortest_cycle,
    write_windows,
)
from addnorm.errors import InputError
from addnorm.models import EncoderConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import AttentionConfig, FullPatternConfig, WindowPatternConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    HeadConfig,
    HiddenHeadConfig,
    TaggingHeadConfig,
    TokenHeadConfig,
    TransformConfig,
)
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import PositionConfig, RotaryConfig
from addnorm.nn.residuals import PreNormConfig
from addnorm.parts import kind_of

GLOBAL, LOCAL = 160_000.0, 10_000.0
"""The rotary bases of global and local layers."""

POOLINGS = {"cls": "first", "mean": "mean"}


def _read(settings: Settings) -> ModelSpec:
    _pass_over(settings)
    norm = LayerNormConfig(
        eps=settings.get("norm_eps", 1e-5), bias=settings.get("norm_bias", False)
    )
    n_layers = settings.required_int("num_hidden_layers")
    everywhere, cycle = _layers_of(settings, n_layers)
    task = task_of(settings, "ModernBert")
    assert isinstance(everywhere.position, RotaryConfig)
    model = EncoderConfig(
        d_model=settings.required_int("hidden_size"),
        n_layers=n_layers,
        max_len=settings.required_int("max_position_embeddings"),
        position=everywhere.position,
        attention=AttentionConfig(
            n_heads=settings.required_int("num_attention_heads"),
            bias=settings.get("attention_bias", False),
            dropout=settings.get("attention_dropout", 0.0),
            pattern=everywhere.pattern or FullPatternConfig(),
        ),
        feedforward=GatedFeedForwardConfig(
            d_ff=settings.required_int("intermediate_size"),
            activation=activation_of(settings, "hidden_activation", "gelu"),
            bias=settings.get("mlp_bias", False),
            dropout=settings.get("mlp_dropout", 0.0),
        ),
        norm=norm,
        residual=PreNormConfig(first=False),
        embedding=EmbeddingConfig(scale="one", norm=norm),
        head=_head(settings, task, norm),
        dropout=settings.get("embedding_dropout", 0.0),
        init="bert",
        layer_pattern=cycle,
    )
    return ModelSpec(
        model=model,
        vocab_size=settings.required_int("vocab_size"),
        labels=labels_for(settings, task),
    )


def _pass_over(settings: Settings) -> None:
    """Ignore keys about training and kernels, and unused BERT keys."""
    for key in ("initializer_cutoff_factor", "layer_norm_eps"):
        settings.optional_float(key)
    for key in ("deterministic_flash_attn", "sparse_prediction", "repad_logits_with_grad"):
        settings.get(key, False)
    settings.get("reference_compile", False)
    settings.get("sparse_pred_ignore_index", -100)
    settings.get("position_embedding_type", "absolute")


def _layers_of(settings: Settings, n_layers: int) -> tuple[LayerConfig, tuple[LayerConfig, ...]]:
    """The settings shared by all layers, and the repeating layer pattern."""
    every = settings.optional_int("global_attn_every_n_layers", missing=3) or 3
    types = read_layer_types(settings, n_layers) or [
        SLIDING if i % every else FULL for i in range(n_layers)
    ]
    settings.expect("rope_scaling", None)
    tables = settings.table("rope_parameters") or Settings({}, settings.where)
    kinds = {
        FULL: LayerConfig(
            pattern=FullPatternConfig(),
            position=_rotary(settings, tables, FULL, settings.get("global_rope_theta", GLOBAL)),
        ),
        SLIDING: LayerConfig(
            # `local_attention` counts both sides together, without the token itself.
            pattern=WindowPatternConfig(size=settings.get("local_attention", 128) // 2 + 1),
            position=_rotary(settings, tables, SLIDING, settings.get("local_rope_theta", LOCAL)),
        ),
    }
    tables.check_all_read()
    if len(set(types)) == 1:
        return kinds[types[0]], ()
    by_type = {FULL: LayerConfig(), SLIDING: kinds[SLIDING]}
    return kinds[FULL], shortest_cycle([by_type[kind] for kind in types])


def _rotary(settings: Settings, tables: Settings, kind: str, theta: float) -> RotaryConfig:
    table = tables.table(kind) or Settings({}, settings.where)
    table.expect("truncate", True)  # which transformers reads outside of the tables alone
    return rotary_of(table, settings, theta)


def _head(settings: Settings, task: Task, norm: LayerNormConfig) -> HeadConfig:
    transform = TransformConfig(
        activation=activation_of(settings, "classifier_activation", "gelu"),
        bias=settings.get("classifier_bias", False),
        norm=norm,
    )
    tied = settings.get("tie_word_embeddings", True)
    bias = settings.get("decoder_bias", True)
    pooling = settings.choose("classifier_pooling", POOLINGS, "cls")
    dropout = settings.get("classifier_dropout", 0.0)
    match task:
        case "tokens":
            return TokenHeadConfig(tied=tied, bias=bias, transform=transform)
        case "sequence":
            return ClassificationHeadConfig(
                problem=problem_of(settings),
                pooling="mean" if pooling == "mean" else "first",
                transform=transform,
                dropout=dropout,
            )
        case "tags":
            return TaggingHeadConfig(transform=transform, dropout=dropout)
        case "body":
            return HiddenHeadConfig()


def _write(spec: ModelSpec) -> Json:
    model = encoder(spec)
    attention, feedforward = attention_of(model), _gated(model)
    types, size = write_windows(model)
    full, sliding = write_rotary(model.position), write_rotary(_local(model, types))
    return {
        "model_type": "modernbert",
        "architectures": [architecture(model.head, "ModernBert")],
        "vocab_size": spec.vocab_size,
        "hidden_size": model.d_model,
        "num_hidden_layers": model.n_layers,
        "num_attention_heads": attention.n_heads,
        "intermediate_size": feedforward.d_ff or 8 * model.d_model // 3,
        "hidden_activation": activation_name(feedforward.activation),
        "max_position_embeddings": model.max_len,
        "norm_eps": eps_of(model.norm, 1e-5),
        "norm_bias": isinstance(model.norm, LayerNormConfig) and model.norm.bias,
        "attention_bias": attention.bias,
        "attention_dropout": attention.dropout,
        "mlp_bias": feedforward.bias,
        "mlp_dropout": feedforward.dropout,
        "embedding_dropout": model.dropout,
        "layer_types": types,
        "local_attention": 128 if size is None else 2 * (size - 1),
        "rope_parameters": {FULL: full, SLIDING: sliding},
        "global_rope_theta": full["rope_theta"],
        "local_rope_theta": sliding["rope_theta"],
        # The default ids belong to a particular vocabulary.
        **dict.fromkeys(f"{kind}_token_id" for kind in ("bos", "eos", "pad", "cls", "sep")),
        **_every(types),
        **_written_head(model.head),
        **(label_keys(spec.labels, model.head) if spec.labels else {}),
    }


def _gated(model: EncoderConfig) -> GatedFeedForwardConfig:
    if not isinstance(model.feedforward, GatedFeedForwardConfig):
        raise InputError(f"modernbert has no {kind_of(model.feedforward)} feed-forward")
    return model.feedforward


def _local(model: EncoderConfig, types: Sequence[str]) -> PositionConfig:
    """The positions of sliding-window layers."""
    for layer, kind in zip(model.layers(model.n_layers), types, strict=True):
        if kind == SLIDING:
            return layer.position
    return RotaryConfig(theta=LOCAL)


def _every(types: Sequence[str]) -> Json:
    """The older key for global layers, if it can express the layer types."""
    n = types.index(FULL, 1) if FULL in types[1:] else len(types)
    regular = all((kind == FULL) == (i % n == 0) for i, kind in enumerate(types))
    return {"global_attn_every_n_layers": n} if regular else {}


def _written_head(head: HeadConfig) -> Json:
    tree: Json = {}
    if not isinstance(head, TokenHeadConfig | ClassificationHeadConfig | TaggingHeadConfig):
        return tree
    if head.transform is not None:
        name = head.transform.activation
        tree["classifier_activation"] = name if name == "tanh" else activation_name(name)
        tree["classifier_bias"] = head.transform.bias
    if isinstance(head, TokenHeadConfig):
        return tree | {"decoder_bias": head.bias, "tie_word_embeddings": head.tied}
    if isinstance(head, ClassificationHeadConfig):
        tree["classifier_pooling"] = "cls" if head.pooling == "first" else head.pooling
    return tree | {"classifier_dropout": head.dropout}


def _maps(spec: ModelSpec) -> Iterator[TensorMap]:
    model = encoder(spec)
    norm = isinstance(model.norm, LayerNormConfig) and model.norm.bias
    yield Renamed("embed.tokens.weight", "model.embeddings.tok_embeddings.weight")
    yield from weight_and_bias("embed.norm", "model.embeddings.norm", bias=norm)
    yield from layers(model.n_layers, lambda i: _layer(i, model, bias=norm))
    yield from weight_and_bias("stack.norm", "model.final_norm", bias=norm)
    head = model.head
    if not isinstance(head, TokenHeadConfig | ClassificationHeadConfig | TaggingHeadConfig):
        return
    if head.transform is not None:
        yield from weight_and_bias("head.transform.proj", "head.dense", bias=head.transform.bias)
        yield from weight_and_bias("head.transform.norm", "head.norm", bias=norm)
    if not isinstance(head, TokenHeadConfig):
        yield from weight_and_bias("head.proj", "classifier")
        return
    if head.bias:
        yield Renamed("head.bias", "decoder.bias")
    if not head.tied:
        yield Renamed("head.weight", "decoder.weight")


def _layer(i: int, model: EncoderConfig, *, bias: bool) -> Iterator[TensorMap]:
    ours, theirs = f"stack.blocks.{i}", f"model.layers.{i}"
    attention, feedforward = attention_of(model), _gated(model)
    if i:
        yield from weight_and_bias(
            f"{ours}.attention_residual.norm", f"{theirs}.attn_norm", bias=bias
        )
    for kind in ("weight", "bias") if attention.bias else ("weight",):
        parts = tuple(f"{ours}.attention.{part}_proj.{kind}" for part in "qkv")
        yield Concatenated(parts, f"{theirs}.attn.Wqkv.{kind}", (model.d_model,) * 3)
    yield from weight_and_bias(
        f"{ours}.attention.out_proj", f"{theirs}.attn.Wo", bias=attention.bias
    )
    yield from weight_and_bias(f"{ours}.feedforward_residual.norm", f"{theirs}.mlp_norm", bias=bias)
    d_ff = feedforward.d_ff or 8 * model.d_model // 3
    for kind in ("weight", "bias") if feedforward.bias else ("weight",):
        # The activation applies to the first half.
        parts = tuple(f"{ours}.feedforward.{part}_proj.{kind}" for part in ("gate", "up"))
        yield Concatenated(parts, f"{theirs}.mlp.Wi.{kind}", (d_ff, d_ff))
    yield from weight_and_bias(
        f"{ours}.feedforward.down_proj", f"{theirs}.mlp.Wo", bias=feedforward.bias
    )


MODERNBERT = Family(
    model_types=("modernbert",),
    read=_read,
    write=_write,
    maps=_maps,
    prefix="model.",
    ties=(("decoder.weight", "model.embeddings.tok_embeddings.weight"),),
)
"""Warner et al. 2024."""
