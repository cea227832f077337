"""An ONNX folder is run by onnxruntime: a difference from the model is found."""

from pathlib import Path

import pytest

from addnorm.convert.exporters.onnx import export_onnx
from addnorm.convert.exporters.onnx_check import Session, check_onnx
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig

CONFIG = DecoderConfig(d_model=16, n_layers=1, attention=AttentionConfig(n_heads=2))

pytestmark = pytest.mark.parity


def test_a_model_that_is_another_by_now_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    model = CONFIG.build(11).eval()
    export_onnx(model, CONFIG, tmp_path)
    check_onnx(tmp_path, model)
    session = Session(tmp_path / "decoder_model.onnx")
    assert {one.shape for one in session.empty_past().values()} == {(1, 2, 0, 8)}
    model.stack.blocks[0].feedforward.up_proj.weight.data *= 2.0
    with pytest.raises(InputError, match="ONNX cannot hold this model: read back"):
        check_onnx(tmp_path, model)
