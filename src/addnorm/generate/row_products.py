"""In a compiled graph, each product of a single row becomes the one that is fastest here."""

import torch
from torch import Tensor, fx

from addnorm.nn.linear import onednn
from addnorm.tuning.row_products import RowProduct, row_product

LARGE = 2**20
"""Smaller matrices stay loops, which the compiler runs together with what is around them."""

_linear = torch.ops.aten.linear.default
_pointwise = onednn()


def place_row_products(program: torch.export.ExportedProgram) -> None:
    """Replace each linear layer on a single row by the product that is fastest for its weight.

    Those that stay are loops, or products of several rows. Packed are only weights that nothing
    else reads: a tied table would be in memory twice.
    """
    graph = program.graph_module.graph
    for node in graph.find_nodes(op="call_function", target=_linear):
        x, weight, *bias = node.args
        if weight.op != "placeholder" or not _is_row(x.meta["val"]):
            continue
        if weight.meta["val"].numel() < LARGE:
            continue
        kind = row_product(weight.meta["val"].dtype)
        alone = all(user.target is _linear for user in weight.users)
        if kind == "loop" or (kind == "onednn" and not alone):
            continue
        with graph.inserting_before(node):
            y = _placed(graph, kind, x, weight, bias[0] if bias else None)
            y = graph.call_function(torch.ops.aten.view.default, (y, [*node.meta["val"].shape]))
        node.replace_all_uses_with(y)
        graph.erase_node(node)
    program.graph_module.recompile()


def _placed(
    graph: fx.Graph, kind: RowProduct, x: fx.Node, weight: fx.Node, bias: fx.Node | None
) -> fx.Node:
    aten = torch.ops.aten
    row = graph.call_function(aten.view.default, (x, [1, weight.meta["val"].shape[1]]))
    if kind == "onednn":
        return graph.call_function(_pointwise.default, (row, weight, bias, "none", [], ""))
    y = graph.call_function(aten.mm.default, (row, graph.call_function(aten.t.default, (weight,))))
    return y if bias is None else graph.call_function(aten.add.Tensor, (y, bias))


def _is_row(x: Tensor) -> bool:
    """Whether a tensor has a single row, of sizes that are no symbols."""
    return all(type(size) is int and size == 1 for size in x.shape[:-1])
