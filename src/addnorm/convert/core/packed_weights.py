"""GPTQ and AWQ: integers of 4 or 8 bits packed into 32-bit words, with a scale for each group.

Every matrix is stored transposed, `W ∈ in × out`, as `qweight`, `qzeros` and `scales`; an input
`i` of group `g(i)` has `W[i, o] = scales[g(i), o] · (q[i, o] − z[g(i), o])` (Frantar et al. 2023,
GPTQ, and Lin et al. 2024, AWQ, in the layouts of AutoGPTQ and AutoAWQ).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor

from addnorm.convert.core.settings import Settings
from addnorm.convert.weights.mapped import StoredTensor, name_of
from addnorm.errors import InputError

WORD = 32
"""The bits of a word."""

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column of each four bits of a word, lowest first, in the kernels of AWQ."""

PARTS = ("qweight", "qzeros", "scales", "g_idx")

GPTQ_TRAINING = (
    *("damp_percent", "damp_auto_increment", "true_sequential", "static_groups", "mse", "meta"),
    *("model_name_or_path", "model_file_base_name", "batch_size", "dataset", "tokenizer"),
    *("block_name_to_quantize", "module_name_preceding_first_block", "model_seqlen", "backend"),
    *("modules_in_block_to_quantize", "use_cuda_fp16", "use_exllama", "max_input_length"),
    *("exllama_config", "disable_exllama", "cache_block_outputs", "pad_token_id", "version"),
    *("desc_act", "sym", "lm_head", "pack_dtype"),
)
"""Keys about how a checkpoint was made and is run; the tensors show order and zero points."""


@dataclass(frozen=True, kw_only=True)
class Packing:
    """How a checkpoint packs integers into words."""

    bits: int
    group: int | None
    """The inputs of a group; None for all in one."""
    awq: bool = False
    offset: int = 0
    """The number added to a stored zero point: 1 in the first version of GPTQ's files."""

    @property
    def per_word(self) -> int:
        """The number of integers in a word."""
        return WORD // self.bits


def gptq_packing(table: Settings) -> Packing:
    """The packing given by the `quantization_config` of GPTQ.

    Raises `InputError` for another one.
    """
    table.ignore(*GPTQ_TRAINING)
    table.expect("is_marlin_format", False)
    form = table.choose("checkpoint_format", {"gptq": 1, "gptq_v2": 0}, "gptq")
    table.expect("bits", 4, 8)
    return Packing(bits=table.get("bits", 4), group=_group(table, "group_size"), offset=form)


def awq_packing(table: Settings) -> Packing:
    """The packing given by the `quantization_config` of AWQ.

    Raises `InputError` for another one.
    """
    table.ignore("do_fuse", "fuse_max_seq_len", "modules_to_fuse", "exllama_config", "backend")
    table.expect("version", "gemm", "GEMM")
    table.expect("zero_point", True)
    table.expect("bits", 4)
    return Packing(bits=table.get("bits", 4), group=_group(table, "group_size"), awq=True)


def _group(table: Settings, key: str) -> int | None:
    if table.get(key, 128) == -1:
        return None
    return table.optional_int(key) or 128


def unpacked(
    words: Int32[Tensor, "rows words"], bits: int, order: Sequence[int] = ()
) -> Int[Tensor, "rows columns"]:
    """The integers in words, lowest bits first; `order` gives each one's column within its word."""
    shifts = torch.arange(0, WORD, bits, dtype=torch.int32)
    integers = (words[..., None] >> shifts) & (2**bits - 1)
    if order:
        integers = integers[..., torch.tensor(order).argsort()]
    return integers.flatten(-2)


def dequantised_matrix(
    packing: Packing, qweight: Tensor, qzeros: Tensor, scales: Tensor, groups: Tensor
) -> Float[Tensor, "out in"]:
    """`scales[g] · (q − z[g])`, transposed for a linear layer, in the scales' dtype."""
    if packing.awq:
        q, z = (unpacked(words, packing.bits, AWQ_ORDER) for words in (qweight, qzeros))
    else:
        q = unpacked(qweight.T.contiguous(), packing.bits).T
        # A zero point of 0 is stored as −1, of which its bits alone are left.
        z = (unpacked(qzeros, packing.bits) + packing.offset) & (2**packing.bits - 1)
    groups = groups.long()
    return (scales[groups].float() * (q - z[groups]).float()).to(scales.dtype).T.contiguous()


def packed_matrices(
    stored: Mapping[str, StoredTensor], packing: Packing, where: str
) -> Iterator[tuple[str, StoredTensor, *tuple[str, ...]]]:
    """Yield each weight's name with the names of the tensors that store it.

    Raises `InputError` naming a tensor that is missing, or of another type or shape.
    """
    for name in stored:
        layer, _, part = name.rpartition(".")
        if part in PARTS[1:] and f"{layer}.qweight" not in stored:
            raise InputError(f"{where}: {name} is there without {layer}.qweight")
        if part != "qweight":
            continue
        for other in PARTS[1:3]:
            if f"{layer}.{other}" not in stored:
                raise InputError(
                    f"{where}: {name} is packed without {other}: {layer}.{other} is missing"
                )
        names = [f"{layer}.{each}" for each in PARTS if f"{layer}.{each}" in stored]
        yield f"{layer}.weight", _matrix(stored, packing, layer, where), *names


def _matrix(
    stored: Mapping[str, StoredTensor], packing: Packing, layer: str, where: str
) -> StoredTensor:
    qweight, qzeros, scales, groups = (stored.get(f"{layer}.{part}") for part in PARTS)
    assert qweight is not None
    assert qzeros is not None
    assert scales is not None
    _check(qweight, None, (torch.int32,), f"{where}: {layer}.qweight")
    rows, columns = qweight.shape
    per_word = packing.per_word
    n_in, n_out = (rows, columns * per_word) if packing.awq else (rows * per_word, columns)
    size = packing.group or n_in
    n_groups = -(-n_in // size)
    words = (n_groups, n_out // per_word)
    _check(qzeros, words, (torch.int32,), f"{where}: {layer}.qzeros")
    kinds = (torch.float16, torch.bfloat16, torch.float32)
    _check(scales, (n_groups, n_out), kinds, f"{where}: {layer}.scales")
    if groups is not None:
        _check(groups, (n_in,), (torch.int32, torch.int64), f"{where}: {layer}.g_idx")

    def read() -> Tensor:
        given = torch.arange(n_in) // size if groups is None else groups.read()
        if given.min() < 0 or given.max() >= n_groups:
            raise InputError(
                f"{where}: {layer}.g_idx has groups from {int(given.min())} to "
                f"{int(given.max())}: there are {n_groups}"
            )
        parts = (qweight.read(), qzeros.read(), scales.read())
        return dequantised_matrix(packing, *parts, given)

    return StoredTensor((n_out, n_in), scales.dtype, partial(read))


def _check(
    tensor: StoredTensor, shape: tuple[int, ...] | None, kinds: Sequence[torch.dtype], where: str
) -> None:
    right = len(tensor.shape) == 2 if shape is None else tensor.shape == shape
    if not right or tensor.dtype not in kinds:
        expected = " or ".join(map(name_of, kinds))
        raise InputError(
            f"{where} has shape {tensor.shape} of {name_of(tensor.dtype)}, expected "
            f"{'two dimensions' if shape is None else shape} of {expected}"
        )
