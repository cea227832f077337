"""What fits into memory: pages of keys and values, and the attention scores of a text."""

from math import inf, isqrt
from sys import maxsize

import torch

from addnorm.errors import InputError
from addnorm.models import Model
from addnorm.models.transformer import StackModel
from addnorm.nn.attention.multihead import Attending
from addnorm.serve.engine.pages import PagePool


def page_pool(memory: int, page_size: int, bytes_per_token: int) -> PagePool:
    """The pages that fit into memory. Raises `InputError` if there are none."""
    per_page = bytes_per_token * page_size
    n_pages = memory // per_page - 1  # the buffers have a slot for padding
    if n_pages < 1:
        raise InputError(
            f"memory = {memory:,} bytes for pages: one of {page_size} tokens takes {per_page:,} "
            "bytes of keys and values, and at least two are needed"
        )
    return PagePool(n_pages, page_size)


def slots_in(memory: int, bytes_of_slot: int) -> int:
    """The number of tokens that fit into memory. Raises `InputError` for less than two."""
    if (n := memory // bytes_of_slot) < 2:
        raise InputError(
            f"memory = {memory:,} bytes: a token takes {bytes_of_slot:,} bytes of keys and values, "
            "and at least two are needed"
        )
    return n


def scores_at_once(model: Model, memory: int) -> float:
    """The number of attention scores, over all heads of a layer, that fit into memory.

    The layer is one that reads prompts and sources. Infinite if none attends.
    """
    stack = model.stack if isinstance(model, StackModel) else model.encoder
    heads = [
        module.q_proj.out_features // module.d_head
        for module in stack.modules()
        if isinstance(module, Attending)
    ]
    return memory // (max(heads) * _bytes_of_number(model)) if heads else inf


def longest_at_once(model: Model, memory: int) -> int:
    """The longest text that is read at once; `sys.maxsize` if only time limits it."""
    scores = scores_at_once(model, memory)
    return maxsize if scores == inf else isqrt(int(scores))


def _bytes_of_number(model: Model) -> int:
    return torch.finfo(next(model.parameters()).dtype).bits // 8
