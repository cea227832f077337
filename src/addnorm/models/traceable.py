"""What one graph of a model can hold: the check before a model is compiled or exported as a graph.

A graph is traced from the model's own forward, so parts of someone's own are in it as they are.
What it cannot hold is work that depends on the data, caches that are not attention's, and hooks.
"""

from torch import nn

from addnorm.errors import InputError
from addnorm.models import Model
from addnorm.models.ledger import HOOKS, Ledger
from addnorm.nn.attention import CrossAttention, SelfAttention
from addnorm.nn.attention.multihead import MultiHead
from addnorm.nn.blocks import Stack
from addnorm.nn.moe import MixtureOfExperts


def check_traceable(model: Model, stack: Stack, reader: str) -> None:
    """Raise `InputError` for what no traced step of `stack` can hold, naming it.

    `reader` says who asks: "a compiled model".
    """
    ledger = Ledger(model, reader)
    if not all(isinstance(mixer, SelfAttention) for mixer in stack.mixers):
        raise InputError("only attention compiles for writing, and this model has other mixers")
    for module in model.modules():
        if isinstance(module, MixtureOfExperts):
            raise InputError("a mixture of experts does not compile for writing: it splits tokens")
        if isinstance(module, MultiHead):  # the graph keeps keys and values as these two do
            ledger.module(module, SelfAttention, CrossAttention)
        if isinstance(module, nn.RNNBase):
            raise ledger.refusal(module, "")
    for item in ledger.items.values():
        if item.name == HOOKS:
            raise ledger.refusal(item.module, HOOKS)
