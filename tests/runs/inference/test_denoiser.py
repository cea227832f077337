"""A denoiser fills gaps: what it reads, what its answer says of each, and how sure it is."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.runs.inference.test_masked_tokens import DENOISING
from tests.runs.tiny import train_text, write_corpora

from addnorm.cli.main import status
from addnorm.data.batches.denoising import SpanCorruption
from addnorm.data.tokenizing.sides import mask_id_of, sentinel_ids_of
from addnorm.errors import InputError
from addnorm.generate import GreedyConfig
from addnorm.runs.inference.denoiser import Gapped, gapped, restored
from addnorm.runs.run import Run


@given(st.integers(2, 60), st.integers(0, 10**6))
def test_the_right_answer_restores_a_text(n: int, seed: int) -> None:
    """Whatever span corruption took away, its answer puts back."""
    noise = SpanCorruption(0.3, 2.0, range(1000, 1040))
    ids = np.arange(1, n + 1)
    read, said = noise.corrupt(ids, np.random.default_rng(seed))
    parts: list[list[int]] = [[]]
    for i in read.tolist():
        if i >= 1000:
            parts.append([])
        else:
            parts[-1].append(i)
    sentinels = tuple(range(1000, 1000 + len(parts)))
    assert Gapped(parts, [], sentinels).filled(said.tolist()) == ids.tolist()


def test_odd_answers() -> None:
    gaps = Gapped([[1], [2], [3]], [], (90, 91, 92))
    assert gaps.filled([]) == [1, 2, 3]
    assert gaps.filled([7, 90, 8, 9, 92, 6]) == [1, 8, 9, 2, 3]
    assert gaps.filled([91, 8, 90, 9, 91, 7]) == [1, 9, 2, 8, 7, 3]
    assert Gapped([[1, 2]], [], ()).filled([]) == [1, 2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("gaps")
    write_corpora(folder)
    recipes = {"spans": DENOISING, "infilling": DENOISING.replace('"spans"', '"infilling"')}
    return {name: train_text(folder, name, text) for name, text in recipes.items()}


def test_what_the_encoder_reads(runs: dict[str, Run]) -> None:
    tokenizer = runs["spans"].tokenizers.source
    zero, one, two = sentinel_ids_of(tokenizer)[:3]
    to, be = tokenizer.encode("to "), tokenizer.encode("be")
    found = gapped(runs["spans"], "to <extra_id_0>be[MASK]", 1)
    assert found.read == [*to, zero, *be, one, *tokenizer.eos_ids]
    assert found.sentinels == (zero, one, two)
    tokenizer = runs["infilling"].tokenizers.source
    found = gapped(runs["infilling"], "to <mask>be", 1)
    assert found.read == [*to, mask_id_of(tokenizer), *be, *tokenizer.eos_ids]


def test_gaps_are_filled(runs: dict[str, Run]) -> None:
    run = runs["spans"]
    found = run.fill("to <mask>be or <mask>")
    assert found.text == "to {}be or {}".format(
        *(mask[0].token if mask else "" for mask in found.masks)
    )
    [[written]] = restored(run, ["to <mask>be or <mask>"], GreedyConfig(), 20)
    assert written.text.startswith("to ")
    several = run.generate(["to <mask>be", "", "<extra_id_0>"], beams=2, max_new_tokens=8)
    assert several[1] == ""
    assert several[0] == run.generate("to <mask>be", beams=2, max_new_tokens=8)
    assert isinstance(runs["infilling"].generate("to <mask>be", max_new_tokens=8), str)
    assert runs["infilling"].fill("to <mask>be").masks == []


def test_a_probability_is_that_of_the_span(runs: dict[str, Run], monkeypatch) -> None:
    """Of the answer, which is here given: the product of what the model says of its tokens."""
    run = runs["spans"]
    tokenizer = run.tokenizers.source
    zero, one, two = sentinel_ids_of(tokenizer)[:3]
    b, e = tokenizer.encode("be")
    [eos] = tokenizer.eos_ids
    read = gapped(run, "to <mask> or <mask>", 1).read
    from addnorm.generate import Generated
    from addnorm.runs.inference import denoiser as restoring

    def probability(said: list[int], start: int) -> Any:
        """The product of the tokens of `said` from number `start` on, each by a pass of its own."""
        product = 1.0
        for n in range(start, len(said)):
            with torch.no_grad():
                target = torch.tensor([[tokenizer.bos_id, *said[:n]]])
                logits = run.model(source=torch.tensor([read]), target=target)[0, -1]
            product *= float(logits.softmax(-1)[said[n]])
        return pytest.approx(product, rel=1e-4)

    def filled(said: list[int], finished: Any) -> list[list[tuple[str, float]]]:
        given = Generated("", 0.0, finished, ids=tuple(said))
        monkeypatch.setattr(restoring, "_decode", lambda *_: [[given]])
        masks = run.fill("to <mask> or <mask>").masks
        return [[(one.token, one.probability) for one in mask] for mask in masks]

    whole = [zero, b, e, one, e, two]
    first = ("be", probability(whole[:4], 1))
    assert filled(whole, "eos") == [[first], [("e", probability(whole, 4))]]
    assert filled(whole[:5], "eos") == [[first], [("e", probability([*whole[:5], eos], 4))]]
    assert filled(whole[:5], "length") == [[first], [("e", probability(whole[:5], 4))]]
    assert filled([zero, one], "eos") == [
        [("", probability([zero, one], 1))],
        [("", probability([zero, one, eos], 2))],
    ]
    assert filled([one, e], "eos") == [[], [("e", probability([one, e, eos], 1))]]
    assert filled([], "eos") == [[], []]


def test_what_has_no_gaps_to_fill(runs: dict[str, Run]) -> None:
    with pytest.raises(InputError, match="text 2: 0 gaps: mark 1 to 99 of them by <mask>"):
        runs["spans"].generate(["to <mask>", "to be"], max_new_tokens=4)
    with pytest.raises(InputError, match="text 1: 100 gaps: mark 1 to 99"):
        runs["spans"].fill("<mask>" * 100)
    with pytest.raises(InputError, match="takes no stop and no compiled graph"):
        runs["spans"].generate("to <mask>", stop="x")


def test_the_commands(runs: dict[str, Run], capsys: pytest.CaptureFixture[str]) -> None:
    run = str(runs["spans"].folder)
    assert status(["fill", run, "--text", "to [MASK]e", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["text"].startswith("to ")
    assert len(found["masks"]) == 1
    words = ["--prompt", "to <extra_id_0>e", "--beams", "1", "--max-new-tokens", "6"]
    assert status(["generate", run, *words]) == 0
    assert capsys.readouterr().out.startswith("to ")
    assert status(["generate", run, "--prompt", "to be"]) == 2
    assert "0 gaps" in capsys.readouterr().err
