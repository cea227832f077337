"""What bad input gets, from checkpoints to chat: one message, status 2, nothing written.

A sound of another rate is resampled (`data/readers/test_audio.py`); experts that groups do not
divide are refused by the part (`nn/test_routers.py`).
"""

import json
import math
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.convert.exporters.test_gguf import BPE, MODELS, built
from tests.data.chat_templates import TOOLS

from addnorm.cli.main import status
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.exporters.gguf import export_gguf
from addnorm.convert.folder import save
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.nn.embed import EmbeddingConfig

pytestmark = pytest.mark.filterwarnings("ignore::addnorm.errors.IgnoredSettings")

BOTH = Tokenizers(BPE, BPE)
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of Qwen 2, whose queries, keys and values have biases."""
    config = replace(MODELS["qwen2"], embedding=EmbeddingConfig(scale="one"))
    spec = ModelSpec(model=config, vocab_size=BPE.vocab_size)
    save(tmp_path / "model", spec, built(config), BOTH, model_type="qwen2")
    return tmp_path / "model"


def config(**keys: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tree = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(tree | keys))

    return change


def tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors[name] = change(tensors[name])
        save_file(tensors, folder / "model.safetensors")

    return rewrite


def fp8(folder: Path) -> None:
    config(quantization_config=FP8)(folder)
    tensor("model.layers.0.mlp.up_proj.weight", lambda w: w.to(torch.float8_e4m3fn))(folder)


def vector_of_fp8(folder: Path) -> None:
    config(quantization_config=FP8)(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight_scale_inv"] = torch.ones(1)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, folder / "model.safetensors")


def gptq_beside_the_weight(folder: Path) -> None:
    config(quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 128})(folder)
    tensors = load_file(folder / "model.safetensors")
    layer = "model.layers.0.mlp.up_proj"
    rows, columns = tensors[f"{layer}.weight"].shape
    tensors[f"{layer}.qweight"] = torch.zeros(columns // 8, rows, dtype=torch.int32)
    tensors[f"{layer}.qzeros"] = torch.zeros(1, rows // 8, dtype=torch.int32)
    tensors[f"{layer}.scales"] = torch.ones(1, rows, dtype=torch.float16)
    save_file(tensors, folder / "model.safetensors")


CHECKPOINTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a key that no rule reads": (config(rope_tetha=5.0), "config.json: rope_tetha = 5.0 is not"),
    "an unknown layer type": (
        config(layer_types=["full_attention", "ful_attention"]),
        "ful_attention is neither full_attention nor sliding_attention",
    ),
    "a bias of the wrong length": (
        tensor("model.layers.0.self_attn.q_proj.bias", lambda bias: bias[:-1].clone()),
        "has shape (31,), expected (32,)",
    ),
    "scales missing beside FP8": (
        fp8,
        "up_proj.weight is float8_e4m3fn without scales: model.layers.0.mlp.up_proj.weight_scale",
    ),
    "a vector of FP8": (vector_of_fp8, "model.norm.weight has shape (32,): FP8 has scales for"),
    "a weight of two forms": (
        gptq_beside_the_weight,
        "model.layers.0.mlp.up_proj.weight is stored twice: as it is, and as gptq in",
    ),
    "a weight of another shape": (
        tensor("model.layers.0.mlp.up_proj.weight", lambda weight: weight[1:].clone()),
        "config.json: model.layers.0.mlp.up_proj.weight: stack.blocks.0.feedforward.up_proj.weight",
    ),
    "a number that is none": (
        config(rope_parameters={"rope_type": "longrope", "short_factor": [math.nan]}),
        "config.json: damaged: 'short_factor': NaN is not JSON",
    ),
    "many wrong numbers": (
        config(
            rope_parameters={
                "rope_type": "longrope",
                "original_max_position_embeddings": 8,
                "short_factor": [0.0] * 4,
                "long_factor": [0.0] * 4,
            }
        ),
        "short_factor[0] = 0.0",
    ),
    "another quantisation": (
        config(quantization_config={"quant_method": "bitsandbytes"}),
        "quant_method = 'bitsandbytes' is not supported. Valid: mxfp4, fp8, gptq, awq",
    ),
}


@pytest.mark.parametrize(("change", "expected"), CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_a_checkpoint_is_refused(
    change: Callable[[Path], None],
    expected: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change(folder)
    capsys.readouterr()
    assert status(["export", str(folder), str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert str(folder) in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-4096])


def of_type_77(file: Path) -> None:
    data = file.read_bytes()
    at = data.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16
    file.write_bytes(data[:at] + struct.pack("<I", 77) + data[at + 4 :])


@pytest.mark.parametrize(
    ("change", "expected"),
    [(cut, "cut short: the data of"), (of_type_77, "'token_embd.weight' is of type 77")],
    ids=["cut short", "an unknown type"],
)
def test_a_gguf_file_is_refused(
    change: Callable[[Path], None],
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("gguf")
    file = tmp_path / "model.gguf"
    export_gguf(built(MODELS["llama"]), MODELS["llama"], BOTH, file)
    change(file)
    capsys.readouterr()
    assert status(["export", str(file), str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert f"{file}: " in error
    assert expected in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


PICTURE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.png"}}]}]
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (PICTURE, 'message 1: piece 1 is of type "image_url": this model reads text alone'),
        ({"messages": HELLO, "tools": TOOLS}, "tools: the chat template of this model takes none"),
    ],
    ids=["a picture", "tools without a template"],
)
def test_a_conversation_is_refused(
    tree: Any, expected: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    file = folder / "ask.json"
    file.write_text(json.dumps(tree))
    capsys.readouterr()
    assert status(["generate", str(folder), "--messages", str(file)]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1
