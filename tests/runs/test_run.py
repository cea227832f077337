"""A run in Python: single texts and lists, equal to the underlying functions, and saving."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runs.tiny import train_tiny
from tests.test_house import write_gpt2

import addnorm as an
from addnorm.cli.main import status
from addnorm.data import Labelled
from addnorm.data.ids.framing import encode_for_task
from addnorm.data.readers.constructors import labelled, text
from addnorm.errors import InputError, Stopped, listed, path_of
from addnorm.generate import BeamConfig, GreedyConfig, SampleConfig
from addnorm.inspect.prepared_text import prepare_text
from addnorm.models import EncoderModel
from addnorm.nn.heads import PoolerHeadConfig
from addnorm.runs.evaluation import evaluate_run
from addnorm.runs.inference.results import words_of
from addnorm.runs.inference.text import classify, tag, write
from addnorm.runs.run import Run

RunOf = Callable[[str], Path]


def test_a_string_for_a_string_and_a_list_for_a_list(run_of: RunOf) -> None:
    run = Run.open(run_of("language"))
    [[greedy]] = write(run, ["To be"], GreedyConfig(), max_new_tokens=12)
    assert run.generate("To be", beams=1, max_new_tokens=12) == greedy.text
    both = run.generate(["To be", "or"], beams=1, max_new_tokens=12)
    assert both == [run.generate(one, beams=1, max_new_tokens=12) for one in ("To be", "or")]
    assert run.generate([]) == []
    sampled = write(run, ["To be"], SampleConfig(seed=3, top_k=2), max_new_tokens=12)
    assert run.generate("To be", seed=3, top_k=2, max_new_tokens=12) == sampled[0][0].text
    searched = run.generate("To be", decoding=BeamConfig(beams=2), max_new_tokens=12)
    assert searched == run.generate("To be", beams=2, max_new_tokens=12)
    whole = run.generate("To be", beams=1, max_new_tokens=12)
    assert (
        run.generate("To be", beams=1, max_new_tokens=12, stop=whole[3])
        == whole[: whole.index(whole[3])]
    )


def test_pieces_join_to_the_whole(run_of: RunOf) -> None:
    run = Run.open(run_of("language"))
    pieces = list(run.stream("To be", seed=5, max_new_tokens=20))
    assert len(pieces) > 1
    assert "".join(pieces) == run.generate("To be", seed=5, max_new_tokens=20)
    with pytest.raises(InputError, match="stream without beams"):
        run.stream("To be", beams=2)


def test_drafts_change_no_text(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], run_of: RunOf
) -> None:
    run = Run.open(train_tiny(tmp_path, "language", **{"model.mtp": "{depth = 2}"}))
    options: dict[str, Any] = {"beams": 1, "max_new_tokens": 12}
    plain = run.generate("To be", **options)
    [[written]] = run.write(["To be"], compiled=run.speculation(), **options)
    assert written.text == plain
    assert "".join(run.stream("To be", compiled=run.speculation(), **options)) == plain
    words = ["--prompt", "To be", "--beams", "1", "--max-new-tokens", "12", "--speculate"]
    assert status(["generate", str(run.folder), *words]) == 0
    assert capfd.readouterr().out.strip("\n") == plain.strip("\n")
    with pytest.raises(InputError, match=r"model\.mtp"):
        Run.open(run_of("language")).speculation()


def test_translations(run_of: RunOf) -> None:
    run = Run.open(run_of("translation"))
    texts = ["a red cat", "", "no cat"]
    expected = [best[0].text for best in write(run, texts, run.recipe.eval.decoding)]
    assert run.translate(texts) == run.generate(texts) == expected
    assert run.translate(texts[0]) == expected[0]
    with pytest.raises(InputError, match="does not translate"):
        Run.open(run_of("language")).translate("x")


def test_classes_and_tags(run_of: RunOf) -> None:
    run = Run.open(run_of("classification"))
    assert run.classify(["a fine day", "wet"]) == classify(run, ["a fine day", "wet"])
    assert run.classify("wet") == classify(run, ["wet"])[0]
    run = Run.open(run_of("tagging"))
    assert run.tag("Anna lives") == tag(run, [["Anna", "lives"]])[0]
    assert run.tag(["Anna lives", ["x", "y z"]]) == tag(run, [["Anna", "lives"], ["x", "y z"]])


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 2.0, "3", [1], True])
def test_counts_are_integers(value: Any, run_of: RunOf) -> None:
    language, classes = Run.open(run_of("language")), Run.open(run_of("classification"))
    for name, call in (
        ("max_new_tokens", lambda: language.generate("a", max_new_tokens=value)),
        ("top_k", lambda: language.generate("a", top_k=value)),
        ("top_k", lambda: classes.fill("a [MASK]", top_k=value)),
        ("batch_size", lambda: classes.classify(["a"], batch_size=value)),
        ("batch_size", lambda: classes.embed(["a"], batch_size=value)),
    ):
        with pytest.raises(InputError, match=f"`{name} = .*`: must be an integer"):
            call()


@pytest.mark.parametrize("size", [0, -1, np.int64(-3)])
def test_batches_without_texts_are_refused(size: Any, run_of: RunOf) -> None:
    """They would leave all texts without an answer."""
    classes, tags = Run.open(run_of("classification")), Run.open(run_of("tagging"))
    for call in (classes.classify, classes.predict, classes.embed, tags.tag):
        with pytest.raises(InputError, match=f"`batch_size = {size}`: must be at least 1"):
            call(["a text"], batch_size=size)
    assert len(classes.classify(["a text"], batch_size=np.int64(1))) == 1


def test_unknown_options_have_a_nearest_name(run_of: RunOf) -> None:
    run = Run.open(run_of("language"))
    with pytest.raises(InputError, match=r"no argument temprature\. Did you mean 'temperature'"):
        run.generate("x", temprature=0.5)  # pyright: ignore[reportCallIssue]
    with pytest.raises(InputError, match="either `decoding` or `top_k`"):
        run.generate("x", decoding=GreedyConfig(), top_k=2)


@pytest.mark.parametrize("task", ["language", "translation", "classification", "tagging"])
def test_vectors_are_those_of_the_hidden_states(task: str, run_of: RunOf) -> None:
    """Whatever is beside a text in its batch; each pooling as its name says."""
    run = Run.open(run_of(task))
    texts = ["a red cat", "no", "a fine red day and a wet cat"]
    mean, first, last = (run.embed(texts, pooling=p) for p in ("mean", "first", "last"))
    for i, one in enumerate(texts):
        states = run.hidden_states(one)
        torch.testing.assert_close(mean[i], states.mean(0), atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(first[i], states[0], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(last[i], states[-1], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(run.embed(one), mean[i], atol=1e-6, rtol=1e-5)
    assert mean.shape == (3, 16)
    assert run.embed([]).shape == (0, 16)
    [ids] = encode_for_task("classification", run.tokenizers.source, ["a red cat"])
    if isinstance(run.model, EncoderModel):
        with torch.no_grad():
            expected, _ = run.model.hidden(torch.tensor([ids]))
        torch.testing.assert_close(run.hidden_states("a red cat"), expected[0])
    with pytest.raises(InputError, match="needs a head that gives a vector"):
        run.embed("x", pooling="head")


def test_the_vector_of_a_pooler(run_of: RunOf) -> None:
    run = Run.open(run_of("classification"))
    config = replace(run.recipe.model, head=PoolerHeadConfig())
    model = config.build(run.tokenizers.source.vocab_size).eval()
    pooler = replace(run, recipe=replace(run.recipe, model=config), model=model, labels=())
    states = pooler.hidden_states("a red cat")
    with torch.no_grad():
        expected = model.head.proj(states[0]).tanh()
    torch.testing.assert_close(pooler.embed(["no", "a red cat"], pooling="head")[1], expected)
    [looked_at] = prepare_text(pooler, "a red cat").inputs
    assert torch.equal(looked_at, prepare_text(run, "a red cat").inputs[0])


def test_scores_are_those_of_the_command(run_of: RunOf, tmp_path: Path) -> None:
    run = Run.open(run_of("classification"))
    assert run.evaluate() == run.evaluate(split="test") == evaluate_run(run, "test")
    assert run.evaluate(split="valid") == evaluate_run(run, "valid")
    examples = [e for e in run.recipe.corpus().test if isinstance(e, Labelled)]
    given = labelled([(e.text, e.label) for e in examples])
    assert run.evaluate(given) == run.evaluate()
    (tmp_path / "more.txt").write_text("".join(f"{e.label} {e.text}\n" for e in examples))
    assert run.evaluate(labelled(tmp_path / "more.txt")) == run.evaluate()
    with pytest.raises(InputError, match="the data are for language"):
        run.evaluate(text(["x"]))
    with pytest.raises(InputError, match="'odd'"):
        run.evaluate(labelled([("x", "odd")]))


def test_texts_are_strings_in_any_sequence() -> None:
    assert listed("a") == ["a"]
    assert listed(("a", "b")) == listed(one for one in "ab") == ["a", "b"]
    assert words_of("a b") == words_of([("a", "b")]) == [["a", "b"]]
    assert words_of("10\u00a0000 b\n") == [["10\u00a0000", "b"]]
    for wrong in (3, None, {"a": 1}, {"a"}, b"a"):
        with pytest.raises(InputError, match=r"texts = .*: give a string or a list of strings"):
            listed(wrong)
    with pytest.raises(InputError, match=r"sentences\[1\]\[0\] = 7 is not a string"):
        words_of(["a b", [7]])
    with pytest.raises(InputError, match="7 is not a path"):
        path_of(7)


def test_a_run_says_what_it_is(run_of: RunOf) -> None:
    assert repr(Run.open(run_of("classification"))).startswith("<Run of an encoder: ")
    assert repr(Run.open(run_of("language"))).startswith("<Run of a decoder: ")


@pytest.mark.parametrize("task", ["language", "translation", "tagging"])
def test_a_saved_run_is_the_same_run(task: str, run_of: RunOf, tmp_path: Path) -> None:
    run = replace(Run.open(run_of(task)), folder=None)
    assert "this run" in repr(run)
    saved = run.save(tmp_path / "saved")
    again = Run.open(tmp_path / "saved")
    assert saved.folder == again.folder == tmp_path / "saved"
    assert (again.recipe, again.labels) == (run.recipe, run.labels)
    assert again.weights.keys() == run.weights.keys()
    assert all(torch.equal(w, run.weights[name]) for name, w in again.weights.items())
    assert run.save(tmp_path / "saved").folder == saved.save(tmp_path / "saved").folder
    with torch.no_grad():
        next(run.model.parameters()).add_(1.0)
    with pytest.raises(InputError, match="is there already"):
        run.save(tmp_path / "saved")


def test_a_stopped_run_is_opened_at_its_last_checkpoint(run_of: RunOf, tmp_path: Path) -> None:
    finished = Run.open(run_of("language"))
    folder = tmp_path / "stopped"
    shutil.copytree(run_of("language"), folder)
    (folder / "model.safetensors").unlink()
    newest = max((folder / "checkpoints").iterdir())
    step = int(newest.name.removeprefix("step-"))
    with pytest.warns(Stopped, match=f"after step {step}, .*`addnorm train --resume {folder}`"):
        run = Run.open(folder)
    assert all(torch.equal(w, finished.weights[name]) for name, w in run.weights.items())
    assert run.generate("To be", beams=1) == finished.generate("To be", beams=1)
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(InputError, match="training has not finished"):
        Run.open(folder)


def test_a_stopped_run_of_data_given_in_python_promises_no_resumption(tmp_path: Path) -> None:
    class Fails:
        def on_step(self, event: an.StepEvent) -> None:
            if event.step == 3:
                raise RuntimeError("mine")

    config = an.DecoderConfig(d_model=8, n_layers=1, attention={"n_heads": 2})  # pyright: ignore[reportArgumentType]
    with pytest.raises(RuntimeError, match="mine"):
        an.train(
            config, an.text(["To be or not. " * 30]), tokenizer="char", steps=4, save_every=2,
            folder=tmp_path / "run", progress=False, callbacks=[Fails()],
        )  # fmt: skip
    with pytest.warns(Stopped, match=r"after step 2, .* are in no file, so it cannot be resumed$"):
        run = Run.open(tmp_path / "run")
    for use in (run.embed_files, run.classify_files, run.transcribe):
        with pytest.raises(InputError, match=r"no files of images or sound|has no classes"):
            [*use([tmp_path / "a.png"])]


@pytest.mark.slow
def test_one_compiled_graph_writes_several_texts_at_once(run_of: RunOf) -> None:
    run, texts = Run.open(run_of("language")), ["To be", "or", "T", "not to b"]
    options: Any = {"beams": 1, "max_new_tokens": 9}
    alone = [run.generate(one, **options) for one in texts]
    options["compiled"] = run.compiled(run.decoding(beams=1), several=False)
    streams = [run.stream(one, **options) for one in texts]
    pieces = [*zip_longest(*streams, fillvalue="")]  # a piece of each in turn
    assert ["".join(of_one) for of_one in zip(*pieces, strict=True)] == alone
    with ThreadPoolExecutor(4) as threads:
        written = [*threads.map(lambda one: run.write([one], **options)[0][0].text, texts * 5)]
    assert written == alone * 5


def test_other_data_for_another_task_are_refused_with_advice_on_the_data(run_of: RunOf) -> None:
    with pytest.raises(InputError, match="the model is for classification: give examples of Label"):
        Run.open(run_of("classification")).evaluate(an.text(["To be"]))


def test_a_temperature_of_zero_is_greedy(run_of: RunOf) -> None:
    run = Run.open(run_of("language"))
    assert run.decoding(temperature=0, top_k=3) == run.decoding(beams=1)
    with pytest.raises(InputError, match="beam search does not sample"):
        run.decoding(temperature=0, beams=2)


@pytest.mark.long
def test_every_command_opens_a_saved_run(run_of: RunOf, tmp_path: Path) -> None:
    run = Run.open(run_of("language")).save(tmp_path / "saved")
    addnorm = Path(sys.executable).parent / "addnorm"
    words = ("generate", tmp_path / "saved", "--prompt", "To be", "--beams", "1")
    done = subprocess.run([addnorm, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == run.generate("To be", beams=1) + "\n"


def test_a_model_that_is_no_longer_its_configurations_is_not_saved(
    run_of: RunOf, tmp_path: Path
) -> None:
    run = Run.open(run_of("language"))
    run.model.stack.blocks[0].feedforward = torch.nn.Identity()
    with pytest.raises(InputError, match="not that of its configuration"):
        run.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_types_of_weights(run_of: RunOf, tmp_path: Path) -> None:
    """A run saved in 16 bits opens in 16 bits, unless another type is asked for."""
    run = Run.open(run_of("classification"), dtype="bfloat16")
    assert {w.dtype for w in run.weights.values()} == {torch.bfloat16}
    run.save(tmp_path / "half")
    assert next(Run.open(tmp_path / "half").model.parameters()).dtype == torch.bfloat16
    wide = Run.open(tmp_path / "half", dtype=torch.float64)
    assert next(wide.model.parameters()).dtype == torch.float64
    assert wide.embed("wet").dtype == torch.float64
    assert run.embed("wet").dtype == torch.float32
    assert wide.to(dtype="float32").to("cpu") is wide
    exact = wide.classify("wet").probabilities
    assert run.classify("wet").probabilities == pytest.approx(exact, abs=0.02)
    for name, said in (("bfloat61", "Did you mean 'bfloat16'"), ("int8", "not a dtype of weights")):
        with pytest.raises(InputError, match=said):
            run.to(dtype=name)
    with pytest.raises(InputError, match="device = 'cdua'` is not available"):
        run.to("cdua")


@pytest.mark.gpu
def test_a_device_changes_no_result(run_of: RunOf) -> None:
    for task, use in (
        ("language", lambda run: run.generate(["To be", ""], beams=1, max_new_tokens=20)),
        ("translation", lambda run: run.translate(["a red cat", "no"])),
        ("tagging", lambda run: run.tag(["Anna lives", "x"])),
        ("classification", lambda run: [one.label for one in run.classify(["wet", "a fine day"])]),
    ):
        here, there = Run.open(run_of(task)), Run.open(run_of(task), device="cuda")
        assert there.device.type == "cuda"
        assert use(there) == use(here)
        torch.testing.assert_close(
            there.embed(["a", "wet day"]).cpu(), here.embed(["a", "wet day"]), atol=1e-4, rtol=1e-3
        )


def test_a_hugging_face_folder_is_saved_as_a_run(tmp_path: Path) -> None:
    """A model from elsewhere needs its folder no more once it is saved."""
    write_gpt2(tmp_path / "hf")
    run = Run.open(tmp_path / "hf")
    run.save(tmp_path / "saved")
    (tmp_path / "hf").rename(tmp_path / "gone")
    again = Run.open(tmp_path / "saved")
    texts = ["To be", "or not"]
    assert again.generate(texts, max_new_tokens=9) == run.generate(texts, max_new_tokens=9)
    torch.testing.assert_close(again.embed(texts), run.embed(texts))
