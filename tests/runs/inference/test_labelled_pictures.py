"""Pictures and texts in one space: CLIP and SigLIP folders as transformers reads them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image as pillow
from tests.parity.families import started
from tokenizers.pre_tokenizers import ByteLevel
from torch.testing import assert_close

from addnorm.data import Captioned, Corpus
from addnorm.data.examples import Report
from addnorm.data.readers.images import read_image
from addnorm.errors import InputError
from addnorm.runs.run import Run

START, END = "<|startoftext|>", "<|endoftext|>"
LABELS = ["a cat", "two Dogs!", "Bäume"]


def tokenizer() -> Any:
    """A CLIP tokenizer of single bytes and two merges."""
    letters = sorted(ByteLevel.alphabet())
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), "ca", "cat</w>", START, END]
    vocab = {token: i for i, token in enumerate(tokens)}
    return transformers.CLIPTokenizer(vocab=vocab, merges=[("c", "a"), ("ca", "t</w>")])


def clip(folder: Path) -> Any:
    """A random CLIP with its tokenizer and image processor."""
    torch.manual_seed(0)
    reads = tokenizer()
    config = transformers.CLIPConfig(
        text_config={
            "hidden_size": 8,
            "intermediate_size": 9,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "max_position_embeddings": 60,
            "vocab_size": len(reads),
            "bos_token_id": reads.bos_token_id,
            "eos_token_id": reads.eos_token_id,
            "pad_token_id": reads.pad_token_id,
        },
        vision_config={
            "hidden_size": 6,
            "intermediate_size": 9,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 8,
            "patch_size": 4,
        },
        projection_dim=5,
    )
    theirs = started(transformers.CLIPModel(config))
    theirs.save_pretrained(folder)
    reads.save_pretrained(folder)
    sizes = {"size": {"shortest_edge": 8}, "crop_size": {"height": 8, "width": 8}}
    transformers.CLIPImageProcessorPil(**sizes).save_pretrained(folder)
    return theirs


def pictures(folder: Path) -> list[Path]:
    """Noise of several shapes in colours."""
    files = []
    for i, (height, width) in enumerate(((8, 8), (13, 30), (40, 11))):
        pixels = torch.randint(0, 255, (height, width, 3), dtype=torch.uint8)
        files.append(folder / f"{i}.png")
        pillow.fromarray(pixels.numpy()).save(files[-1])
    return files


@pytest.mark.long
@pytest.mark.parity
def test_clip_is_that_of_transformers(tmp_path: Path) -> None:
    theirs, folder = clip(tmp_path), tmp_path
    files, run = pictures(tmp_path), Run.open(folder)
    reads = transformers.CLIPTokenizer.from_pretrained(folder)
    processor = transformers.CLIPImageProcessorPil.from_pretrained(folder)
    sentences = [f"This is a photo of {label}." for label in LABELS]
    ids = reads(sentences, padding=True, return_tensors="pt")
    pixels = processor([pillow.open(file) for file in files], return_tensors="pt")
    with torch.no_grad():
        outputs = theirs(**ids, **pixels)
    found = dict(run.classify_files(files, labels=LABELS))
    rows = outputs.logits_per_image.softmax(-1)
    for file, row in zip(files, rows, strict=True):
        assert_close(torch.tensor([*found[file].probabilities.values()]), row, rtol=1e-5, atol=1e-5)
        assert found[file].label == LABELS[int(row.argmax())]
    vectors = torch.stack([vector for _, vector in run.embed_files(files)])
    assert_close(vectors, outputs.image_embeds, rtol=1e-5, atol=1e-5)
    assert_close(run.embed(sentences), outputs.text_embeds, rtol=1e-5, atol=1e-5)
    # Data of the same pictures are scaled as the folder scales its files.
    texts = [LABELS[1], LABELS[0]]
    shapes = [
        Captioned(read_image(file, "", (8, 8), 3), text)
        for file, text in zip(files, texts, strict=False)
    ]
    data = Corpus(shapes, valid=shapes, reports={"train": Report(2, 2), "valid": Report(2, 2)})
    examples = Run.open(folder, {"train.batching.kind": "examples"})
    scores = examples.evaluate(data, split="valid")
    pixels = processor(
        [pillow.fromarray(x.pixels.movedim(0, -1).numpy()) for x in shapes], return_tensors="pt"
    )
    ids = reads(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        loss = theirs(**ids, **pixels, return_loss=True).loss
    assert abs(scores["loss"] - float(loss)) < 1e-4
    # And from the folder that is exported, transformers reads the same.
    out = run.export(tmp_path / "exported")
    again = transformers.CLIPModel.from_pretrained(out)
    pixels = processor([pillow.open(file) for file in files], return_tensors="pt")
    ids = transformers.AutoTokenizer.from_pretrained(out)(
        sentences, padding=True, return_tensors="pt"
    )
    ids.pop("token_type_ids", None)
    with torch.no_grad():
        assert_close(again(**ids, **pixels).logits_per_image, outputs.logits_per_image)
    assert json.loads((out / "preprocessor_config.json").read_text())["crop_size"]["height"] == 8


def test_labels_without_a_choice_are_refused(tmp_path: Path) -> None:
    clip(tmp_path)
    run, [file, *_] = Run.open(tmp_path), pictures(tmp_path)
    for options, message in (
        ({}, "name the classes by `labels`"),
        ({"labels": ["a", "a"]}, "at least two, each once"),
        ({"labels": ["a", "b"], "hypothesis": "a photo"}, "it needs a {}"),
        ({"labels": ["a", "b"], "threshold": 0.3}, "`threshold` is for texts"),
    ):
        with pytest.raises(InputError, match=message):
            list(run.classify_files([file], **options))  # type: ignore[arg-type]
