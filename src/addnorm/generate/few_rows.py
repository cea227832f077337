"""The linear layers on several rows in a traced graph, by our operators where the rows are few.

Up to how many rows ours are faster is measured (`tuning.row_products`); for more they call torch's
product. A matrix of floats is then in memory twice: as it is, and as oneDNN packs it.
"""

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import fx, nn

from addnorm.generate.single_row import (
    LARGE_FOR_OPERATORS,
    Layer,
    is_row,
    linear_layers,
    tensor_names,
)
from addnorm.kernels.row_products import OPERATORS
from addnorm.quantize.layers import DynamicRounding
from addnorm.tuning.row_products import few_rows, row_product

COPY = "_packed_for_onednn"
"""The end of the name of a matrix's packed copy."""

UNPACKED = 4
"""How many times as many rows are few for a matrix that has no packed copy (measured)."""

aten = torch.ops.aten
_linear = aten.linear.default


@contextmanager
def packed_copies(module: nn.Module) -> Generator[None]:
    """Temporarily register a buffer for the packed copy of each large matrix, still empty."""
    matrices = [
        (part, key + COPY, weight)
        for part in module.modules()
        for key, weight in part.named_parameters(recurse=False)
        if weight.dim() == 2 and _is_large(weight.numel()) and few_rows(weight.dtype)
    ]
    for part, key, weight in matrices:
        part.register_buffer(key, torch.empty_like(weight))
    try:
        yield
    finally:
        for part, key, _ in matrices:
            delattr(part, key)


def place_products_of_few_rows(program: torch.export.ExportedProgram, module: nn.Module) -> None:
    """Replace large linear layers on several rows, and products of integers, by our operators.

    Only weights that nothing else reads have packed copies, as a tied table would be in memory
    twice. oneDNN takes no matrix that the graph computes: its product is a plain one.
    """
    graph, names = program.graph_module.graph, tensor_names(program)
    by_name = {names.get(node.name): node for node in graph.find_nodes(op="placeholder")}
    layers = [
        (layer, all(user.target is _linear for user in layer.weights[0].users))
        for layer in linear_layers(program, module, single=False)
    ]
    for layer, alone in layers:
        copy = by_name.get(f"{names.get(layer.weights[0].name)}{COPY}") if alone else None
        with graph.inserting_before(layer.node):
            if layer.weights[1:]:
                y = _of_integers(graph, layer, module)
            else:
                y = _of_floats(graph, layer, copy)
        if y is not None:
            layer.node.replace_all_uses_with(y)
    _multiply_integers(graph)
    _multiply_plainly(graph)
    graph.eliminate_dead_code()
    program.graph_module.recompile()


def _is_large(size: int) -> bool:
    return size >= LARGE_FOR_OPERATORS


def _of_floats(graph: fx.Graph, layer: Layer, copy: fx.Node | None) -> fx.Node | None:
    if not _is_large(layer.size) or not (few := few_rows(layer.dtype)):
        return None
    [weight], biases = layer.weights, None if layer.bias is None else [layer.bias]
    many = (weight, UNPACKED * few) if copy is None else (copy, few)
    operator = torch.ops.addnorm.row_product.default
    return graph.call_function(operator, (layer.x, [weight], biases, *many))


def _of_integers(graph: fx.Graph, layer: Layer, module: nn.Module) -> fx.Node | None:
    """The product with rows that are not rounded once more, for any number of them."""
    if row_product(layer.dtype) != "operator":
        return None
    operator = getattr(torch.ops.addnorm, OPERATORS[layer.dtype]).default
    digits = (1,) if layer.dtype is torch.uint8 and _has_bytes(layer, module) else ()
    arguments = (layer.x, *([part] for part in layer.weights), None, *digits)
    return graph.call_function(operator, arguments)


def _has_bytes(layer: Layer, module: nn.Module) -> bool:
    """Whether the inputs of a layer have been rounded to eight bits, in blocks."""
    *_, (path, _) = layer.linear.meta["nn_module_stack"].values()
    return isinstance(module.get_submodule(path), DynamicRounding)


def _multiply_integers(graph: fx.Graph) -> None:
    """Replace products of large matrices of integers."""
    for node in graph.find_nodes(op="call_function", target=aten._int_mm.default):
        x, turned = node.args
        if _is_large(turned.meta["val"].numel()) and (few := few_rows(torch.int8)):
            with graph.inserting_before(node):
                arguments = (x, turned.args[0], few)
                y = graph.call_function(torch.ops.addnorm.int8_matmul.default, arguments)
            node.replace_all_uses_with(y)


def _multiply_plainly(graph: fx.Graph) -> None:
    """Replace linear layers on several rows whose matrix the graph computes."""
    for node in graph.find_nodes(op="call_function", target=_linear):
        x, weight, *bias = node.args
        if weight.op == "placeholder" or is_row(x.meta["val"]) or not node.users:
            continue
        with graph.inserting_before(node):
            y = graph.call_function(
                aten.matmul.default, (x, graph.call_function(aten.t.default, (weight,)))
            )
            if bias:
                y = graph.call_function(aten.add.Tensor, (y, *bias))
        node.replace_all_uses_with(y)
