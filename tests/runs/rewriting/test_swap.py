"""Swapping parts of whole runs: output, measurements and errors."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tests.convert.swapping import KINDS
from tests.runs.tiny import ENGLISH, RECIPES, quiet, said, train_tiny
from tokenizers import models, pre_tokenizers, trainers

from addnorm.convert.core.family import ModelSpec
from addnorm.convert.folder import save
from addnorm.convert.transfer.model import transfer_weights
from addnorm.errors import InputError
from addnorm.generate import GreedyConfig
from addnorm.models import DecoderConfig, EncoderConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.heads import TokenHeadConfig, TransformConfig
from addnorm.nn.norms import LayerNormConfig, RMSNormConfig
from addnorm.nn.residuals import PostNormConfig
from addnorm.runs.evaluation import evaluate_run
from addnorm.runs.files.lock import LOCK
from addnorm.runs.inference.text import write
from addnorm.runs.rewriting.swap import SwapOptions, SwapReport, part_of, swap_run
from addnorm.runs.run import Run
from addnorm.training.progress import ProgressBar

RunOf = Callable[[str], Path]
GPT = {
    "model.position": '{kind = "learned"}',
    "model.residual": '{kind = "pre"}',
    "model.attention": "{n_heads = 4}",
    "model.n_layers": "2",
    "model.max_len": "32",
}


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model of the parts that GPT-2 has."""
    return train_tiny(tmp_path_factory.mktemp("gpt"), "language", **GPT, **{"train.lr": "0.01"})


def swapped(
    folder: Path, out: Path, *sets: str, fields: dict[str, str] | None = None, **wanted: Any
) -> SwapReport:
    given = fields or {}
    return swap_run(Run.open(folder, given), out, SwapOptions(sets=sets, **wanted), given)


def refusal(folder: Path, out: Path, *sets: str, **wanted: Any) -> str:
    with pytest.raises(InputError) as caught:
        swapped(folder, out, *sets, **wanted)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_same_function_has_the_same_loss(gpt: Path, tmp_path: Path) -> None:
    done = swapped(gpt, tmp_path / "out", "norm=rmsnorm", "feedforward.d_ff=48")
    assert done.transfer.changed == ()
    assert done.figures["after"]["loss"] == pytest.approx(done.figures["before"]["loss"], abs=1e-5)
    assert done.added[0] == "head.tied = false"
    run = Run.open(tmp_path / "out")
    assert run.recipe.model.norm == RMSNormConfig(eps=1e-5)
    for name, one in run.weights.items():
        assert one.equal(done.run.weights[name]), name
    scores = evaluate_run(run, "valid")
    assert scores["loss"] == pytest.approx(done.figures["after"]["loss"])
    assert evaluate_run(Run.open(gpt), "valid")["loss"] == done.figures["before"]["loss"]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"config.json", "digests.json", "tokenizer.json", "model.safetensors"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_grouped_heads_change_the_loss_and_it_is_reported(gpt: Path, tmp_path: Path) -> None:
    console = quiet()
    wanted = SwapOptions(sets=("attention.n_kv_heads=1",), split="test")
    done = swap_run(Run.open(gpt), tmp_path / "out", wanted, console=console)
    before, after = (done.figures[when]["loss"] for when in ("before", "after"))
    assert abs(before - after) > 1e-6
    assert f"after: loss {after:.4g}" in said(console)
    [reason] = done.transfer.changed
    assert reason.startswith("attention.n_kv_heads: 4 → 1")
    parts = {part.name: part for part in done.parts()}
    assert parts["stack.attention.k_proj"].kind == "derived"
    assert parts["stack.attention.k_proj"].n_weights == 2 * (16 * 4 + 4)
    assert parts["stack.attention.q_proj"].kind == "exact"
    assert sum(part.n_weights for part in parts.values()) == sum(
        one.numel() for one in done.run.weights.values()
    )


@pytest.mark.long
@pytest.mark.parametrize("task", RECIPES)
def test_every_task_recovers(task: str, run_of: RunOf, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = swapped(run_of(task), out, "position=rotary", "norm=rmsnorm", recover=3)
    assert list(done.figures) == ["before", "after", "recovered"]
    assert done.figures["after"] != done.figures["recovered"]
    run = Run.open(out)
    assert run.labels == Run.open(run_of(task)).labels
    assert run.recipe.train.steps == 3
    assert not (out / "checkpoints").exists()
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3]
    assert evaluate_run(run, "valid")["loss"] == pytest.approx(done.figures["recovered"]["loss"])


def test_learning_from_the_old_model(gpt: Path, tmp_path: Path) -> None:
    """What has no labels to learn from comes nearer to what it was."""
    one = swapped(gpt, tmp_path / "one", "attention.n_kv_heads=1", recover=20, distill=True,
                  fields={"train.lr": "0.003"})  # fmt: skip
    lines = (tmp_path / "one" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert sum(losses[-5:]) < sum(losses[:5]) / 2
    assert one.run.recipe.train.lr == 0.003
    other = swapped(gpt, tmp_path / "other", "attention.n_kv_heads=1", recover=2)
    assert other.run.recipe.train.lr == pytest.approx(0.001), "a tenth of that of the run"


def test_layers(gpt: Path, tmp_path: Path) -> None:
    old = Run.open(gpt).weights
    even = swapped(gpt, tmp_path / "even", "n_layers=4").run.weights
    chosen = swapped(gpt, tmp_path / "chosen", layers=(1, 0, 1))
    name = "feedforward.up_proj.weight"
    for i, place in enumerate((0, 0, 1, 1)):
        assert even[f"stack.blocks.{i}.{name}"].equal(old[f"stack.blocks.{place}.{name}"])
    assert chosen.run.recipe.model.n_layers == 3
    assert chosen.transfer.changed == ("n_layers: layers 1 0 1 of 2",)
    assert Run.open(tmp_path / "chosen").weights.keys() == chosen.run.weights.keys()


@pytest.mark.long
def test_layers_of_both_stacks(run_of: RunOf, tmp_path: Path) -> None:
    done = swapped(run_of("translation"), tmp_path / "both", layers=(0, 0))
    assert len(done.transfer.changed) == 2
    done = swapped(run_of("translation"), tmp_path / "one", "n_decoder_layers=1", layers=(0, 0))
    assert done.transfer.changed == ("n_layers: layers 0 0 of 1",)


def test_more_tokens_and_more_positions(gpt: Path, tmp_path: Path) -> None:
    n = Run.open(gpt).tokenizers.source.vocab_size
    done = swapped(gpt, tmp_path / "out", f"vocab_size={n + 5}", "max_len=64")
    run = Run.open(tmp_path / "out")
    assert len(run.weights["embed.tokens.weight"]) == n + 5
    assert done.transfer.changed == (f"vocab_size: {n} → {n + 5}",)
    back = swapped(tmp_path / "out", tmp_path / "back", f"vocab_size={n}")
    assert back.figures["after"]["loss"] == pytest.approx(done.figures["before"]["loss"], abs=1e-5)
    assert f"the tokenizer has {n} tokens" in refusal(gpt, tmp_path / "r", f"vocab_size={n - 1}")


@pytest.mark.parametrize("width", [8, 32])
def test_another_width_is_refused(width: int, gpt: Path, tmp_path: Path) -> None:
    told = refusal(gpt, tmp_path / "out", f"d_model={width}")
    assert told.startswith(f"`sets` d_model = {width}: no weight of a model of width 16 fits")
    assert not (tmp_path / "out").exists()


def byte_pairs(folder: Path) -> None:
    """GPT-2's `vocab.json` and `merges.txt`, with hardly a merge."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=270,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(ENGLISH * 3, trainer)
    inner.model.save(str(folder))


def foreign(folder: Path, config: Any, *, text: bool, vocab: int = 400) -> Path:
    torch.manual_seed(0)
    save(folder, ModelSpec(model=config, vocab_size=vocab), config.build(vocab), None)
    if text:
        byte_pairs(folder)
    return folder


GPT2 = replace(
    KINDS["decoder"],
    embedding=EmbeddingConfig(scale="one"),
    max_len=40,
)


def test_a_hugging_face_folder_without_data(tmp_path: Path) -> None:
    folder = foreign(tmp_path / "hf", GPT2, text=True)
    done = swapped(folder, tmp_path / "out", "norm=rmsnorm")
    assert done.figures == {}
    assert done.unmeasured is not None
    assert "`data.kind = text`" in done.unmeasured
    run = Run.open(tmp_path / "out")
    assert isinstance(run.recipe.model, DecoderConfig)
    assert run.recipe.data is None
    old = Run.open(folder)
    greedy = GreedyConfig()
    texts = [write(one, ["the cat"], greedy, max_new_tokens=8)[0][0].text for one in (old, run)]
    assert texts[0] == texts[1]
    again = swapped(tmp_path / "out", tmp_path / "again", "attention.n_kv_heads=2")
    assert again.unmeasured == done.unmeasured
    assert Run.open(tmp_path / "again").text is not None


def test_a_hugging_face_folder_with_data(tmp_path: Path) -> None:
    folder = foreign(tmp_path / "hf", GPT2, text=True)
    (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in ENGLISH * 4))
    fields = {
        "data.kind": "text",
        "data.train": str(tmp_path / "a.txt"),
        "data.valid": str(tmp_path / "a.txt"),
        "train.batching": '{kind = "windows", batch_size = 4, seq_len = 16}',
    }
    done = swapped(folder, tmp_path / "out", "attention.n_kv_heads=2", fields=fields, recover=3,
                   distill=True)  # fmt: skip
    assert list(done.figures) == ["before", "after", "recovered"]
    assert done.run.recipe.train.lr == pytest.approx(1e-4)
    run = Run.open(tmp_path / "out")
    assert evaluate_run(run, "valid")["loss"] == pytest.approx(done.figures["recovered"]["loss"])
    assert not any(path.name.startswith(".") for path in tmp_path.iterdir())


def test_a_folder_without_tokenizer_and_without_task(tmp_path: Path) -> None:
    bert = EncoderConfig(
        d_model=16,
        n_layers=2,
        position=GPT2.position,
        max_len=40,
        attention=GPT2.attention,
        feedforward=GPT2.feedforward,
        residual=PostNormConfig(),
        embedding=EmbeddingConfig(scale="one", norm=LayerNormConfig(), n_types=2),
        head=TokenHeadConfig(bias=True, transform=TransformConfig(norm=LayerNormConfig())),
    )
    folder = foreign(tmp_path / "hf", bert, text=False)
    done = swapped(folder, tmp_path / "out", "attention.n_kv_heads=2")
    assert done.unmeasured is not None
    run = Run.open(tmp_path / "out")
    assert run.text is None
    with pytest.raises(InputError, match="has no tokenizer"):
        _ = run.tokenizers


def test_data_that_are_gone_and_splits_that_are_not_there(gpt: Path, tmp_path: Path) -> None:
    gone = {"data.train": str(tmp_path / "none.txt")}
    with pytest.raises(InputError, match="does not exist"):
        swapped(gpt, tmp_path / "r", "norm=rmsnorm", fields=gone)
    copied = Path(shutil.copytree(gpt, tmp_path / "copied"))
    tree = json.loads((copied / "config.json").read_text())
    tree["recipe"]["data"]["valid_fraction"] = 0.0
    (copied / "config.json").write_text(json.dumps(tree))
    done = swapped(copied, tmp_path / "one", "norm=rmsnorm", recover=1)
    assert done.unmeasured == "the data have no valid split: data.valid is not given"
    tree["recipe"]["data"]["root"] = str(tmp_path / "nowhere")
    (copied / "config.json").write_text(json.dumps(tree))
    done = swapped(copied, tmp_path / "two", "norm=rmsnorm")
    assert "does not exist" in (done.unmeasured or "")
    assert "does not exist" in refusal(copied, tmp_path / "r", "norm=rmsnorm", recover=1)
    assert not (tmp_path / "r").exists()


def test_a_rejected_swap_writes_nothing(gpt: Path, tmp_path: Path) -> None:
    out = tmp_path / "r"
    for sets, wanted, expected in [
        ((), {}, "nothing to change"),
        (("norm=rmsnrm",), {}, "Did you mean 'rmsnorm'?"),
        (("norm=rmsnorm",), {"distill": True}, "give `recover`"),
        (("norm=rmsnorm",), {"recover": -1}, "`recover = -1`"),
        (("vocab_size=99",), {"recover": 1, "distill": True}, "`distill` needs one vocabulary"),
        ((), {"layers": (0, 2)}, "`layers = 2`: the model has layers 0 to 1"),
        (("n_layers=3",), {"layers": (0, 1)}, "give one of them"),
        (("attention.n_kv_heads=3",), {}, "n_kv_heads must be one of"),
        (("max_len=8",), {}, "past the learned table"),
    ]:
        assert expected in refusal(gpt, out, *sets, **wanted)
        assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(gpt: Path, tmp_path: Path) -> None:
    before = (gpt / "model.safetensors").read_bytes()
    assert "something is there already" in refusal(gpt, gpt, "norm=rmsnorm")
    assert (gpt / "model.safetensors").read_bytes() == before
    (tmp_path / "file").write_text("mine")
    assert "something is there" in refusal(gpt, tmp_path / "file", "norm=rmsnorm")
    (tmp_path / "empty").mkdir()
    swapped(gpt, tmp_path / "empty", "position=rotary")
    assert Run.open(tmp_path / "empty").recipe.model.position.kind == "rotary"


def test_one_process_at_a_time_writes_there(
    gpt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, held = tmp_path / "out", list[str]()

    def transfer(*inputs: Any) -> Any:
        held.append((out / LOCK).read_text())
        return transfer_weights(*inputs)

    monkeypatch.setattr("addnorm.runs.rewriting.swap.transfer_weights", transfer)
    swapped(gpt, out, "norm=rmsnorm")
    assert [str(os.getpid()) in one for one in held] == [True]
    assert not (out / LOCK).exists()
    assert not (out / ".partial").exists()
    assert Run.open(out).recipe.model.norm.kind == "rmsnorm"


def test_a_recovery_that_stops_leaves_nothing_and_does_not_say_otherwise(
    gpt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ProgressBar, "on_step", stop)
    console, wanted = quiet(), SwapOptions(sets=("position=rotary",), recover=5)
    with pytest.raises(KeyboardInterrupt):
        swap_run(Run.open(gpt), tmp_path / "out", wanted, console=console)
    assert list(tmp_path.iterdir()) == []
    assert "nothing was written" in said(console)


def test_parts() -> None:
    assert part_of("decoder.blocks.11.attention.q_proj.bias") == "decoder.attention.q_proj"
    assert part_of("stack.blocks.1.feedforward.experts.2.up_proj.weight") == (
        "stack.feedforward.up_proj"
    )
    assert part_of("embed.class_token") == "embed.class_token"
    assert part_of("head.weight") == "head"
