"""The linear layers on a single row in a traced graph, each replaced by the fastest product.

Which is fastest for weights of a type is measured (`tuning.row_products`). Layers on the same row,
as of queries, keys and values, are one call of our operator.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from addnorm.kernels.cached_attention import OPERATOR
from addnorm.kernels.row_products import NAMES, OPERATORS
from addnorm.nn.linear import onednn
from addnorm.quantize.int4 import Int4Matrix
from addnorm.quantize.int8 import Int8Matrix
from addnorm.tuning.row_products import RowProduct, row_product

LARGE = 2**20
"""Smaller matrices stay loops, which the compiler fuses with the operations around them."""

LARGE_FOR_OPERATORS = 2**18
"""The same limit where our operator is the fastest product."""

RESTORING = ["__and__", "__rshift__", "add", "flatten", "flatten", "mul", "stack", "unflatten"]
"""The operations of `Int4Matrix.dequantized`, without those of `SHAPING`."""

SHAPING = {"alias", "to", "slice", "unsqueeze"}
"""Operations that change no number of a matrix that has the shape of the layer's weight."""

aten = torch.ops.aten
_linear = aten.linear.default
_onednn = onednn()


@dataclass(frozen=True)
class Layer:
    """A linear layer."""

    linear: fx.Node
    """The node of the product."""
    node: fx.Node
    """The node with the layer's value: the same, unless it is scaled."""
    weights: list[fx.Node]
    """The matrix, or its integers and their scales: inputs of the graph."""
    bias: fx.Node | None
    size: int
    """The number of weights."""

    @property
    def x(self) -> fx.Node:
        return self.linear.all_input_nodes[0]

    @property
    def dtype(self) -> torch.dtype:
        return self.weights[0].meta["val"].dtype


def place_row_products(program: torch.export.ExportedProgram, module: nn.Module) -> None:
    """Replace each large linear layer on a single row by the fastest product for its weight.

    The others become loops, or oneDNN's products of several rows. Only weights that nothing else
    reads are packed: a tied table would be in memory twice.
    """
    graph = program.graph_module.graph
    for layers in _on_the_same_row(program, module):
        kind = row_product(layers[0].dtype)
        if kind == "operator":
            if sum(layer.size for layer in layers) >= LARGE_FOR_OPERATORS:
                _place_operator(graph, layers)
            continue
        for layer in layers:
            only_linear = all(user.target is _linear for user in layer.weights[0].users)
            if kind == "loop" or layer.size < LARGE or (kind == "onednn" and not only_linear):
                continue
            with graph.inserting_before(layer.linear):
                _replace(layer, _product(graph, kind, layer))
    graph.eliminate_dead_code()
    program.graph_module.recompile()


def dtypes_of(module: nn.Module) -> list[torch.dtype]:
    """The dtypes of a module's large weights for which there is a choice of products."""
    tensors = (*module.parameters(), *module.buffers())
    large = {x.dtype for x in tensors if 2 * x.numel() >= LARGE_FOR_OPERATORS}  # or two in a byte
    return [dtype for dtype in OPERATORS if dtype in large]


def tensor_names(program: torch.export.ExportedProgram) -> dict[str, str]:
    """The name of each parameter and buffer that a graph has as an input."""
    signature = program.graph_signature
    return {**signature.inputs_to_parameters, **signature.inputs_to_buffers}


def operators_of(program: torch.export.ExportedProgram) -> list[str]:
    """The names of our own operators that a graph calls."""
    names = {name: getattr(torch.ops.addnorm, name).default for name in (*NAMES, OPERATOR)}
    calls = {node.target for node in program.graph.nodes}
    return sorted(name for name, target in names.items() if target in calls)


def _on_the_same_row(program: torch.export.ExportedProgram, module: nn.Module) -> list[list[Layer]]:
    """Layers for one call of an operator: of one input and type, all with biases or none.

    A layer with a bias that the graph computes is alone: it may come after the first of the others.
    """
    together: dict[object, list[Layer]] = {}
    for layer in linear_layers(program, module, single=True):
        computed = layer.bias is not None and layer.bias.op != "placeholder"
        key = layer.linear if computed else (layer.x, layer.dtype, layer.bias is None)
        together.setdefault(key, []).append(layer)
    return [*together.values()]


def linear_layers(
    program: torch.export.ExportedProgram, module: nn.Module, *, single: bool
) -> Iterator[Layer]:
    """The linear layers of a graph on a single row, or on several."""
    names = tensor_names(program)
    for node in program.graph.find_nodes(op="call_function", target=_linear):
        x, weight, *bias = node.args
        if is_row(x.meta["val"]) != single:
            continue
        size = weight.meta["val"].numel()
        if weight.op == "placeholder":
            yield Layer(node, node, [weight], bias[0] if bias else None, size)
        elif not bias and (integers := _integers(node, weight, names, module)) is not None:
            yield Layer(node, integers[0], [*integers[1:]], None, size)


def _integers(
    node: fx.Node, weight: fx.Node, names: Mapping[str, str], module: nn.Module
) -> tuple[fx.Node, fx.Node, fx.Node] | None:
    """The node that multiplies by an integer matrix, with the inputs for its values and scales.

    None for all else, as a matrix that is changed after it was restored. An int8 matrix is scaled
    after the product, int4 ones before it.
    """
    inputs, steps = _origin(weight, names)
    path = next(iter(inputs), "").rpartition(".")[0]
    matrix = module.get_submodule(path)
    if not isinstance(matrix, Int8Matrix | Int4Matrix):
        return None
    if weight.meta["val"].shape != (len(matrix.values), matrix.d_in):
        return None
    if isinstance(matrix, Int8Matrix) and not steps and len(node.users) == 1:
        [node] = node.users
        if node.target is not aten.mul.Tensor or not isinstance(node.args[1], fx.Node):
            return None
        scales, steps = _origin(node.args[1], names)
        inputs |= scales
        if steps:
            return None
    elif steps != RESTORING:
        return None
    values, scale = (inputs.get(f"{path}.{name}") for name in ("values", "scale"))
    if values is None or scale is None or len(inputs) != 2:
        return None
    return node, values, scale


def _origin(node: fx.Node, names: Mapping[str, str]) -> tuple[dict[str, fx.Node], list[str]]:
    """The inputs from which a node is computed, by tensor name, and the operations on the way."""
    remaining, seen = [node], {node}
    while remaining:
        more = [other for other in remaining.pop().all_input_nodes if other not in seen]
        seen.update(more)
        remaining += more
    inputs = {names.get(each.name, each.name): each for each in seen if each.op == "placeholder"}
    targets = [each.target for each in seen if each.op != "placeholder"]
    steps = [getattr(target, "__name__", str(target)).partition(".")[0] for target in targets]
    return inputs, sorted(step for step in steps if step not in SHAPING)


def is_row(x: Tensor) -> bool:
    """Whether a tensor has a single row and no symbolic size."""
    return all(type(size) is int and size == 1 for size in x.shape[:-1])


def _row(graph: fx.Graph, x: fx.Node) -> fx.Node:
    return graph.call_function(aten.view.default, (x, [1, x.meta["val"].shape[-1]]))


def _replace(layer: Layer, y: fx.Node) -> None:
    """Let a row be the layer's value, in its shape."""
    y = y.graph.call_function(aten.view.default, (y, [*layer.node.meta["val"].shape]))
    layer.node.replace_all_uses_with(y)


def _place_operator(graph: fx.Graph, layers: Sequence[Layer]) -> None:
    operator = getattr(torch.ops.addnorm, OPERATORS[layers[0].dtype]).default
    matrices = [[*parts] for parts in zip(*(layer.weights for layer in layers), strict=True)]
    biases = [layer.bias for layer in layers if layer.bias is not None]
    with graph.inserting_before(layers[0].linear):
        row = _row(graph, layers[0].x)
        results = graph.call_function(operator, (row, *matrices, biases or None))
        begin = 0
        for layer in layers:
            end = begin + layer.node.meta["val"].shape[-1]
            _replace(layer, graph.call_function(aten.slice.Tensor, (results, 1, begin, end)))
            begin = end


def _product(graph: fx.Graph, kind: RowProduct, layer: Layer) -> fx.Node:
    [weight], bias, row = layer.weights, layer.bias, _row(graph, layer.x)
    if kind == "onednn":
        return graph.call_function(_onednn.default, (row, weight, bias, "none", [], ""))
    y = graph.call_function(aten.mm.default, (row, graph.call_function(aten.t.default, (weight,))))
    return y if bias is None else graph.call_function(aten.add.Tensor, (y, bias))
