"""Verifying a GGUF file with a plain float64 reimplementation of llama.cpp.

This code is independent of our models: names, keys and semantics are those of llama.cpp.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from addnorm.convert.core.readback import check_logits, model_logits, sample_inputs
from addnorm.errors import InputError
from addnorm.models import DecoderModel

Hidden = Float[Tensor, "seq d_model"]
HeadVectors = Float[Tensor, "heads seq d_head"]


def check_gguf(file: Path, model: DecoderModel) -> None:
    """Raise `InputError` unless the file reproduces the model's logits on a short text."""
    [tokens] = sample_inputs(model)
    expected = model_logits(model, (tokens,))[0]
    exported = GGUFFile(file)
    logits = exported.logits(tokens[0].cpu())
    exported.check_all_read()
    check_logits("GGUF", logits, expected, min(exported.dtype, expected.dtype, key=_bits))


def _bits(dtype: torch.dtype) -> float:
    """The precision of a dtype as a sort key; bfloat16 is the lowest."""
    return -torch.finfo(dtype).eps


class GGUFFile:
    """The settings and tensors of a file, with llama.cpp's forward pass."""

    def __init__(self, file: Path) -> None:
        from gguf import GGUFReader
        from gguf.quants import dequantize

        try:
            reader: Any = GGUFReader(file)
        except ValueError as error:  # the library does not notice a full disk
            raise InputError(f"{file}: its end is missing: is the disk full?") from error
        self.settings = {name: field.contents() for name, field in reader.fields.items()}
        self.architecture: str = self.settings["general.architecture"]
        self._raw = {tensor.name: tensor for tensor in reader.tensors}
        self._dequantize: Any = dequantize
        self._unread = set(self._raw)
        names = {tensor.tensor_type.name for tensor in reader.tensors}
        # The scales of Q8_0 were rounded to halves; those of Q4_0 are as they were.
        narrow = {"F16": torch.float16, "Q8_0": torch.float16, "BF16": torch.bfloat16}
        self.dtype = next((narrow[name] for name in narrow if name in names), torch.float32)

    def key(self, name: str, default: Any = None) -> Any:
        """An architecture-specific setting."""
        return self.settings.get(f"{self.architecture}.{name}", default)

    def tensor(self, name: str) -> Tensor | None:
        """A tensor in row-major layout, or None."""
        if (raw := self._raw.get(name)) is None:
            return None
        self._unread.discard(name)
        return torch.from_numpy(np.array(self._dequantize(raw.data, raw.tensor_type))).double()

    def required(self, name: str) -> Tensor:
        """A required tensor."""
        tensor = self.tensor(name)
        if tensor is None:
            raise InputError(f"GGUF: the file has no {name}")
        return tensor

    def check_all_read(self) -> None:
        """Raise `InputError` if the file has tensors that llama.cpp would not use."""
        if self._unread:
            raise InputError(f"GGUF: {self.architecture} has no {sorted(self._unread)[0]}")

    def logits(self, tokens: Int[Tensor, " seq"]) -> Float[Tensor, "seq vocab"]:
        """The next-token logits at each token."""
        table = self.required("token_embd.weight")
        if table.shape != (self.key("vocab_size"), self.key("embedding_length")):
            raise InputError(f"GGUF: token_embd.weight has shape {tuple(table.shape)}")
        x = table[tokens]
        if self.architecture in ("gemma", "gemma2"):
            x = x * math.sqrt(x.shape[1])
        if (positions := self.tensor("position_embd.weight")) is not None:
            x = x + positions[: len(tokens)]
        for i in range(self.key("block_count")):
            x = self._block(i, x)
        output = self.tensor("output.weight")
        scores = self._norm("output_norm", x) @ (table if output is None else output).T
        return _capped(scores, self.key("final_logit_softcapping"))

    def _block(self, i: int, x: Hidden) -> Hidden:
        block = f"blk.{i}."
        attended = self._attention(i, self._norm(f"{block}attn_norm", x))
        if f"{block}post_attention_norm.weight" in self._raw:
            attended = self._norm(f"{block}post_attention_norm", attended)
        if self.key("use_parallel_residual", False):
            return x + attended + self._feedforward(i, self._norm(f"{block}ffn_norm", x))
        x = x + attended
        fed = self._feedforward(i, self._norm(f"{block}ffn_norm", x))
        if f"{block}post_ffw_norm.weight" in self._raw:
            fed = self._norm(f"{block}post_ffw_norm", fed)
        return x + fed

    def _attention(self, i: int, x: Hidden) -> Hidden:
        block, d_head = f"blk.{i}.", self.key("attention.key_length")
        q, k, v = (
            vectors.unflatten(-1, (-1, d_head)).transpose(0, 1)
            for vectors in self._queries_keys_values(i, x)
        )
        heads = (self.key("attention.head_count"), self.key("attention.head_count_kv"))
        if (len(q), len(k)) != heads or len(v) != heads[1]:
            raise InputError(f"GGUF: layer {i} has {len(q)} and {len(k)} heads, not {heads}")
        if f"{block}attn_q_norm.weight" in self._raw:
            q, k = self._norm(f"{block}attn_q_norm", q), self._norm(f"{block}attn_k_norm", k)
        q, k = self._turned(q), self._turned(k)
        k, v = (vectors.repeat_interleave(len(q) // len(vectors), dim=0) for vectors in (k, v))
        scores = _capped(q @ k.mT / math.sqrt(d_head), self.key("attn_logit_softcapping"))
        weights = (scores + self._bias(i, len(q), x.shape[0])).softmax(-1)
        return self._linear(f"{block}attn_output", (weights @ v).transpose(0, 1).flatten(1))

    def _queries_keys_values(self, i: int, x: Hidden) -> list[Tensor]:
        if f"blk.{i}.attn_qkv.weight" not in self._raw:
            return [self._linear(f"blk.{i}.attn_{part}", x) for part in "qkv"]
        n, n_kv = self.key("attention.head_count"), self.key("attention.head_count_kv")
        d_head = self.key("attention.key_length")
        joined = self._linear(f"blk.{i}.attn_qkv", x)
        return list(joined.split([n * d_head, n_kv * d_head, n_kv * d_head], dim=-1))

    def _bias(self, i: int, n_heads: int, n: int) -> Tensor:
        """The attention mask with ALiBi biases: -∞ where masked."""
        distance = torch.arange(n)[:, None] - torch.arange(n)
        hidden = distance < 0
        if self.architecture == "gemma2" and i % 2 == 0:
            hidden = hidden | (distance >= self.key("attention.sliding_window"))
        bias = torch.zeros(n_heads, n, n, dtype=torch.float64)
        if (most := self.key("attention.max_alibi_bias", 0.0)) > 0.0:
            power = 2 ** math.floor(math.log2(n_heads))
            slopes = [
                2 ** (-most / power * (h + 1))
                if h < power
                else 2 ** (-most / 2 / power * (2 * (h - power) + 1))
                for h in range(n_heads)
            ]
            bias = bias - torch.tensor(slopes, dtype=torch.float64)[:, None, None] * distance.abs()
        return bias.masked_fill(hidden, -math.inf)

    def _turned(self, x: HeadVectors) -> HeadVectors:
        """Apply RoPE to queries or keys, in the layout of the architecture."""
        width = self.key("rope.dimension_count")
        if width is None:
            return x
        scale = 1.0
        if self.key("rope.scaling.type") == "linear":
            scale = 1.0 / self.key("rope.scaling.factor")
        places = torch.arange(0, width, 2, dtype=torch.float64) / width
        frequencies = scale * float(self.key("rope.freq_base")) ** -places
        if (factors := self.tensor("rope_freqs.weight")) is not None:
            frequencies = frequencies / factors
        angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * frequencies
        factor = self.key("rope.scaling.attn_factor", 1.0)
        cos, sin = angles.cos() * factor, angles.sin() * factor
        turning, rest = x[..., :width], x[..., width:]
        if self.architecture == "llama":
            a, b = turning[..., ::2], turning[..., 1::2]
            turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
        else:
            a, b = turning.chunk(2, dim=-1)
            turned = torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
        return torch.cat([turned, rest], dim=-1)

    def _feedforward(self, i: int, x: Hidden) -> Hidden:
        up = self._linear(f"blk.{i}.ffn_up", x)
        if up.shape[1] != self.key("feed_forward_length"):
            raise InputError(f"GGUF: layer {i} has {up.shape[1]} features between its matrices")
        if f"blk.{i}.ffn_gate.weight" not in self._raw:
            return self._linear(f"blk.{i}.ffn_down", F.gelu(up, approximate="tanh"))
        gate = self._linear(f"blk.{i}.ffn_gate", x)
        gemma = self.architecture in ("gemma", "gemma2")
        gate = F.gelu(gate, approximate="tanh") if gemma else F.silu(gate)
        return self._linear(f"blk.{i}.ffn_down", gate * up)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        y, bias = x @ self.required(f"{name}.weight").T, self.tensor(f"{name}.bias")
        return y if bias is None else y + bias

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.required(f"{name}.weight"), self.tensor(f"{name}.bias")
        if (eps := self.key("attention.layer_norm_epsilon")) is not None:
            return F.layer_norm(x, weight.shape, weight, bias, eps)
        if bias is not None:
            raise InputError(f"GGUF: {name} is an RMSNorm with a bias")
        return F.rms_norm(x, weight.shape, weight, self.key("attention.layer_norm_rms_epsilon"))


def _capped(scores: Tensor, cap: float | None) -> Tensor:
    return scores if cap is None else cap * torch.tanh(scores / cap)
