"""Graphs compiled ahead of time: once for each kind of model, kept on disk without the weights."""

import hashlib
import inspect
import os
import platform
import shutil
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch._C import _aoti  # pyright: ignore[reportAttributeAccessIssue]
from torch.utils._pytree import tree_leaves

from addnorm.errors import InputError

Graph = Callable[..., Tensor]

SETTINGS: dict[str, Any] = {
    # The tensors stay where they are, so the graph is the same whatever the weights say.
    "aot_inductor.package_constants_in_so": False,
    "always_keep_tensor_constants": True,  # short ones too, which would be written into the code
    # What feeds a product is computed once, not again for every row of the weights.
    "realize_opcount_threshold": 0,
}


def compiled(module: nn.Module, example: tuple[Any, ...], lengths: tuple[Any, ...]) -> Graph:
    """`module(*inputs)` as a graph of machine code, from disk if one was made before.

    `lengths` names the axes of the inputs that may have any length, as `torch.export` takes them.
    Linear maps of a single row become one loop over the weights (see `one_row`). Raises
    `InputError` where there is no C++ compiler.
    """
    file = cache_folder() / f"{fingerprint(module, example)}.pt2"
    graph = _loaded(file)
    if graph is None:
        file.parent.mkdir(parents=True, exist_ok=True)
        _compile(module, example, lengths, file)
        graph = _loaded(file)
    assert graph is not None, file
    held = {name: _tensor(module, name) for name in graph.get_constant_fqns()}
    graph.load_constants(held, False, True, True)  # by address, without a copy

    def run(*inputs: Any) -> Tensor:
        assert len(held), "the graph reads these tensors: they live as long as it does"
        return graph.boxed_run(tree_leaves(inputs))[0]

    return run


def one_row(
    x: Float[Tensor, "*batch d_in"],
    weight: Float[Tensor, "d_out d_in"],
    bias: Float[Tensor, " d_out"] | None = None,
) -> Float[Tensor, "*batch d_out"]:
    """`x Wᵀ + b` as a product and a sum, which the compiler turns into one loop over `W`.

    For one row it reads the weights at nearly the memory's speed, torch's matrix product at a half
    of it or less (`benchmarks/results/bench-decode.json`).
    """
    y = (x[..., None, :] * weight).sum(-1)
    return y if bias is None else y + bias


def _loaded(file: Path) -> Any:
    """The graph in a file; None where there is none, or a damaged one.

    By the loader itself: what `torch._inductor` wraps around it takes seconds to import.
    """
    try:
        return _aoti.AOTIModelPackageLoader(str(file), "model", False, 1, -1)
    except RuntimeError:
        return None


def _compile(
    module: nn.Module, example: tuple[Any, ...], lengths: tuple[Any, ...], file: Path
) -> None:
    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        raise InputError("compiling needs a C++ compiler: install g++, or run without compiling")
    from torch._inductor import aoti_compile_and_package

    with _quiet(), _all_registered(module), tempfile.TemporaryDirectory(dir=file.parent) as folder:
        program = torch.export.export(module, example, dynamic_shapes=lengths, strict=False)
        program = program.run_decompositions({torch.ops.aten.linear.default: one_row})
        made = aoti_compile_and_package(
            program, package_path=str(Path(folder) / file.name), inductor_configs=dict(SETTINGS)
        )
        Path(made).replace(file)


def _tensor(module: nn.Module, name: str) -> Tensor:
    *path, last = name.split(".")
    return getattr(module.get_submodule(".".join(path)), last)


@contextmanager
def _all_registered(module: nn.Module) -> Generator[None]:
    """Plain tensors of the modules as buffers for a while: a graph names no others."""
    plain = [
        (part, key, value)
        for part in module.modules()
        for key, value in vars(part).items()
        if isinstance(value, Tensor)
    ]
    for part, key, value in plain:
        delattr(part, key)
        part.register_buffer(key, value)
    try:
        yield
    finally:
        for part, key, value in plain:
            delattr(part, key)
            setattr(part, key, value)


@contextmanager
def _quiet() -> Generator[None]:
    """Say nothing of what the compiler remarks on the way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# What a graph depends on.


def cache_folder() -> Path:
    """Where graphs are kept: `$ADDNORM_CACHE`, or `addnorm` in the user's folder of caches."""
    if chosen := os.environ.get("ADDNORM_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "addnorm"


def fingerprint(module: nn.Module, example: tuple[Any, ...]) -> str:
    """A name for all that a graph of `module` depends on, the values of its weights left out.

    The kind and the settings of every submodule, the shape and type of every weight and which are
    one, the inputs, the code, the versions and the processor.
    """
    digest = hashlib.sha256()
    for line in (*_surroundings(), *_described(module), *_shapes(example)):
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()[:32]


def _surroundings() -> Iterator[str]:
    yield f"{torch.__version__} {platform.machine()} {SETTINGS}"
    yield f"{torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()} threads"
    yield _code(Path(__file__).parents[1])


@cache
def _code(package: Path) -> str:
    """The code that models and graphs are made of: all of it, for parts come from anywhere."""
    files = sorted(package.rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _described(module: nn.Module) -> Iterator[str]:
    first: dict[int, str] = {}
    tensors = (
        module.named_parameters(remove_duplicate=False),
        module.named_buffers(remove_duplicate=False),
    )
    for name, tensor in (pair for group in tensors for pair in group):
        same_as = first.setdefault(id(tensor), name)
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} {same_as}"
    for name, part in module.named_modules(remove_duplicate=False):
        kind = type(part)
        yield f"{name} {kind.__module__}.{kind.__qualname__}"
        if not kind.__module__.startswith(("torch.", "addnorm.")):
            yield inspect.getsource(kind)
        for key, value in sorted(vars(part).items()):
            if not key.startswith("_") and key != "training":
                yield f"{name}.{key} = {_value(value)}"


def _value(value: object) -> str:
    match value:
        case Tensor():
            data = value.detach().contiguous().view(torch.uint8).numpy().tobytes()
            return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(data).hexdigest()}"
        case FunctionType():
            return f"{value.__module__}.{value.__qualname__} {value.__code__.co_code.hex()}"
        case nn.Module():
            return type(value).__qualname__
        case list() | tuple():
            return str([_value(one) for one in value])
        case _:
            return repr(value)


def _shapes(example: Any) -> Iterator[str]:
    for leaf in tree_leaves(example):
        yield f"{leaf.dtype} {leaf.ndim}" if isinstance(leaf, Tensor) else repr(leaf)
