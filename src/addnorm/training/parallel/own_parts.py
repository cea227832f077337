"""Custom parts, tried on a few tokens: do they compute every token, or every row, independently?

What does not would compute in each process by the tokens or rows of that process, and not of all.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from addnorm.errors import InputError
from addnorm.models import Model
from addnorm.nn.blocks import Mixer, Stack
from addnorm.nn.context import Context
from addnorm.nn.dropout import Dropout
from addnorm.nn.embed import TokenEmbedding
from addnorm.nn.masks import Full
from addnorm.nn.norms import BatchNorm
from addnorm.training.parallel.stages import sections_of
from addnorm.training.parallel.tensor import placed

Tried = tuple[nn.Module, Callable[[Tensor], Tensor]]
"""A part, and how it is called with hidden states."""

TOKEN_NOT_ALONE = (
    "does not compute each token alone, as each process would: give parallel.data in place of "
    "context"
)
ROW_NOT_ALONE = (
    "does not compute each row of a batch alone, as each process would: split texts, layers or "
    "heads in place of rows, by parallel.context, pipeline or tensor"
)


def check_batch_norms(model: nn.Module, split: str, remedy: str) -> None:
    """Raise `InputError` for a batch norm, also one inside a custom part."""
    for path, module in model.named_modules():
        if isinstance(module, BatchNorm | nn.modules.batchnorm._BatchNorm):  # pyright: ignore[reportPrivateUsage]
            raise InputError(
                f"{placed(path)} ({type(module).__name__}) would normalise by the {split} of each "
                f"process and not of the batch: use another norm, or {remedy}"
            )


def check_tokens_alone(model: nn.Module, d_model: int) -> None:
    """Raise `InputError` for a custom part whose output for a token depends on other tokens."""
    x = _tokens(model, d_model)[:1]
    for part, call in _parts_of_tokens(model):
        if has_own_parts(part):
            with _trying(part, training=False):
                same = _same(call(x)[:, 2:3], call(x[:, 2:3]))
            if not same:
                raise _refusal(model, part, TOKEN_NOT_ALONE)


def check_rows_alone(model: nn.Module, d_model: int) -> None:
    """Raise `InputError` for a custom part whose output for a row depends on others in training.

    A part that draws numbers of its own is not tried.
    """
    x = _tokens(model, d_model)
    for part, call in (*_parts_of_tokens(model), *_parts_of_texts(model)):
        if has_own_parts(part):
            with _trying(part, training=True):
                together, again = call(x), call(x)
                apart = torch.cat([call(x[:2]), call(x[2:])])
            if _same(together, again) and not _same(together, apart):
                raise _refusal(model, part, ROW_NOT_ALONE)


def has_own_parts(module: nn.Module) -> bool:
    """Whether a module has custom parts."""
    return any(map(_is_own, module.modules()))


def _is_own(module: nn.Module) -> bool:
    return not type(module).__module__.startswith(("addnorm.", "torch."))


def _tokens(model: nn.Module, d_model: int) -> Tensor:
    """Random hidden states of a few tokens in a few rows."""
    draw = torch.Generator().manual_seed(0)
    return torch.randn(4, 5, d_model, generator=draw).to(next(model.parameters()))


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-4)


def _refusal(model: nn.Module, part: nn.Module, reason: str) -> InputError:
    """The error for a part, naming the custom module in it."""
    own = next(module for module in part.modules() if _is_own(module))
    path = next(path for path, module in model.named_modules() if module is own)
    return InputError(f"{placed(path)} ({type(own).__name__}) {reason}")


@contextmanager
def _trying(part: nn.Module, *, training: bool) -> Generator[None]:
    """In this context, a part computes without dropout; afterwards its state is restored."""
    modes = {module: module.training for module in part.modules()}
    buffers = [(buffer, buffer.clone()) for buffer in part.buffers()]
    part.train(training)
    for module in modes:
        if isinstance(module, Dropout | nn.modules.dropout._DropoutNd):  # pyright: ignore[reportPrivateUsage]
            module.eval()
    with torch.no_grad(), torch.random.fork_rng([]):
        yield
        for buffer, before in buffers:
            buffer.copy_(before)
    for module, mode in modes.items():
        module.training = mode


def _parts_of_tokens(model: nn.Module) -> Iterator[Tried]:
    """Yield the parts that must compute each token independently."""
    for stack in _stacks(model):
        yield stack.norm, lambda x, norm=stack.norm: norm(x, None)
        for block in stack.blocks:
            for name, part in block.named_children():
                if name.endswith("_residual"):
                    yield part, lambda x, part=part: part(x, lambda h: h, None)
                elif name == "feedforward":
                    yield part, part
                elif name == "norm":
                    yield part, lambda x, part=part: part(x, None)


def _parts_of_texts(model: nn.Module) -> Iterator[Tried]:
    """Yield the parts that compute over a whole text: embeddings, mixers, and the head."""
    for section in sections_of(model):
        if isinstance(section.embed, TokenEmbedding):
            yield section.embed, lambda x, embed=section.embed: _embedded(embed, len(x))
    for mixer in (mixer for stack in _stacks(model) for mixer in stack.mixers):
        yield cast(nn.Module, mixer), lambda x, mixer=mixer: _mixed(mixer, x)
    head = cast(Model, model).head
    yield head, lambda x: head(x, Context.over(x, Full()))


def _embedded(embed: TokenEmbedding, rows: int) -> Tensor:
    table = embed.tokens.weight
    tokens = torch.arange(rows * 5, device=table.device).view(rows, 5) % len(table)
    return embed(tokens, Context.over(tokens, Full()))


def _mixed(mixer: Mixer, x: Tensor) -> Tensor:
    ctx = Context.over(x, Full()).restrict(mixer.pattern)
    return cast(nn.Module, mixer)(x, ctx, None)


def _stacks(model: nn.Module) -> list[Stack]:
    return [module for module in model.modules() if isinstance(module, Stack)]
