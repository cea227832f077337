"""Checkpoint weights stored in fewer bits, and their dequantisation on reading.

`quantization_config` of a `config.json` names the form. Every weight in it is several tensors: its
numbers, the scales by which blocks of them are multiplied, and what else its form has.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from warnings import warn

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from addnorm.convert.core.packed_weights import (
    Packing,
    awq_packing,
    gptq_packing,
    packed_matrices,
)
from addnorm.convert.core.settings import Settings
from addnorm.convert.weights.files import Weights
from addnorm.convert.weights.mapped import StoredTensor, name_of
from addnorm.errors import IgnoredSettings, InputError

KEY = "quantization_config"

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The sizes of numbers with one bit of sign, two of exponent and one of fraction."""

BLOCK = 128
"""Rows and columns of a block of FP8 that has one scale (DeepSeek-AI 2024b, §3.3.2)."""

Stored = Mapping[str, StoredTensor]


def check_form(settings: Settings) -> None:
    """Raise `InputError` if a `config.json` names a stored form that is not supported."""
    _form_of(settings)


def dequantised(weights: Weights, settings: Settings) -> Weights:
    """The weights of a folder, dequantised with a warning if they are stored in fewer bits.

    Raises `InputError` naming a tensor whose scales are missing, or of another type or shape.
    """
    if (named := _form_of(settings)) is None:
        return weights
    form, read = named
    stored = {name: weights.stored(name) for name in weights}
    joined, used = dict[str, StoredTensor](), set[str]()
    for name, tensor, *parts in read(stored, settings.where):
        if name in stored and name not in parts:
            raise InputError(
                f"{settings.where}: {name} is stored twice: as it is, and as {form} in "
                f"{' and '.join(parts)}"
            )
        joined[name] = tensor
        used.update(parts)
    kinds = " and ".join(dict.fromkeys(name_of(tensor.dtype) for tensor in joined.values()))
    how = f"{len(joined)} weights are stored as {form}, and read as {kinds}"
    if not joined:
        how = f"{KEY} names {form}, and no weight is stored so: all are read as they are"
    warn(f"{settings.where}: {how}", IgnoredSettings, stacklevel=2)
    return Weights({name: tensor for name, tensor in stored.items() if name not in used} | joined)


Joined = tuple[str, StoredTensor, *tuple[str, ...]]
"""The name of a weight, the weight, and the names of the tensors that hold it."""

Read = Callable[[Stored, str], Iterator[Joined]]
"""Reads the weights of a form, given the place for messages."""


def _form_of(settings: Settings) -> tuple[str, Read] | None:
    """The stored form of a folder's weights by name, and its reader."""
    if (table := settings.table(KEY)) is None:
        return None
    form = table.choose("quant_method", {name: name for name in FORMS}, "")
    read = FORMS[form](table)
    table.ignore("activation_scheme", "modules_to_not_convert")  # products are not of fewer bits
    table.check_all_read()
    return form, read


def mxfp4(
    blocks: UInt8[Tensor, "experts out n_blocks half"],
    scales: UInt8[Tensor, "experts out n_blocks"],
) -> Float[Tensor, "experts inner out"]:
    """`2^(scale − 127) · e2m1(nibble)`: four-bit numbers, 32 to a scale, low nibble first.

    Open Compute Project 2023, Microscaling Formats v1.0, §5. In bfloat16, transposed, as GPT-OSS
    has its experts.
    """
    sizes = torch.tensor([*E2M1, *(-size for size in E2M1)], dtype=torch.bfloat16)
    nibbles = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2)
    numbers = torch.ldexp(sizes[nibbles.int()], scales.int()[..., None] - 127)
    return numbers.to(torch.bfloat16).flatten(-2).mT


def block_fp8(
    numbers: Float[Tensor, "rows columns"], scales: Float[Tensor, "row_blocks column_blocks"]
) -> Float[Tensor, "rows columns"]:
    """`number · scale`, with one scale for each block of 128 × 128: DeepSeek-AI 2024b, §3.3.2.

    In bfloat16; blocks at the end may have fewer rows or columns.
    """
    rows, columns = numbers.shape
    wide = scales.float().repeat_interleave(BLOCK, 0)[:rows]
    return (numbers.float() * wide.repeat_interleave(BLOCK, 1)[:, :columns]).to(torch.bfloat16)


def _of_mxfp4(stored: Stored, where: str) -> Iterator[Joined]:
    for name in _names(stored, "_blocks", "_scales", lambda tensor: True, where):
        blocks, scales = stored[f"{name}_blocks"], stored[f"{name}_scales"]
        _check(blocks, (*blocks.shape[:3], 16), (torch.uint8,), f"{where}: {name}_blocks")
        _check(scales, blocks.shape[:3], (torch.uint8,), f"{where}: {name}_scales")
        experts, out, n_blocks = scales.shape
        yield _joined(name, (experts, 32 * n_blocks, out), mxfp4, stored, "_blocks", "_scales")


def _of_fp8(stored: Stored, where: str) -> Iterator[Joined]:
    def is_fp8(tensor: StoredTensor) -> bool:
        return tensor.dtype == torch.float8_e4m3fn

    for name in _names(stored, "", "_scale_inv", is_fp8, where):
        shape = stored[name].shape
        if len(shape) != 2:
            raise InputError(
                f"{where}: {name} has shape {shape}: FP8 has scales for blocks of a matrix, which "
                "has two dimensions"
            )
        expected = tuple(-(-size // BLOCK) for size in shape)
        kinds = (torch.float32, torch.bfloat16)
        _check(stored[f"{name}_scale_inv"], expected, kinds, f"{where}: {name}_scale_inv")
        yield _joined(name, shape, block_fp8, stored, "", "_scale_inv")


def _read_fp8(table: Settings) -> Read:
    table.expect("fmt", "e4m3", "float8_e4m3fn")
    table.ignore("scale_fmt")  # the scales are numbers, whatever they were rounded to
    if (size := table.int_pair("weight_block_size", BLOCK)) != (BLOCK, BLOCK):
        raise table.refuse("weight_block_size", f"only [{BLOCK}, {BLOCK}], not {[*size]}")
    return _of_fp8


def _read_packed(packing_of: Callable[[Settings], Packing], table: Settings) -> Read:
    packing = packing_of(table)
    return lambda stored, where: packed_matrices(stored, packing, where)


FORMS: dict[str, Callable[[Settings], Read]] = {
    "mxfp4": lambda table: _of_mxfp4,
    "fp8": _read_fp8,
    "gptq": partial(_read_packed, gptq_packing),
    "awq": partial(_read_packed, awq_packing),
}
"""Each form by its name: the settings of its table give how it is read."""


def _names(
    stored: Stored, values: str, scales: str, fits: Callable[[StoredTensor], bool], where: str
) -> Iterator[str]:
    """Yield the names of the weights stored in a form. Raises `InputError` for half of a pair."""
    for name, tensor in stored.items():
        if name.endswith(scales):
            other = name.removesuffix(scales) + values
            if other not in stored:
                raise InputError(f"{where}: {name} are scales without {other}")
        elif name.endswith(values) and fits(tensor):
            of = name.removesuffix(values)
            if of + scales not in stored:
                raise InputError(
                    f"{where}: {name} is {name_of(tensor.dtype)} without scales: "
                    f"{of + scales} is missing"
                )
            yield of


def _check(
    tensor: StoredTensor, shape: tuple[int, ...], kinds: tuple[torch.dtype, ...], where: str
) -> None:
    if tensor.shape != shape or tensor.dtype not in kinds:
        expected = " or ".join(map(name_of, kinds))
        raise InputError(
            f"{where} has shape {tensor.shape} of {name_of(tensor.dtype)}, expected {shape} of "
            f"{expected}"
        )


def _joined(
    name: str,
    shape: tuple[int, ...],
    join: Callable[[Tensor, Tensor], Tensor],
    stored: Stored,
    *ends: str,
) -> Joined:
    values, scales = (name + end for end in ends)

    def read(values: StoredTensor, scales: StoredTensor) -> Tensor:
        return join(values.read(), scales.read())

    whole = StoredTensor(shape, torch.bfloat16, partial(read, stored[values], stored[scales]))
    return name, whole, values, scales
