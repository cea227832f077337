"""Keys and names for mixtures with a shared expert, and for layers without experts."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import cycle_of
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.fused import Rule
from addnorm.convert.core.maps import ConcatenatedExperts, Renamed, TensorMap
from addnorm.convert.core.settings import Json, Settings
from addnorm.errors import InputError
from addnorm.models.layers import LayerConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.parts import kind_of

PARTS = ("gate_proj", "up_proj", "down_proj")


def expert_names(shared: str) -> dict[str, str]:
    """Their names for a layer's router, each expert, and the shared expert, `shared`."""
    return {
        "feedforward.router": "mlp.gate",
        "feedforward.shared_gate": f"mlp.{shared}_gate",
        **{f"feedforward.experts.*.{part}": f"mlp.experts.*.{part}" for part in PARTS},
        **{f"feedforward.shared.{part}": f"mlp.{shared}.{part}" for part in PARTS},
    }


def concatenated_experts(gate_up: str, down: str) -> Rule:
    """The maps of experts stored in two tensors: gate and up together, and down."""

    def maps(spec: ModelSpec) -> Iterator[TensorMap]:
        for i, layer in enumerate(spec.model.layers(spec.model.n_layers)):
            if not isinstance(layer.feedforward, MixtureOfExpertsConfig):
                continue
            for theirs, parts in ((gate_up, PARTS[:2]), (down, PARTS[2:])):
                names = (
                    f"stack.blocks.{i}.feedforward.experts.{e}.{part}.weight"
                    for e in range(layer.feedforward.n_experts)
                    for part in parts
                )
                name = theirs.replace("*", str(i))
                yield ConcatenatedExperts(tuple(names), name, len(parts))

    return maps


def corrections(spec: ModelSpec) -> Iterator[TensorMap]:
    """The maps of the corrections by which sigmoid routers choose."""
    for i in range(spec.model.n_layers):
        yield Renamed(
            f"stack.blocks.{i}.feedforward.router.correction",
            f"model.layers.{i}.mlp.gate.e_score_correction_bias",
        )


@dataclass(frozen=True)
class SharedExpertKeys:
    """`n_shared_experts`: the width of the shared expert, as a multiple of one expert's."""

    missing: int

    def read(self, settings: Settings) -> keys.Fields:
        n = settings.optional_int("n_shared_experts") or self.missing
        return {"feedforward.shared.d_ff": n * settings.required_int("moe_intermediate_size")}

    def write(self, spec: ModelSpec) -> Json:
        moe = mixture_of(spec.model.feedforward)
        width, shared = (getattr(part, "d_ff", None) for part in (moe.expert, moe.shared))
        if not width or not shared or shared % width:
            raise InputError(
                f"in this family the shared expert's width is a multiple of the others': "
                f"{shared} is not a multiple of {width}"
            )
        return {"n_shared_experts": shared // width}


def mixture_of(feedforward: object) -> MixtureOfExpertsConfig:
    """The given feed-forward, which must be a mixture of experts.

    Raises `InputError` for another feed-forward.
    """
    if not isinstance(feedforward, MixtureOfExpertsConfig):
        raise InputError(f"this family has no {kind_of(feedforward)} feed-forward")
    return feedforward


def with_dense_layers(settings: Settings, dense: Iterable[bool], bias: bool = False) -> keys.Fields:
    """The layer pattern in which the marked layers have a gated feed-forward without experts."""
    activation = settings.choose("hidden_act", keys.ACTIVATIONS, "silu")
    d_ff = settings.required_int("intermediate_size")
    gated = GatedFeedForwardConfig(d_ff=d_ff, activation=activation, bias=bias)
    return cycle_of(LayerConfig(feedforward=gated if is_dense else None) for is_dense in dense)


def dense_layers(spec: ModelSpec) -> tuple[list[int], int]:
    """The numbers of the layers without experts, and their width (an expert's by default)."""
    layers = spec.model.layers(spec.model.n_layers)
    moe = mixture_of(spec.model.feedforward)
    dense = {i: layer.feedforward for i, layer in enumerate(layers) if layer.feedforward != moe}
    d_model = spec.model.d_model
    widths = {
        part.d_ff or 8 * d_model // 3
        for part in dense.values()
        if isinstance(part, GatedFeedForwardConfig)
    }
    if len(widths) > 1:
        raise InputError(f"this family has dense layers of one width, not {sorted(widths)}")
    return [*dense], widths.pop() if widths else d_model


def first_layers_dense(missing: int) -> keys.Computed:
    """`first_k_dense_replace`: the first layers have no experts; `missing` is its default."""

    def read(settings: Settings) -> keys.Fields:
        n, first = settings.required_int("num_hidden_layers"), settings.get(FIRST, missing)
        return with_dense_layers(settings, [i < first for i in range(n)])

    def write(spec: ModelSpec) -> Json:
        dense, d_ff = dense_layers(spec)
        _check_first(dense)
        return {FIRST: len(dense), "intermediate_size": d_ff}

    return keys.Computed(read, write)


FIRST = "first_k_dense_replace"


def _check_first(dense: Sequence[int]) -> None:
    if [*dense] != [*range(len(dense))]:
        listed = ", ".join(map(str, dense))
        raise InputError(f"in this family only the first layers can lack experts, not {listed}")


def _read_some_dense(settings: Settings) -> keys.Fields:
    n, step = settings.required_int("num_hidden_layers"), settings.get("decoder_sparse_step", 1)
    listed = settings.tree.get("mlp_only_layers") or []
    settings.ignore("mlp_only_layers")
    if not isinstance(listed, list) or not all(isinstance(i, int) for i in listed):
        raise settings.refuse("mlp_only_layers", "it lists the numbers of layers")
    if step < 1:
        raise settings.refuse("decoder_sparse_step", "it must be at least 1")
    return with_dense_layers(settings, [i in listed or (i + 1) % step != 0 for i in range(n)])


def _write_some_dense(spec: ModelSpec) -> Json:
    dense, d_ff = dense_layers(spec)
    return {"mlp_only_layers": dense, "decoder_sparse_step": 1, "intermediate_size": d_ff}


SOME_LAYERS_DENSE = keys.Computed(_read_some_dense, _write_some_dense)
"""`mlp_only_layers` and `decoder_sparse_step`: layers without experts anywhere."""
