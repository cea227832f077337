"""The text halves of models that also read images, against transformers with text alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.parity.families import changed, check_logits, padded, prompts, started

from addnorm.checking.wide import Wide
from addnorm.convert.folder import load, save
from addnorm.errors import IgnoredSettings, InputError
from addnorm.generate import GreedyConfig, generate

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:.*only the text half:addnorm.errors.IgnoredSettings"),
]

Tree = dict[str, Any]

TEXT: Tree = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SIGHT: Tree = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}
QWEN_SIGHT: Tree = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 16,
}
IMAGE: Tree = {"image_token_id": 5}
QWEN_IMAGE: Tree = {**IMAGE, "video_token_id": 6, "vision_start_token_id": 7}


def m_rope(*sections: int, **others: Any) -> Tree:
    return {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 100.0,
            "mrope_section": list(sections),
            **others,
        }
    }


KINDS: dict[str, tuple[str, Tree, Tree, Tree]] = {
    "gemma3": ("Gemma3", {"layer_types": ["sliding_attention", "full_attention"],
               "sliding_window": 4, "query_pre_attn_scalar": 8}, SIGHT,
               {"image_token_index": 5, "mm_tokens_per_image": 1, "boi_token_index": 6,
                "eoi_token_index": 7}),
    "mistral3": ("Mistral3", {"model_type": "mistral"}, SIGHT, {"image_token_index": 5}),
    "llava": ("Llava", {"model_type": "llama"}, SIGHT, {"image_token_index": 5}),
    "smolvlm": ("SmolVLM", {"model_type": "llama"}, SIGHT, {**IMAGE, "scale_factor": 2}),
    "idefics3": ("Idefics3", {"model_type": "llama"}, SIGHT, {**IMAGE, "scale_factor": 2}),
    "qwen2_5_vl": ("Qwen2_5_VL", m_rope(2, 1, 1), QWEN_SIGHT, QWEN_IMAGE),
    "qwen3_vl": ("Qwen3VL", m_rope(2, 1, 1, mrope_interleaved=True),
                 {**QWEN_SIGHT, "deepstack_visual_indexes": [0]}, QWEN_IMAGE),
}  # fmt: skip
"""The stem of the classes, the settings of the text and of the images, and those of both."""


def made(kind: str, folder: Path) -> Any:
    """A random model of transformers, in `folder`."""
    stem, text, sight, top = KINDS[kind]
    text = TEXT | text
    if kind == "qwen2_5_vl":
        del text["head_dim"]
    config = getattr(transformers, f"{stem}Config")(text_config=text, vision_config=sight, **top)
    torch.manual_seed(0)
    with Wide():
        theirs: Any = started(getattr(transformers, f"{stem}ForConditionalGeneration")(config))
    for weight in theirs.parameters():
        weight.data = weight.data.float()
    theirs.save_pretrained(folder)
    return theirs.double()


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_text_is_read_as_in_transformers(kind: str, tmp_path: Path) -> None:
    theirs = made(kind, tmp_path)
    ids, _ = padded([[i % 50 + 8 for i in row] for row in prompts(64)], left=False)
    check_logits(theirs, tmp_path, {"input_ids": ids}, {"tokens": ids})
    with pytest.warns(IgnoredSettings, match=r"config\.json: only the text half .*vision_config"):
        loaded = load(tmp_path, dtype=torch.float64)
    rows = [[i % 50 + 8 for i in row] for row in prompts(64)]
    written = generate(loaded.model, rows, GreedyConfig(), max_new_tokens=6, eos_id=None)  # type: ignore[arg-type]
    for row, best in zip(rows, written, strict=True):
        ids = torch.tensor([[*row, *best[0].ids]])
        with torch.no_grad(), Wide():
            expected = theirs(input_ids=ids).logits[0, len(row) - 1 : -1].argmax(-1)
        assert list(best[0].ids) == expected.tolist()
    out = save(tmp_path / "text", loaded.spec, loaded.model, None)
    assert out in ("gemma3_text", "mistral", "llama", "qwen2", "qwen3")
    weights, again = loaded.model.state_dict(), load(tmp_path / "text").model.state_dict()
    assert all(torch.equal(again[name], weights[name]) for name in weights)


def test_older_names_and_a_flat_configuration(tmp_path: Path) -> None:
    """As Qwen2.5-VL was published: no text_config, `mrope` as a type, `model.` and `visual.`."""
    made("qwen2_5_vl", tmp_path)
    loaded = load(tmp_path)
    tree = json.loads((tmp_path / "config.json").read_text())
    text = tree.pop("text_config")
    rope = {"type": "mrope", "mrope_section": [2, 1, 1]}
    flat = {k: v for k, v in text.items() if k not in ("rope_parameters", "model_type")}
    flat |= {"rope_scaling": rope, "rope_theta": 100.0}
    (tmp_path / "config.json").write_text(json.dumps(flat | tree))
    weights = load_file(tmp_path / "model.safetensors")
    older = {
        name.replace("model.language_model.", "model.").replace("model.visual.", "visual."): weight
        for name, weight in weights.items()
    }
    save_file(older, tmp_path / "model.safetensors")
    again = load(tmp_path)
    assert again.spec == loaded.spec
    state = loaded.model.state_dict()
    assert all(torch.equal(again.model.state_dict()[name], state[name]) for name in state)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"something_new": 3}, "something_new = 3 is not supported"),
        ({"text_config": {**TEXT, "something_new": 3}}, "text_config: something_new = 3"),
        ({"text_config": 3}, "text_config = 3 must be an object"),
    ],
)
def test_unsupported_settings_are_named(changes: Tree, match: str, tmp_path: Path) -> None:
    made("llava", tmp_path)
    changed(tmp_path, changes)
    with pytest.raises(InputError, match=match):
        load(tmp_path)
