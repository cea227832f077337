"""Quantised runs: every command's view of them, nothing lost, and figures that can be checked."""

import copy
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tests.runs.recipes.test_starting_model import GPT2_PARTS
from tests.runs.tiny import RECIPES, train_text, train_tiny, write_corpora
from torch.nn.functional import cross_entropy

import addnorm
from addnorm.errors import InputError
from addnorm.lab.comparison import compare
from addnorm.models import Model
from addnorm.models.weights import n_bytes, weights_of
from addnorm.quantize import Int4Config, Int8Config, QuantizationConfig, StaticConfig, quantize
from addnorm.quantize.int4 import Int4Matrix, unpacked
from addnorm.quantize.quantizable_layers import products_of, slots_of
from addnorm.runs.evaluation import EvaluationData, evaluate_run
from addnorm.runs.export import export_run
from addnorm.runs.files.digests import check_digests
from addnorm.runs.rewriting.quantize import (
    FLOAT,
    SWEEP,
    QuantizeOptions,
    calibration_examples,
    quantize_run,
    sensitivities,
    sweep_run,
)
from addnorm.runs.rewriting.swap import SwapOptions, swap_run
from addnorm.runs.run import Run
from addnorm.runs.train.train_run import train_run

RunOf = Callable[[str], Path]
CONSOLE = Console(file=io.StringIO())
STATIC = Int8Config(activations=StaticConfig())


def quantized(
    folder: Path, out: Path, scheme: QuantizationConfig = STATIC, **options: object
) -> Run:
    chosen = QuantizeOptions(**{"calibrate": 4, **options})  # pyright: ignore[reportArgumentType]
    quantize_run(Run.open(folder), out, scheme, chosen)
    return Run.open(out)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("task", ["language", "translation", "classification", "tagging"])
@pytest.mark.parametrize("scheme", [STATIC, Int4Config()], ids=["int8", "int4"])
def test_a_folder_that_opens_as_it_was_written(
    task: str, scheme: Int8Config | Int4Config, run_of: RunOf, tmp_path: Path
) -> None:
    run, options = Run.open(run_of(task)), QuantizeOptions(calibrate=4)
    report = quantize_run(run, tmp_path / "out", scheme, options)
    opened = addnorm.load(tmp_path / "out")
    measured = report.models[scheme.kind]
    assert evaluate_run(opened, "valid")["loss"] == pytest.approx(measured.scores["loss"], rel=1e-6)
    before = evaluate_run(Run.open(run_of(task)), "valid")
    assert report.models[FLOAT].scores["loss"] == pytest.approx(before["loss"], rel=1e-6)
    size = n_bytes(weights_of(opened.model).values())
    assert measured.n_bytes == size < report.models[FLOAT].n_bytes
    assert set(measured.speeds) == {1, 16}
    assert all(speed > 0 for speed in measured.speeds.values())
    assert check_digests(tmp_path / "out") >= 4
    assert sum(report.left.values()) == sum(one.numel() for one in opened.model.parameters())
    again = opened.save(tmp_path / "again")
    for name, weight in Run.open(tmp_path / "again").weights.items():
        assert torch.equal(weight, opened.weights[name])
    assert again.quantization == opened.quantization


def test_quantization_file_names_scheme_source_and_layers(run_of: RunOf, tmp_path: Path) -> None:
    run = quantized(run_of("language"), tmp_path / "out", keep=("head",), keep_worst=1)
    facts = run.quantization
    assert facts is not None
    assert facts.scheme == STATIC
    assert facts.source == str(run_of("language"))
    assert facts.examples == 4
    assert {"head", "embed.tokens"} < set(facts.kept), "the table is tied to the head"
    assert len(facts.kept) == 3


def test_scores_are_saved_with_the_run(run_of: RunOf, tmp_path: Path) -> None:
    report = quantize_run(Run.open(run_of("language")), tmp_path / "out", Int8Config())
    [_, facts] = compare([run_of("language"), tmp_path / "out"]).runs
    scores = {k: v for k, v in report.models["int8"].scores.items() if k != "examples"}
    assert facts.last == scores
    assert facts.best == scores[facts.metric]


def test_examples_are_calibrated_on_one_by_one(run_of: RunOf) -> None:
    data = EvaluationData.of(Run.open(run_of("translation")), "valid")
    found = calibration_examples(data, STATIC, QuantizeOptions(calibrate=3))
    assert len(found) == 3
    assert all(len(one.indices) == 1 for one in found)
    assert not any(name.endswith("valid") for one in found for name in one.inputs)
    assert calibration_examples(data, Int8Config()) == []


def test_sensitivities_are_those_of_one_layer_rounded_alone(run_of: RunOf) -> None:
    run = Run.open(run_of("language"))
    data = EvaluationData.of(run, "valid")
    scheme, options = Int8Config(), QuantizeOptions(keep_worst=1, calibrate=5)
    examples = calibration_examples(data, scheme, options)
    weights = {key: value.clone() for key, value in run.weights.items()}
    found = sensitivities(run.model, scheme, examples)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert all(torch.equal(value, weights[key]) for key, value in run.weights.items())

    def loss(model: Model) -> float:
        with torch.no_grad():
            parts = [
                cross_entropy(
                    model(**one.inputs).double().flatten(0, 1),  # pyright: ignore[reportArgumentType]
                    one.targets.flatten(),
                    reduction="none",
                )
                for one in examples
            ]
        return float(torch.cat(parts).mean())

    names = list(products_of(run.model))
    assert found.keys() == set(names)
    for name in names:
        others = [one for one in names if one != name] + ["embed.tokens"] * (name != "head")
        alone = quantize(copy.deepcopy(run.model), Int8Config(), keep=others)
        assert found[name] == pytest.approx(loss(alone) - loss(run.model), abs=1e-5)


def test_recurrences_and_tables_are_measured_too(tmp_path: Path) -> None:
    write_corpora(tmp_path)
    text = RECIPES["classification"].replace(
        "attention = {", 'attention = { kind = "recurrent" } #'
    )
    run = train_text(tmp_path, "recurrent", text)
    data = EvaluationData.of(run, "valid")
    options = QuantizeOptions(keep_worst=1, calibrate=3)
    examples = calibration_examples(data, Int8Config(), options)
    found = sensitivities(run.model, Int8Config(), examples)
    assert found.keys() == {slot.name for slot in slots_of(run.model)}
    assert {"embed.tokens", "stack.blocks.0.attention.ahead"} <= found.keys()
    with pytest.raises(InputError, match=rf"`keep_worst = {len(found)}` keeps all {len(found)}"):
        quantized(run.folder, tmp_path / "out", keep_worst=len(found))


def test_a_sweep_writes_nothing(run_of: RunOf) -> None:
    schemes = {name: SWEEP[name] for name in ("int8 dynamic", "int8 static, mse", "int4 GPTQ")}
    run = Run.open(run_of("classification"))
    report = sweep_run(run, schemes, QuantizeOptions(calibrate=2))
    assert list(report.models) == [FLOAT, *schemes]
    assert all("loss" in one.scores for one in report.models.values())


def test_without_data_nothing_is_measured_or_calibrated(run_of: RunOf, tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    run = Run.open(run_of("language"))
    replace(run, recipe=replace(run.recipe, data=None)).save(folder)
    report = quantize_run(Run.open(folder), tmp_path / "out", Int8Config())
    assert report.unmeasured is not None
    assert "without data" in report.unmeasured
    with pytest.raises(InputError, match="without data"):
        quantize_run(Run.open(folder), tmp_path / "other", STATIC)
    assert not (tmp_path / "other" / "config.json").exists()


@pytest.fixture
def small(run_of: RunOf, tmp_path: Path) -> Path:
    quantized(run_of("language"), tmp_path / "small")
    return tmp_path / "small"


def test_operations_on_float_models_reject_a_quantised_one(
    small: Path, run_of: RunOf, tmp_path: Path
) -> None:
    run = Run.open(small)
    with pytest.raises(
        InputError,
        match=f"another dtype: take the model before quantisation .*{run_of('language')}",
    ):
        Run.open(small, dtype="bfloat16")
    with pytest.raises(InputError, match="is quantised again"):
        quantized(small, tmp_path / "twice")
    with pytest.raises(InputError, match="takes other parts"):
        swap_run(run, tmp_path / "swapped", SwapOptions(sets=("norm=rmsnorm",)))
    with pytest.raises(InputError, match="has a form in Hugging Face's folders"):
        export_run(run, tmp_path / "hf", to="hf")
    started = replace(run.recipe, tokenizer=None, train=replace(run.recipe.train, start=small))
    with pytest.raises(InputError, match="is trained"):
        train_run(started, tmp_path / "on", resume=False, console=CONSOLE)
    with pytest.raises(InputError, match="a quantised model is not trained"):
        train_run(run.recipe, small, resume=True, console=CONSOLE)
    assert Run.open(small).quantization == run.quantization


def test_a_full_folder_is_not_written_to(run_of: RunOf, small: Path) -> None:
    with pytest.raises(InputError, match="something is there already"):
        quantized(run_of("language"), small)


@pytest.mark.parametrize("damage", ["kept", "gone"])
def test_a_folder_whose_scheme_was_changed(damage: str, small: Path) -> None:
    file = small / "quantization.json"
    (small / "digests.json").unlink()
    if damage == "gone":
        file.unlink()
    else:
        facts = json.loads(file.read_text())
        file.write_text(json.dumps(facts | {"kept": ["head"]}))
    with pytest.raises(InputError, match="does not fit this model"):
        Run.open(small)


@pytest.mark.long
@pytest.mark.parametrize(("bits", "kind"), [(8, "Q8_0"), (4, "Q4_0")])
def test_gguf_has_the_same_integers(bits: int, kind: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    (tmp_path / "run").mkdir()
    parts = GPT2_PARTS | {
        "model.d_model": "32",
        "model.feedforward": '{ kind = "mlp", d_ff = 64, activation = "gelu_tanh" }',
    }
    folder = train_tiny(tmp_path / "run", "language", **parts)
    scheme = Int8Config() if bits == 8 else Int4Config()
    run = quantized(folder, tmp_path / "small", scheme=scheme)
    run.export(tmp_path / "model.gguf", to="gguf")
    tensors = {one.name: one for one in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    up = run.model.get_submodule("stack.blocks.0.feedforward.up_proj.matrix")
    raw = tensors["blk.0.ffn_up.weight"]
    assert raw.tensor_type.name == kind
    back = torch.from_numpy(gguf.quants.dequantize(raw.data, raw.tensor_type))
    want = up.dequantized()  # pyright: ignore[reportCallIssue]
    torch.testing.assert_close(back, want, rtol=0 if bits == 4 else 1e-3, atol=0)


@pytest.mark.slow
def test_ctranslate2_has_the_same_integers(run_of: RunOf, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    folder = run_of("translation")
    run = quantized(folder, tmp_path / "small", scheme=Int8Config())
    run.export(tmp_path / "ct2", to="ctranslate2")
    values = run.model.get_submodule("decoder.blocks.0.feedforward.up_proj.matrix").values
    inside = values.numpy().tobytes()  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    assert inside in (tmp_path / "ct2" / "model.bin").read_bytes()
    for scheme, why in ((Int4Config(), "no int4"), (Int8Config(smoothing=0.5), "divides no")):
        other = quantized(folder, tmp_path / why[:3], scheme=scheme)
        with pytest.raises(InputError, match=why):
            other.export(tmp_path / "none", to="ctranslate2")
    kept = quantized(folder, tmp_path / "kept", scheme=Int8Config(), keep=("head",))
    with pytest.raises(InputError, match="head was kept"):
        kept.export(tmp_path / "none", to="ctranslate2")


@pytest.mark.sampled(3)
@pytest.mark.long
@pytest.mark.parametrize("task", ["language", "translation", "classification"])
def test_onnx_has_int8_weights(task: str, run_of: RunOf, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    run = quantized(run_of(task), tmp_path / "small")
    run.export(tmp_path / "onnx", to="onnx")
    file = next((tmp_path / "onnx").glob("*.onnx"))
    graph = onnx.load(file).graph
    kinds = {node.op_type for node in graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds
    int8 = [one for one in graph.initializer if one.data_type == onnx.TensorProto.INT8]
    assert len([one for one in int8 if len(one.dims) == 2]) >= 6


@pytest.mark.sampled(3)
@pytest.mark.long
@pytest.mark.parametrize("task", ["language", "translation", "classification"])
def test_onnx_has_int4_weights(task: str, run_of: RunOf, tmp_path: Path) -> None:
    """The same integers and scales, which onnxruntime runs with and without its rewriting."""
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    run = quantized(run_of(task), tmp_path / "small", scheme=Int4Config())
    run.export(tmp_path / "onnx", to="onnx")
    found: set[tuple[bytes, bytes]] = set()
    for file in (tmp_path / "onnx").glob("*.onnx"):
        graph = onnx.load(file).graph
        held = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
        packed = {one.name for one in graph.initializer if one.data_type == onnx.TensorProto.INT4}
        for node in graph.node:
            if node.op_type == "DequantizeLinear":
                values, scale = node.input[:2]
                assert values in packed
                found.add((held[values].astype("int8").tobytes(), held[scale].tobytes()))
        runtime.InferenceSession(file, providers=["CPUExecutionProvider"])  # as users open it
    ours = {
        (unpacked(one.values).numpy().tobytes(), one.scale.float().numpy().tobytes())
        for one in run.model.modules()
        if isinstance(one, Int4Matrix)
    }
    assert found == ours
