"""GGUF files are read back: any disagreement with the model is detected."""

from pathlib import Path
from typing import Any

import pytest
import torch

from addnorm.convert.exporters.gguf import export_gguf
from addnorm.convert.exporters.gguf_check import GGUFFile, check_gguf
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import BPEConfig
from addnorm.errors import InputError
from addnorm.models import DecoderConfig, DecoderModel
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.attention.outputs import GatedOutputConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import RotaryConfig
from addnorm.nn.residuals import PreNormConfig

BPE = BPEConfig(vocab_size=270).train(["one two three"] * 3)
LLAMA: dict[str, Any] = {
    "d_model": 32,
    "n_layers": 2,
    "position": RotaryConfig(),
    "attention": AttentionConfig(n_heads=4, bias=False),
    "feedforward": GatedFeedForwardConfig(d_ff=48),
    "norm": RMSNormConfig(),
    "residual": PreNormConfig(),
}
CONFIG = DecoderConfig(**LLAMA)

pytestmark = pytest.mark.parity


def _model(config: DecoderConfig = CONFIG) -> DecoderModel:
    pytest.importorskip("gguf")
    return config.build(BPE.vocab_size).eval()


def _export(model: DecoderModel, file: Path, config: DecoderConfig = CONFIG) -> None:
    export_gguf(model, config, Tokenizers(BPE, BPE), file)


def test_the_file_gives_the_logits_of_the_model(tmp_path: Path) -> None:
    model = _model()
    _export(model, tmp_path / "a.gguf")
    tokens = torch.tensor([3, 1, 4, 1, 5])
    with torch.inference_mode():
        ours = model(tokens[None])[0]
    theirs = GGUFFile(tmp_path / "a.gguf").logits(tokens)
    torch.testing.assert_close(theirs.float(), ours, atol=1e-5, rtol=1e-5)


def test_a_file_without_its_end_is_refused(tmp_path: Path) -> None:
    """What a full disk leaves; the library that writes does not notice it."""
    _export(_model(), tmp_path / "a.gguf")
    whole = (tmp_path / "a.gguf").read_bytes()
    (tmp_path / "a.gguf").write_bytes(whole[:-100])
    with pytest.raises(InputError, match=r"a.gguf: its end is missing: is the disk full\?"):
        GGUFFile(tmp_path / "a.gguf")


@pytest.mark.parametrize("change", ["weight", "eps", "frequencies"])
def test_reading_back_refuses_a_model_with_other_weights(change: str, tmp_path: Path) -> None:
    model = _model()
    _export(model, tmp_path / "a.gguf")
    check_gguf(tmp_path / "a.gguf", model)
    if change == "weight":
        model.stack.blocks[1].feedforward.gate_proj.weight.data *= 1.5
    elif change == "eps":
        model.stack.norm.eps = 1.0
    else:
        model.embed.position.frequencies *= 1.5
    with pytest.raises(InputError, match="read back, its logits differ"):
        check_gguf(tmp_path / "a.gguf", model)


def test_a_wrong_file_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = _model()
    monkeypatch.setattr("addnorm.convert.exporters.gguf.THETA", 5.0)
    monkeypatch.setattr("addnorm.convert.exporters.gguf.geometric", lambda _: (5.0, 1.0))
    with pytest.raises(InputError, match="read back, its logits differ"):
        _export(model, tmp_path / "a.gguf")
    assert not list(tmp_path.iterdir())


def test_bases_that_differ_from_layer_to_layer_are_refused(tmp_path: Path) -> None:
    layers = tuple(LayerConfig(position=RotaryConfig(theta=theta)) for theta in (100.0, 1e6))
    config = DecoderConfig(**LLAMA, layer_pattern=layers)
    with pytest.raises(
        InputError, match=r"GGUF has one value for all layers, not .*frequencies .* of layer 1"
    ):
        _export(_model(config), tmp_path / "a.gguf", config)
    same = DecoderConfig(**LLAMA, layer_pattern=layers[:1])
    _export(_model(same), tmp_path / "a.gguf", same)
    assert GGUFFile(tmp_path / "a.gguf").key("rope.freq_base") == pytest.approx(100.0)


def test_a_gate_and_attention_replaced_after_building_are_refused(tmp_path: Path) -> None:
    gated = AttentionConfig(n_heads=4, bias=False, output=GatedOutputConfig())
    config = DecoderConfig(**LLAMA | {"attention": gated})
    says = r"GGUF cannot hold attention.output \(GatedOutput\) of layer "
    with pytest.raises(InputError, match=f"{says}0"):
        _export(_model(config), tmp_path / "a.gguf", config)
    model = _model()
    model.stack.blocks[1].attention = _model(config).stack.blocks[1].attention
    with pytest.raises(InputError, match=f"{says}1"):
        _export(model, tmp_path / "a.gguf")
    assert not list(tmp_path.iterdir())
