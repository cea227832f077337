"""Exported runs give the same text in the other library."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.runs.recipes.test_starting_model import GPT2_PARTS
from tests.runs.tiny import train_tiny

import addnorm
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.folder import save
from addnorm.data.batches.windows import WindowsConfig
from addnorm.errors import InputError
from addnorm.generate import BeamConfig, GreedyConfig, RulesConfig, SampleConfig
from addnorm.models import EncoderConfig, presets
from addnorm.nn.crf import CRFHeadConfig
from addnorm.quantize import DynamicConfig, Int4Config, Int8Config
from addnorm.runs.evaluation import evaluate_run
from addnorm.runs.export import Form, export_run, unsupported_forms
from addnorm.runs.files.folder import AROUND, WEIGHTS
from addnorm.runs.inference.text import write
from addnorm.runs.rewriting.quantize import quantize_run
from addnorm.runs.run import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory.mktemp("run"), "language", **GPT2_PARTS)


@pytest.fixture(scope="module")
def crf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory.mktemp("crf"), "crf")


@pytest.fixture(scope="module")
def exported(run: Path) -> Path:
    out = run.parent / "exported"
    assert export_run(Run.open(run), out, to="hf") == [
        f"{out}: a gpt2 folder, for transformers.GPT2LMHeadModel.from_pretrained"
    ]
    return out


README_PARTS: dict[str, str] = {
    "model.position": '"rotary"',
    "model.feedforward": '"gated"',
    "model.norm": '"rmsnorm"',
    "model.residual": '"pre"',
    "model.embedding": '{scale = "one"}',
}
"""The parts of the recipe in the README, which says that it can be exported to every format."""


@pytest.mark.parametrize(
    ("changes", "lacking"),
    [
        (README_PARTS, {}),
        (README_PARTS | {"model.embedding": '{scale = "sqrt"}'}, {"hf": "embedding.scale"}),
        (README_PARTS | {"model.feedforward": '"mlp"'}, {"gguf": "relu"}),
        (README_PARTS | {"model.norm": '"batchnorm"'}, {"hf": "", "ctranslate2": "", "gguf": ""}),
    ],
    ids=["readme", "scale", "feed-forward", "norm"],
)
def test_the_formats_that_are_promised_before_training_are_those_that_are_written(
    changes: dict[str, str], lacking: dict[str, str], tmp_path: Path
) -> None:
    run = Run.open(train_tiny(tmp_path, "language", **changes))
    reasons = unsupported_forms(run)
    assert {form for form in reasons if form != "onnx"} == {*lacking}
    for form in ("hf", "ctranslate2", "gguf"):  # a graph takes seconds
        if form not in lacking:
            assert export_run(run, tmp_path / form, to=form)
            continue
        assert lacking[form] in reasons[form]
        with pytest.raises(InputError) as refused:
            export_run(run, tmp_path / form, to=form)
        assert str(refused.value) == reasons[form]


def test_another_dtype_is_that_of_the_export_alone(run: Path, tmp_path: Path) -> None:
    opened = Run.open(run)
    opened.export(tmp_path / "half", dtype="bfloat16")
    assert addnorm.load(tmp_path / "half").model.head.weight.dtype == torch.bfloat16
    assert opened.model.head.weight.dtype == torch.float32
    weights = Run.open(run, dtype="bfloat16").weights
    assert all(
        torch.equal(w, weights[k]) for k, w in addnorm.load(tmp_path / "half").weights.items()
    )
    with pytest.raises(InputError, match="`dtype = 'int8'`: does not exist"):
        opened.export(tmp_path / "int8", dtype="int8")  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "int8").exists()


def test_a_file_in_the_place_of_a_folder(run: Path, tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("mine")
    with pytest.raises(InputError, match="is a file: onnx needs the name of a folder"):
        export_run(Run.open(run), tmp_path / "my.txt", to="onnx")
    assert (tmp_path / "my.txt").read_text() == "mine"
    files: tuple[Form, ...] = ("gguf", "web")
    for to in files:
        with pytest.raises(InputError, match=f"is a folder: {to} needs the name of a file"):
            export_run(Run.open(run), tmp_path, to=to)
        with pytest.raises(InputError, match=r"there is no folder .*missing for the file"):
            export_run(Run.open(run), tmp_path / "missing" / "out", to=to)


@pytest.mark.long
@pytest.mark.parametrize("scheme", [Int8Config(), Int4Config(activations=DynamicConfig())])
def test_onnx_says_that_it_does_not_round_inputs(
    run: Path, scheme: Int8Config | Int4Config, tmp_path: Path
) -> None:
    quantize_run(Run.open(run), tmp_path / "quantized", scheme)
    [*_, line] = export_run(Run.open(tmp_path / "quantized"), tmp_path / "onnx", to="onnx")
    assert "facts that onnx cannot carry: " in line
    assert "rounding of inputs" in line


@pytest.mark.parametrize("to", ["hf", "onnx", "ctranslate2", "gguf"])
def test_the_order_of_tags_is_left_out_by_none(to: Form, crf: Path, tmp_path: Path) -> None:
    """No format holds the chain of a CRF, and single words' best tags would be others."""
    why = r"no family can express|CRFHead|this one is an encoder|runs decoders only"
    with pytest.raises(InputError, match=why):
        export_run(Run.open(crf), tmp_path / "out", to=to)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "body", [presets.bert_base(), presets.roberta_base(), presets.distilbert_base()]
)
def test_no_family_has_the_head(body: EncoderConfig, tmp_path: Path) -> None:
    """A body that it has, with tags before and with the chain now."""
    small: Any = {"d_model": 8, "n_layers": 1, "attention": replace(body.attention, n_heads=2)}
    spec = ModelSpec(
        model=replace(body, head=CRFHeadConfig(), **small), vocab_size=20, labels=("O", "B-x")
    )
    with pytest.raises(InputError, match=r"crf head|no family can express"):
        save(tmp_path / "out", spec, spec.model.build(20, 2), None)


def test_it_writes_what_the_run_writes(run: Path, exported: Path) -> None:
    texts = ["To be", "", "Grüße"]
    ours, theirs = (
        write(addnorm.load(folder), texts, GreedyConfig(), max_new_tokens=12)
        for folder in (run, exported)
    )
    for [one], [other] in zip(ours, theirs, strict=True):
        assert (one.text, one.finished) == (other.text, other.finished)
        assert one.score == pytest.approx(other.score, abs=1e-4)


def test_it_scores_what_the_run_scores(run: Path, exported: Path) -> None:
    given = {
        "data.kind": "text",
        "data.train": str(run.parent / "play.txt"),
        "data.valid_fraction": "0.2",
        "data.test_fraction": "0.1",
        "train.batching": '{kind = "windows", batch_size = 4, seq_len = 16}',
    }
    found, expected = (
        evaluate_run(opened, "valid") for opened in (Run.open(exported, given), Run.open(run))
    )
    # Products may sum in another order where weights lie at other places in memory.
    assert found == pytest.approx(expected, rel=1e-6)
    with pytest.raises(InputError, match="came without data"):
        evaluate_run(Run.open(exported), "valid")


def test_a_copy_that_came_without_data_is_measured_on_some(exported: Path, tmp_path: Path) -> None:
    Run.open(exported).save(tmp_path / "copy")
    listed = {file for one in (*AROUND, *WEIGHTS) for file in (tmp_path / "copy").glob(one)}
    assert {*(tmp_path / "copy").iterdir()} - listed == {tmp_path / "copy" / "digests.json"}
    file = str(exported.parent / "play.txt")
    given = {"data.kind": "text", "data.train": file, "data.test": file}
    theirs, ours = (Run.open(folder, given) for folder in (exported, tmp_path / "copy"))
    assert isinstance(ours.recipe.train.batching, WindowsConfig)
    assert ours.recipe.train.batching == theirs.recipe.train.batching
    assert evaluate_run(ours, "test") == pytest.approx(evaluate_run(theirs, "test"), rel=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_another_type(dtype: str, run: Path, tmp_path: Path) -> None:
    export_run(Run.open(run, dtype=dtype), tmp_path / "half", to="hf")
    model = addnorm.load(tmp_path / "half").model
    assert {p.dtype for p in model.parameters()} == {getattr(torch, dtype)}
    wide = addnorm.load(tmp_path / "half", dtype=torch.float32).model
    assert {p.dtype for p in wide.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("family", "match"),
    [
        ("gpt2x", "Did you mean 'gpt2'"),
        ("llama", "llama"),
        ("bert", "no model of kind 'decoder'"),
    ],
)
def test_a_family_that_does_not_fit(family: str, match: str, run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=match):
        export_run(Run.open(run), tmp_path / "out", to="hf", family=family)
    assert not (tmp_path / "out").exists()


def test_a_model_that_no_family_has(tmp_path: Path) -> None:
    run = train_tiny(tmp_path, "language", **{"model.attention": "{kind = 'convolution'}"})
    with pytest.raises(InputError, match="no family can express this model"):
        export_run(Run.open(run), tmp_path / "out", to="hf")


def test_a_model_is_not_replaced_by_its_export(run: Path) -> None:
    before = sorted(path.name for path in run.iterdir())
    with pytest.raises(InputError, match="cannot replace its own model"):
        export_run(Run.open(run), run, to="hf")
    assert sorted(path.name for path in run.iterdir()) == before


@pytest.mark.parametrize("to", ["hf", "ctranslate2"])
def test_an_earlier_export_is_replaced_and_a_line_names_it(
    to: Form, run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = export_run(Run.open(run), out, to=to)
    assert export_run(Run.open(run), out, to=to) == [
        f"{out}: was there already: files of the same names are replaced",
        *first,
    ]


def test_another_run_is_not_replaced(run: Path, crf: Path) -> None:
    before = {file: file.read_bytes() for file in crf.rglob("*") if file.is_file()}
    with pytest.raises(InputError, match="holds a run"):
        export_run(Run.open(run), crf, to="hf")
    assert {file: file.read_bytes() for file in crf.rglob("*") if file.is_file()} == before


def test_a_folder_of_something_else_is_not_written_into(run: Path, tmp_path: Path) -> None:
    mine = [tmp_path / name for name in ("notes.txt", "notes.json", "numbers.safetensors")]
    for file in mine:
        file.write_text("mine")
    export_run(Run.open(run), tmp_path, to="hf")
    assert [file.read_text() for file in mine] == ["mine"] * 3


@pytest.mark.parametrize(("to", "file"), [("gguf", "model"), ("ctranslate2", "model/model.bin")])
def test_narrow_weights_are_written_narrow(to: str, file: str, run: Path, tmp_path: Path) -> None:
    sizes = []
    for dtype in (None, "float16"):
        out = tmp_path / str(dtype) / "model"
        out.parent.mkdir()
        export_run(Run.open(bpe_run(run), dtype=dtype), out, to=to)  # type: ignore[arg-type]
        sizes.append((tmp_path / str(dtype) / file).stat().st_size)
    assert sizes[1] < 0.8 * sizes[0]


def bpe_run(run: Path) -> Path:
    """A run whose parts and tokenizer every library has."""
    folder = run.parent / "bpe"
    if not folder.exists():
        folder.mkdir()
        parts = {"model.feedforward": "{kind = 'mlp', d_ff = 32, activation = 'gelu_tanh'}"}
        bpe = {"tokenizer": "{kind = 'bpe', vocab_size = 300}", "model.d_model": "32"}
        train_tiny(folder, "language", **GPT2_PARTS | parts | bpe)
    return folder / "run"


def test_the_decoding_goes_along(run: Path, tmp_path: Path) -> None:
    """And what has no key there is named, and left out."""
    opened = Run.open(run)
    decoding = SampleConfig(temperature=0.5, top_k=3, rules=RulesConfig(min_new_tokens=2))
    recipe = replace(opened.recipe, eval=replace(opened.recipe.eval, decoding=decoding))
    said = export_run(replace(opened, recipe=recipe), tmp_path / "out", to="hf")
    assert len(said) == 1
    again = addnorm.load(tmp_path / "out")
    assert again.recipe.eval.decoding == decoding
    assert again.generate("To be", max_new_tokens=9) == replace(opened, recipe=recipe).generate(
        "To be", max_new_tokens=9
    )
    theirs = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert (theirs.do_sample, theirs.temperature, theirs.top_k) == (True, 0.5, 3)
    other = replace(recipe, eval=replace(recipe.eval, decoding=BeamConfig(beams=3)))
    said = export_run(replace(opened, recipe=other), tmp_path / "out", to="hf")
    assert any("without the decoding of the recipe" in line for line in said)
    assert "num_beams" not in (tmp_path / "out" / "generation_config.json").read_text()
