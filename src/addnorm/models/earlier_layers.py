"""The rules for layers that read keys or values of an earlier layer."""

from collections.abc import Sequence

from addnorm.errors import InputError
from addnorm.models.layers import LayerParts
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.blocks import MixerConfig
from addnorm.parts import kind_of


def reads_of(layers: Sequence[LayerParts]) -> dict[int, int]:
    """The earlier layer that each layer reads, by layer number, for the layers that read one."""
    reads = {
        i: layer.attention.reads(i)
        for i, layer in enumerate(layers)
        if isinstance(layer.attention, AttentionConfig)
    }
    return {i: read for i, read in reads.items() if read is not None}


def check_reads(layers: Sequence[LayerParts], d_model: int) -> None:
    """Raise `ValueError` for the first layer that cannot read its earlier layer."""
    for i, read in reads_of(layers).items():
        if problem := _problem(layers, i, read, d_model):
            raise ValueError(f"layer {i}: {problem}")


def _problem(layers: Sequence[LayerParts], i: int, read: int, d_model: int) -> str | None:
    """Why layer `i` cannot read layer `read`; None if it can."""
    reader = layers[i].attention
    assert isinstance(reader, AttentionConfig)
    back = reader.kv_layers_back
    if read < 0:
        return (
            f"kv_layers_back = {back} is before the first layer, which has keys and values of its "
            "own: give kv_layers_back in layer_pattern, to later layers alone"
        )
    source = layers[read].attention
    if not isinstance(source, AttentionConfig) or source.kv_layers_back is not None:
        why = f"kv_layers_back = {back} needs an earlier layer with keys and values of its own"
        why = "value_residual needs the values of the first layer" if back is None else why
        return f"{why}, and layer {read} is {_described(source)}: give it plain attention"
    ours, theirs = _key_heads(reader, d_model), _key_heads(source, d_model)
    if ours != theirs:
        return (
            f"it reads {theirs} of layer {read}, and has {ours}: give both the same n_kv_heads "
            "and d_head"
        )
    for name, own, other in (
        ("pattern", reader.pattern, source.pattern),
        ("position", layers[i].position, layers[read].position),
    ):
        if back is not None and own != other:
            return f"it reads the keys of layer {read}, whose {name} is another: give both the same"
    return None


def _described(mixer: MixerConfig) -> str:
    if isinstance(mixer, AttentionConfig):
        return "attention that reads another one"
    return f"{kind_of(mixer)!r}"


def _key_heads(attention: AttentionConfig, d_model: int) -> str:
    heads = attention.heads(d_model)
    return f"{heads.n_kv_heads} heads of width {heads.d_head}"


def check_chosen(layers: Sequence[LayerParts], chosen: Sequence[int]) -> None:
    """Raise `InputError` if a chosen layer would no longer read the same earlier layer."""
    places = {old: new for new, old in enumerate(chosen)}
    for i, read in reads_of(layers).items():
        if i not in places:
            continue
        attention = layers[i].attention
        assert isinstance(attention, AttentionConfig)
        if read not in places or attention.reads(places[i]) != places[read]:
            raise InputError(
                f"layer {i} reads the keys or values of layer {read}, and would no longer: choose "
                "both of them, as far apart as now"
            )
