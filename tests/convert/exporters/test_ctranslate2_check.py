"""CTranslate2 exports are run and compared: differences are detected."""

from pathlib import Path
from typing import Any

import pytest

from addnorm.convert.exporters.ctranslate2 import export_ctranslate2
from addnorm.convert.exporters.ctranslate2_check import check_ctranslate2
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import WordConfig
from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.attention.outputs import GatedOutputConfig

WORDS = WordConfig().train([" ".join(f"w{i}" for i in range(40))])
BOTH = Tokenizers(WORDS, WORDS)
SMALL: dict[str, Any] = {"d_model": 32, "n_layers": 2, "attention": AttentionConfig(n_heads=4)}
CONFIGS = [DecoderConfig(**SMALL), EncoderDecoderConfig(**SMALL)]

pytestmark = pytest.mark.parity


def _exported(config: Any, folder: Path) -> Any:
    pytest.importorskip("ctranslate2")
    model = config.build(WORDS.vocab_size).eval()
    export_ctranslate2(model, config, BOTH, folder)
    return model


@pytest.mark.parametrize("config", CONFIGS)
def test_a_model_that_is_another_by_now_is_refused(config: Any, tmp_path: Path) -> None:
    model = _exported(config, tmp_path / "out")
    check_ctranslate2(tmp_path / "out", model, BOTH, None)
    stack = model.decoder if isinstance(config, EncoderDecoderConfig) else model.stack
    stack.blocks[0].attention.v_proj.weight.data *= 1.5
    with pytest.raises(InputError, match="CTranslate2 cannot hold this model: read back"):
        check_ctranslate2(tmp_path / "out", model, BOTH, None)


@pytest.mark.parametrize("config", CONFIGS)
def test_a_gate_is_refused_in_whatever_layer_it_stands(config: Any, tmp_path: Path) -> None:
    model = _exported(config, tmp_path / "out")
    stack = model.decoder if isinstance(config, EncoderDecoderConfig) else model.stack
    gated = AttentionConfig(n_heads=4, output=GatedOutputConfig())
    part = gated.build_parts(32, layer=1)["output"]
    stack.blocks[1].attention.output = part
    with pytest.raises(
        InputError, match=r"CTranslate2 cannot hold attention.output \(GatedOutput\) of layer 1"
    ):
        export_ctranslate2(model, config, BOTH, tmp_path / "new")
    assert not (tmp_path / "new").exists()
