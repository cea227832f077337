"""ONNX exports are run by onnxruntime: differences are detected."""

from pathlib import Path

import pytest
import torch

from addnorm.convert.exporters.onnx import export_onnx
from addnorm.convert.exporters.onnx_check import Session, check_onnx
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig

CONFIG = DecoderConfig(d_model=16, n_layers=1, attention=AttentionConfig(n_heads=2))

pytestmark = pytest.mark.parity


@pytest.mark.long
def test_reading_back_refuses_a_model_with_other_weights(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    model = CONFIG.build(11).eval()
    export_onnx(model, CONFIG, tmp_path)
    check_onnx(tmp_path, model)
    session = Session(tmp_path / "decoder_model.onnx")
    assert {one.shape for one in session.empty_past().values()} == {(1, 2, 0, 8)}
    inputs = session.empty_past() | {"input_ids": torch.ones(1, 3).long()}
    with pytest.raises(InputError, match=r"decoder_model.onnx needs attention_mask: it reads inp"):
        session.run(inputs)
    for mask in (torch.ones(1, 3), torch.ones(3).long()):
        with pytest.raises(InputError, match=r"onnxruntime cannot run it on these inputs: \S"):
            session.run(inputs | {"attention_mask": mask})
    model.stack.blocks[0].feedforward.up_proj.weight.data *= 2.0
    with pytest.raises(InputError, match="ONNX cannot hold this model: read back"):
        check_onnx(tmp_path, model)


def test_a_file_that_cannot_be_opened_is_refused_in_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    file = tmp_path / "model.onnx"
    with pytest.raises(InputError, match=r"model.onnx: onnxruntime cannot open it: \S"):
        Session(file)
    file.write_bytes(b"no graph")
    with pytest.raises(InputError, match=r"model.onnx: onnxruntime cannot open it: \S") as caught:
        Session(file)
    assert "\n" not in str(caught.value)
