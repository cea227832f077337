"""Ahead-of-time compiled graphs: one per architecture, cached on disk without the weights."""

import hashlib
import inspect
import re
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch._C import _aoti  # pyright: ignore[reportAttributeAccessIssue]
from torch.utils._pytree import tree_leaves

from addnorm.compiler import CompilerError, compile_ahead, keep_compiled, target
from addnorm.files import cache_folder
from addnorm.generate.few_rows import COPY, packed_copies, place_products_of_few_rows
from addnorm.generate.single_row import (
    dtypes_of,
    operators_of,
    place_row_products,
    tensor_names,
)
from addnorm.generate.weight_memory import lay_out
from addnorm.kernels.build import load_operator
from addnorm.machine import keep_freed_pages
from addnorm.nn.choices import choices
from addnorm.nn.linear import onednn
from addnorm.tuning.row_products import few_rows, packed_weight, row_product

Graph = Callable[..., Tensor]

PACKED = "packed"
"""The metadata key for the weights that a graph expects in oneDNN's packed layout."""

LOADED = "operators"
"""The metadata key for our operators that a graph calls."""

_linear = torch.ops.aten.linear.default
_onednn = onednn()

SETTINGS: dict[str, Any] = {
    # Weights are not embedded, so that the graph does not depend on their values.
    "aot_inductor.package_constants_in_so": False,
    "always_keep_tensor_constants": True,  # including short ones, which would become literals
    # Compute the input of a product once, not again for every row of the weights.
    "realize_opcount_threshold": 0,
}


def compiled(module: nn.Module, example: tuple[Any, ...], lengths: tuple[Any, ...]) -> Graph:
    """Compile `module(*inputs)` to machine code, or load the graph from the disk cache.

    `lengths` names the dynamic axes of the inputs, as for `torch.export`. Linear layers become the
    products that are fastest for their rows. Weights may move (`weight_memory.lay_out`). Raises
    `CompilerError` if there is no C++ compiler, if it fails, or if the graph cannot be stored.
    """
    with _all_registered(module):
        lay_out(module)
    name = fingerprint(module, example, lengths)
    if has_other_parts(module):  # custom code: identify it by the traced graph
        name = _name_of(name, module, example, lengths)
    file = cache_folder() / f"{name}.pt2"
    try:
        graph = _loaded(file)
    except RuntimeError:  # no such file, or a damaged one
        keep_compiled(file, lambda: _compile(module, example, lengths))
        graph = _stored(file)
    metadata = graph.get_metadata()
    for name in metadata.get(LOADED, "").split():
        load_operator(name)
    packed = metadata.get(PACKED, "").split()
    names = graph.get_constant_fqns()
    weights = {name: _tensor(module, name.removesuffix(COPY)) for name in names}
    weights |= {name: packed_weight(weights[name]) for name in packed}
    graph.load_constants(weights, False, True, True)  # by pointer, without a copy
    if choices().keep_pages:
        keep_freed_pages()  # every step allocates new logits

    def run(*inputs: Any) -> Tensor:
        assert len(weights), "the graph reads these tensors: they live as long as it does"
        tensors = [leaf for leaf in tree_leaves(inputs) if leaf is not None]
        assert all(tensor.is_contiguous() for tensor in tensors), "a graph goes by shapes alone"
        return graph.boxed_run(tensors)[0]

    return run


def product(
    x: Float[Tensor, "*batch d_in"],
    weight: Float[Tensor, "d_out d_in"],
    bias: Float[Tensor, " d_out"] | None = None,
) -> Float[Tensor, "*batch d_out"]:
    """`x Wᵀ + b`: a loop over `W` for a single row, oneDNN's product for several.

    For a single row, an elementwise product and a sum, which the compiler fuses into one loop, read
    the weights at nearly the full memory bandwidth on some processors, where torch's matrix product
    reaches half of it (`tuning.row_products` measures which).
    """
    if x.numel() == x.shape[-1]:
        y = (x[..., None, :] * weight).sum(-1)
        return y if bias is None else y + bias
    rows = x.flatten(0, -2)
    if _onednn is not None:
        y = _onednn(rows, weight, bias, "none", [], "")
    else:  # a torch without oneDNN, as for Apple's processors
        y = rows @ weight.t() if bias is None else torch.addmm(bias, rows, weight.t())
    return y.view(*x.shape[:-1], weight.shape[0])


def _loaded(file: Path) -> Any:
    """Load the graph from a file, by way of a temporary folder.

    Uses the low-level loader, because the wrapper in `torch._inductor` takes seconds to import.
    """
    return _aoti.AOTIModelPackageLoader(str(file), "model", False, 1, -1)


def _stored(file: Path) -> Any:
    """Load the graph that was just stored. Raises `CompilerError` if that fails."""
    try:
        return _loaded(file)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise CompilerError(f"{file}: the compiled graph cannot be loaded: {reason}") from error


def _compile(module: nn.Module, example: tuple[Any, ...], lengths: tuple[Any, ...]) -> bytes:
    """Compile the module; return the archive in which torch packages a graph."""
    with warnings.catch_warnings(action="ignore"), _all_registered(module):
        program = _traced(module, example, lengths)
        facts = {PACKED: " ".join(_factors(program)), LOADED: " ".join(operators_of(program))}
        return compile_ahead(program, SETTINGS | {"aot_inductor.metadata": facts})


def _traced(
    module: nn.Module, example: tuple[Any, ...], lengths: tuple[Any, ...]
) -> torch.export.ExportedProgram:
    """Export the module, with every linear layer replaced by the fastest product."""
    with packed_copies(module) if _has_several(example) else nullcontext():
        program = torch.export.export(module, example, dynamic_shapes=lengths, strict=False)
    place_row_products(program, module)
    place_products_of_few_rows(program, module)
    return program.run_decompositions({_linear: product})


def _has_several(example: tuple[Any, ...]) -> bool:
    """Whether a graph is for several rows: its first input has a token of each."""
    return any(isinstance(tokens, Tensor) and tokens.numel() > 1 for tokens in example[:1])


def _factors(program: torch.export.ExportedProgram) -> list[str]:
    """The names of the weights that only oneDNN products use, and of packed copies."""
    if _onednn is None:
        return []
    names = tensor_names(program)
    return [
        names[node.name]
        for node in program.graph.find_nodes(op="placeholder")
        if node.name in names
        and node.users
        and (
            names[node.name].endswith(COPY)
            or all(user.target is _onednn.default and user.args[1] is node for user in node.users)
        )
    ]


def _tensor(module: nn.Module, name: str) -> Tensor:
    *path, last = name.split(".")
    return getattr(module.get_submodule(".".join(path)), last)


@contextmanager
def _all_registered(module: nn.Module) -> Generator[None]:
    """Temporarily register plain tensor attributes as buffers, since a graph names only these."""
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


# Cache keys.


def fingerprint(module: nn.Module, example: tuple[Any, ...], lengths: tuple[Any, ...]) -> str:
    """A hash of everything that a graph of `module` depends on, except the values of its weights.

    It covers the type and settings of every submodule, the shape and dtype of every weight, weight
    sharing, the inputs and their dynamic axes, the code, the library versions and the processor.
    """
    digest = hashlib.sha256()
    several = _has_several(example)
    for line in (
        *_surroundings(module, several=several),
        *_described(module),
        *_shapes(example),
        repr(lengths),
    ):
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()[:32]


def has_other_parts(module: nn.Module) -> bool:
    """Whether a module, or a function it holds, is neither from torch nor from this package."""
    code = [
        item
        for part in module.modules()
        for item in (
            *(kind for kind in type(part).__mro__ if issubclass(kind, nn.Module)),
            *(value for value in vars(part).values() if isinstance(value, FunctionType)),
        )
    ]
    return not all(item.__module__.startswith(("torch.", "addnorm.")) for item in code)


def _name_of(
    name: str, module: nn.Module, example: tuple[Any, ...], lengths: tuple[Any, ...]
) -> str:
    """Extend the hash by the traced operations and the constants in them."""
    with warnings.catch_warnings(action="ignore"), _all_registered(module):
        program = _traced(module, example, lengths)
    weights = {*program.state_dict, *dict(module.named_buffers())}
    digest = hashlib.sha256(f"{name}\n{program.graph_module.code}".encode())
    for key, value in sorted(program.constants.items()):
        if key not in weights:
            digest.update(f"{key} {_value(value)}\n".encode())
    return digest.hexdigest()[:32]


def _surroundings(module: nn.Module, *, several: bool) -> Iterator[str]:
    yield f"{target()} {SETTINGS}"
    yield f"{torch.get_num_threads()} threads"
    yield f"rows by {[(dtype, row_product(dtype)) for dtype in dtypes_of(module)]}"
    if several:
        yield f"few rows {[(dtype, few_rows(dtype)) for dtype in dtypes_of(module)]}"
    yield _code(Path(__file__).parents[1])


@cache
def _code(package: Path) -> str:
    """A hash of the whole package's source code, since any module can affect a graph."""
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
            yield _source(kind)
        for key, value in sorted(vars(part).items()):
            if not key.startswith("_") and key != "training":
                yield f"{name}.{key} = {_value(value)}"


def _source(kind: type) -> str:
    """The source of a class; its bytecode if there is no source file (interactive use)."""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return str([_value(f) for f in vars(kind).values() if isinstance(f, FunctionType)])


def _instructions(code: CodeType) -> str:
    """A function's bytecode, including nested functions, without memory addresses."""
    consts = [_instructions(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {consts}"


def _value(value: object) -> str:
    match value:
        case Tensor():
            data = value.detach().contiguous().view(torch.uint8).numpy().tobytes()
            return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(data).hexdigest()}"
        case FunctionType():
            return f"{value.__module__}.{value.__qualname__} {_instructions(value.__code__)}"
        case nn.Module():
            return type(value).__qualname__
        case list() | tuple():
            return str([_value(item) for item in value])
        case _:  # memory addresses change between processes
            return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _shapes(example: Any) -> Iterator[str]:
    for leaf in tree_leaves(example):
        yield f"{leaf.dtype} {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else repr(leaf)
