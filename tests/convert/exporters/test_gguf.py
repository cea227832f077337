import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from addnorm.convert.exporters.gguf import (
    add_quantized,
    export_gguf,
    q4_0,
    q8_0,
    reorder_rotary_rows,
)
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import BOS_ID, EOS_ID, PAD_ID, UNK_ID, BPEConfig, CharConfig
from addnorm.errors import InputError
from addnorm.models import DecoderConfig, DecoderModel
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import (
    AttentionConfig,
    FullPatternConfig,
    ScaledDotConfig,
    SelfAttention,
    WindowPatternConfig,
)
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.norms import LayerNormConfig, OffsetRMSNormConfig, RMSNormConfig
from addnorm.nn.positions import (
    ALiBiConfig,
    LearnedConfig,
    LinearScaling,
    Llama3Scaling,
    RotaryConfig,
    YaRNScaling,
)
from addnorm.nn.residuals import ParallelConfig, PreNormConfig, SandwichNormConfig

TEXTS = [f"the {n}th day of the year {n * 37 % 100}; déjà vu, it's 日本!" for n in range(60)]
BPE = BPEConfig(vocab_size=301).train(TEXTS)
CHARS = CharConfig().train(TEXTS)
VOCAB = BPE.vocab_size
LLAMA_LIKE: dict[str, Any] = {
    "d_model": 32,
    "n_layers": 2,
    "max_len": 64,
    "position": RotaryConfig(),
    "attention": AttentionConfig(n_heads=4, n_kv_heads=2, bias=False),
    "feedforward": GatedFeedForwardConfig(d_ff=48),
    "norm": RMSNormConfig(),
    "residual": PreNormConfig(),
}
GPT2_LIKE: dict[str, Any] = {
    "d_model": 32,
    "n_layers": 2,
    "max_len": 64,
    "position": LearnedConfig(),
    "attention": AttentionConfig(n_heads=4),
    "feedforward": FeedForwardConfig(activation="gelu_tanh"),
    "residual": PreNormConfig(),
}
GEMMA_LIKE: dict[str, Any] = LLAMA_LIKE | {
    "attention": AttentionConfig(n_heads=2, n_kv_heads=1, d_head=24, bias=False),
    "feedforward": GatedFeedForwardConfig(d_ff=48, activation="gelu_tanh"),
    "norm": OffsetRMSNormConfig(),
}

MODELS = {
    "llama": DecoderConfig(**LLAMA_LIKE, head=TokenHeadConfig(tied=False)),
    "llama, neighbours, biases, tied, embeddings as they are": DecoderConfig(
        **LLAMA_LIKE
        | {
            "position": RotaryConfig(layout="interleaved", theta=500_000.0),
            "attention": AttentionConfig(n_heads=4),
            "feedforward": GatedFeedForwardConfig(d_ff=48, bias=True),
            "norm": RMSNormConfig(eps=1e-2),
        },
        embedding=EmbeddingConfig(scale="one"),
    ),
    "llama, linear": DecoderConfig(
        **LLAMA_LIKE | {"position": RotaryConfig(scaling=LinearScaling(factor=4.0))}
    ),
    "llama, llama3": DecoderConfig(
        **LLAMA_LIKE
        | {"position": RotaryConfig(scaling=Llama3Scaling(factor=4.0, original_max_len=16))}
    ),
    "llama, yarn": DecoderConfig(
        **LLAMA_LIKE
        | {"position": RotaryConfig(scaling=YaRNScaling(factor=4.0, original_max_len=16))}
    ),
    "qwen2": DecoderConfig(
        **LLAMA_LIKE
        | {"attention": AttentionConfig(n_heads=4, n_kv_heads=2, bias=True, out_bias=False)}
    ),
    "qwen3": DecoderConfig(
        **LLAMA_LIKE
        | {
            "position": RotaryConfig(layout="interleaved"),
            "attention": AttentionConfig(
                n_heads=4, n_kv_heads=2, d_head=12, bias=False, qk_norm=RMSNormConfig()
            ),
        }
    ),
    "gemma": DecoderConfig(**GEMMA_LIKE),
    "gemma2": DecoderConfig(
        **GEMMA_LIKE
        | {
            "residual": SandwichNormConfig(),
            "attention": AttentionConfig(
                n_heads=2, n_kv_heads=1, d_head=24, bias=False, score=ScaledDotConfig(softcap=5.0)
            ),
        },
        head=TokenHeadConfig(softcap=4.0),
        layer_pattern=(
            LayerConfig(pattern=WindowPatternConfig(size=5)),
            LayerConfig(pattern=FullPatternConfig()),
        ),
    ),
    "gpt2": DecoderConfig(**GPT2_LIKE),
    "gpt2, sines, not tied": DecoderConfig(
        **{key: part for key, part in GPT2_LIKE.items() if key != "position"},
        head=TokenHeadConfig(tied=False),
    ),
    "gptneox": DecoderConfig(
        **GPT2_LIKE
        | {"position": RotaryConfig(fraction=0.5), "residual": ParallelConfig(norms="each")}
    ),
    "gptneox, one norm, neighbours": DecoderConfig(
        **GPT2_LIKE | {"position": RotaryConfig(layout="interleaved"), "residual": ParallelConfig()}
    ),
    "gptneox, one after the other": DecoderConfig(
        **GPT2_LIKE
        | {"position": RotaryConfig(), "attention": AttentionConfig(n_heads=4, n_kv_heads=2)}
    ),
    "mpt": DecoderConfig(
        **GPT2_LIKE
        | {
            "d_model": 48,
            "position": ALiBiConfig(),
            "attention": AttentionConfig(n_heads=6, bias=False),
            "feedforward": FeedForwardConfig(activation="gelu_tanh", bias=False),
            "norm": LayerNormConfig(bias=False),
        }
    ),
}


def built(config: DecoderConfig, size: int = VOCAB) -> DecoderModel:
    """The model with every parameter away from where it starts."""
    model = config.build(size).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings and the tensors, float32 where they were narrower."""
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(file)
    settings = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {
        tensor.name: torch.from_numpy(
            np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
        )
        for tensor in reader.tensors
    }
    return settings, tensors


@pytest.mark.parity
@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_written_as_the_architecture_that_it_is(name: str, tmp_path: Path) -> None:
    architecture = name.split(",")[0]
    model = built(MODELS[name])
    export_gguf(model, MODELS[name], Tokenizers(BPE, BPE), tmp_path / "tiny.gguf")
    settings, tensors = _read(tmp_path / "tiny.gguf")
    assert settings["general.architecture"] == architecture
    assert settings["general.name"] == "tiny"
    assert settings[f"{architecture}.block_count"] == 2
    n_written = sum(tensor.numel() for tensor in tensors.values())
    assert n_written >= sum(parameter.numel() for parameter in model.parameters())
    assert [file.name for file in tmp_path.iterdir()] == ["tiny.gguf"]


@pytest.mark.parity
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_the_tensors_of_a_llama(dtype: Any, tmp_path: Path) -> None:
    config = MODELS["llama"]
    model = built(config)
    export_gguf(model, config, Tokenizers(BPE, BPE), tmp_path / "a.gguf", dtype)
    settings, tensors = _read(tmp_path / "a.gguf")
    assert settings["general.file_type"] == {"f32": 0, "f16": 1, "bf16": 32}[dtype]
    sizes = {
        "context_length": 64,
        "embedding_length": 32,
        "feed_forward_length": 48,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 8,
        "attention.value_length": 8,
        "attention.layer_norm_rms_epsilon": pytest.approx(1e-6),
        "rope.dimension_count": 8,
        "rope.freq_base": 10000.0,
        "vocab_size": VOCAB,
    }
    assert {key: settings[f"llama.{key}"] for key in sizes} == sizes
    narrow = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    state = model.state_dict()
    expected = {
        "token_embd.weight": (state["embed.tokens.weight"] * 32**0.5).to(narrow).float(),
        "output_norm.weight": state["stack.norm.weight"],
        "output.weight": state["head.weight"].to(narrow).float(),
    }
    theirs = {
        "attn_norm": "attention_residual.norm",
        "attn_v": "attention.v_proj",
        "attn_output": "attention.out_proj",
        "ffn_norm": "feedforward_residual.norm",
        "ffn_gate": "feedforward.gate_proj",
        "ffn_up": "feedforward.up_proj",
        "ffn_down": "feedforward.down_proj",
    }
    for i in range(2):
        block = f"stack.blocks.{i}."
        for their, ours in theirs.items():
            kind = torch.float32 if "norm" in their else narrow
            weight = state[f"{block}{ours}.weight"]
            expected[f"blk.{i}.{their}.weight"] = weight.to(kind).float()
        for letter, heads in (("q", 4), ("k", 2)):
            weight = state[f"{block}attention.{letter}_proj.weight"].to(narrow).float()
            pairs = weight.view(heads, 2, 4, 32).transpose(1, 2).reshape(heads * 8, 32)
            expected[f"blk.{i}.attn_{letter}.weight"] = pairs
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensors[name], tensor), name


def test_features_are_arranged_in_pairs_and_back() -> None:
    config = DecoderConfig(**LLAMA_LIKE | {"position": RotaryConfig(fraction=0.5)})
    attention = config.build(VOCAB).stack.blocks[0].attention
    assert isinstance(attention, SelfAttention)
    rows = torch.arange(32)
    pairs = reorder_rotary_rows(rows, attention, in_pairs=True)
    assert pairs[:8].tolist() == [0, 2, 1, 3, 4, 5, 6, 7]
    assert pairs[8:].tolist() == (pairs[:-8] + 8).tolist()
    assert reorder_rotary_rows(rows, attention, in_pairs=False) is rows
    neighbours = DecoderConfig(
        **LLAMA_LIKE | {"position": RotaryConfig(fraction=0.5, layout="interleaved")}
    )
    other = neighbours.build(VOCAB).stack.blocks[0].attention
    assert isinstance(other, SelfAttention)
    assert torch.equal(reorder_rotary_rows(pairs, other, in_pairs=False), rows)


@pytest.mark.parity
def test_fused_and_repeated_tensors(tmp_path: Path) -> None:
    config = MODELS["gptneox, one norm, neighbours"]
    model = built(config)
    export_gguf(model, config, Tokenizers(BPE, BPE), tmp_path / "a.gguf")
    settings, tensors = _read(tmp_path / "a.gguf")
    assert settings["gptneox.use_parallel_residual"]
    assert tensors["blk.1.attn_qkv.weight"].shape == (96, 32)
    assert tensors["blk.1.attn_qkv.bias"].shape == (96,)
    assert torch.equal(tensors["blk.1.attn_norm.bias"], tensors["blk.1.ffn_norm.bias"])
    assert torch.equal(tensors["output.weight"], model.head.weight)


@pytest.mark.parity
def test_the_vocabulary_and_its_special_ids(tmp_path: Path) -> None:
    config = MODELS["gpt2"]
    model = built(config, VOCAB + 2)
    export_gguf(model, config, Tokenizers(BPE, BPE), tmp_path / "a.gguf")
    settings, _ = _read(tmp_path / "a.gguf")
    kept = {key: settings[f"tokenizer.ggml.{key}"] for key in ("model", "pre", "add_bos_token")}
    assert kept == {"model": "gpt2", "pre": "gpt-2", "add_bos_token": True}
    ids = [
        settings[f"tokenizer.ggml.{key}_token_id"] for key in ("bos", "eos", "unknown", "padding")
    ]
    assert ids == [BOS_ID, EOS_ID, UNK_ID, PAD_ID]
    assert len(settings["tokenizer.ggml.tokens"]) == VOCAB + 2
    assert settings["tokenizer.ggml.tokens"][-1] == f"[UNUSED{VOCAB + 1}]"


@pytest.mark.parity
def test_an_export_replaces_the_file_and_a_refusal_leaves_it(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    file = tmp_path / "a.gguf"
    file.write_bytes(b"old")
    refused = DecoderConfig(d_model=32, n_layers=1, attention=AttentionConfig(n_heads=4))
    with pytest.raises(InputError, match="nearest is"):
        export_gguf(built(refused), refused, Tokenizers(BPE, BPE), file)
    assert file.read_bytes() == b"old"
    config = MODELS["gpt2"]
    export_gguf(built(config), config, Tokenizers(BPE, BPE), file)
    assert file.read_bytes()[:4] == b"GGUF"
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    config = MODELS["gpt2"]
    with pytest.raises(InputError, match=r"pip install 'addnorm\[gguf\]'"):
        export_gguf(built(config), config, Tokenizers(BPE, BPE), tmp_path / "a.gguf")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_continues_prompts_as_ours_does(name: str, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    model = built(MODELS[name])
    export_gguf(model, MODELS[name], Tokenizers(BPE, BPE), tmp_path / "a.gguf")
    wide = llama_cpp.GGML_TYPE_F32  # the cache is of half precision unless one asks
    llama = llama_cpp.Llama(
        str(tmp_path / "a.gguf"),
        n_ctx=64,
        logits_all=True,
        type_k=wide,
        type_v=wide,
        n_threads=1,
        verbose=False,
    )
    ids = [BOS_ID, *BPE.encode("the 8th day of 日本, it's déjà vu")][:30]
    llama.eval(ids)
    with torch.inference_mode():
        ours = model(torch.tensor([ids]))[0]
    theirs = torch.from_numpy(np.array(llama.scores[: len(ids)]))
    torch.testing.assert_close(
        theirs, ours, atol=TOLERANCE[MODELS[name].feedforward.activation], rtol=0.0
    )
    for _ in range(20):
        following = int(torch.from_numpy(np.array(llama.scores[len(ids) - 1])).argmax())
        with torch.inference_mode():
            assert following == int(model(torch.tensor([ids]))[0, -1].argmax())
        ids.append(following)
        llama.eval([following])


TOLERANCE = {"silu": 1e-3, "gelu_tanh": 5e-3}
"""llama.cpp looks GELU up in a table of half-precision numbers."""


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("tokenizer", [BPE, CHARS], ids=["bpe", "char"])
def test_llama_cpp_reads_and_writes_text_as_ours_does(tokenizer: Any, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    config = MODELS["llama"]
    model = built(config, tokenizer.vocab_size)
    export_gguf(model, config, Tokenizers(tokenizer, tokenizer), tmp_path / "a.gguf")
    llama = llama_cpp.Llama(str(tmp_path / "a.gguf"), vocab_only=True, verbose=False)
    for text in [*TEXTS[:9], " two  spaces\n\nand lines", "ééé 日日", "<bos> is no start"]:
        known = (
            text
            if tokenizer is BPE
            else "".join(c for c in text if tokenizer.encode(c) != [UNK_ID])
        )
        ids = tokenizer.encode(known)
        assert llama.tokenize(known.encode(), add_bos=False, special=False) == ids
        assert llama.detokenize(ids).decode() == known
    assert llama.tokenize(b"a", add_bos=True) == [BOS_ID, *tokenizer.encode("a")]


@pytest.fixture
def _library() -> None:
    pytest.importorskip("gguf")


class Written:
    """What a writer is given."""

    def __init__(self) -> None:
        self.tensors: dict[str, tuple[Any, Any]] = {}

    def add_tensor(self, name: str, data: Any, raw_dtype: Any = None) -> None:
        self.tensors[name] = (data, raw_dtype)

    def read(self, name: str) -> torch.Tensor:
        from gguf.quants import dequantize

        return torch.from_numpy(np.array(dequantize(*self.tensors[name])))


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_blocks_read_back_by_gguf_are_the_numbers_that_went_in(kind: str, blocks: int) -> None:
    most = 127 if kind == "q8_0" else 7
    whole = torch.randint(-most - 1, most + 1, (5, 32 * blocks))
    scale = (torch.randn(5, blocks).half().float()).repeat_interleave(32, 1)
    written = Written()
    add_quantized(written, "w", whole * scale, scale, kind)
    assert torch.equal(written.read("w"), whole * scale)
    assert written.tensors["w"][0].shape == (5, blocks * (34 if kind == "q8_0" else 18))


def test_the_layout_of_a_block() -> None:
    """4 bits: the first sixteen numbers are in the lower halves, the others in the upper."""
    whole = torch.zeros(1, 1, 32, dtype=torch.int8)
    whole[..., 0], whole[..., 16] = -8, 7
    scale = torch.ones(1, 1).half()
    assert q4_0(whole, scale)[0, 0].tolist() == [0x00, 0x3C, 0xF0] + 15 * [0x88]
    assert q8_0(whole, scale)[0, 0, :3].tolist() == [0x00, 0x3C, 256 - 8]


@pytest.mark.usefixtures("_library")
def test_tensors_other_than_quantised_matrices_stay_float32() -> None:
    written = Written()
    add_quantized(written, "norm.weight", torch.ones(32), torch.ones(32), "q8_0")
    add_quantized(written, "kept", torch.ones(2, 32), torch.zeros(2, 32), "q8_0")
    add_quantized(written, "position_embd.weight", torch.ones(2, 32), torch.ones(2, 32), "q8_0")
    assert all(kind is None for _, kind in written.tensors.values())


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize(
    ("columns", "scale", "says"),
    [
        (33, 1.0, "blocks of 32 numbers, and w rows of 33"),
        (32, 1e-8, "too coarse for w"),
        (32, 1e6, "too coarse for w"),
    ],
)
def test_rows_and_scales_that_gguf_lacks_are_refused(columns: int, scale: float, says: str) -> None:
    with pytest.raises(InputError, match=says):
        add_quantized(
            Written(), "w", torch.ones(2, columns) * scale, torch.full((2, columns), scale), "q8_0"
        )


@pytest.mark.usefixtures("_library")
def test_a_matrix_quantised_in_part_is_refused() -> None:
    scale = torch.ones(4, 32)
    scale[2:] = 0.0
    with pytest.raises(InputError, match="one type for all of w"):
        add_quantized(Written(), "w", torch.ones(4, 32), scale, "q4_0")
