"""Using a run: empty texts, groups, texts that are too long, runs of another kind."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.runs.tiny import train_tiny

from addnorm.data.ids.framing import encode_for_task
from addnorm.errors import InputError
from addnorm.generate import GreedyConfig, SampleConfig
from addnorm.runs.inference.results import Written
from addnorm.runs.inference.text import classify, tag, write, write_as_it_comes
from addnorm.runs.run import Run

RunOf = Callable[[str], Path]


def test_blank_texts_keep_their_place(run_of: RunOf) -> None:
    run = Run.open(run_of("translation"))
    greedy = GreedyConfig()
    found = write(run, ["", "a red cat", " \t", "no cat"], greedy)
    alone = [write(run, [text], greedy)[0] for text in ("a red cat", "no cat")]
    assert found[0] == found[2] == [Written("", 0.0, "eos")]
    assert [found[1][0].text, found[3][0].text] == [best[0].text for best in alone]
    assert write(run, [], greedy) == write(run, [""], greedy)[1:] == []
    play = Run.open(run_of("language"))
    assert len(write(play, ["", "T"], SampleConfig(), max_new_tokens=3)) == 2


def test_later_groups_draw_numbers_of_their_own(run_of: RunOf) -> None:
    run = Run.open(run_of("language"))
    [one], [again], [other] = (
        write(run, ["To be"], SampleConfig(), max_new_tokens=20, first=first)[0]
        for first in (0, 0, 256)
    )
    assert one == again != other


def test_text_as_it_comes_is_the_same_text(run_of: RunOf) -> None:
    run = Run.open(run_of("language"))
    pieces = list(write_as_it_comes(run, "To be", SampleConfig(), max_new_tokens=30))
    [[whole]] = write(run, ["To be"], SampleConfig(), max_new_tokens=30)
    assert "".join(pieces) == whole.text


@pytest.mark.parametrize("n", [0, -1])
def test_no_tokens_is_refused(n: int, run_of: RunOf) -> None:
    run = Run.open(run_of("language"))
    with pytest.raises(InputError, match="at least 1"):
        write(run, ["x"], GreedyConfig(), max_new_tokens=n)
    with pytest.raises(InputError, match="at least 1"):
        write_as_it_comes(run, "x", GreedyConfig(), max_new_tokens=n)


def test_probabilities_are_the_models(run_of: RunOf) -> None:
    run = Run.open(run_of("classification"))
    texts = ["a fine day", "", "wet", "and and and and cold"]
    for text, one in zip(texts, classify(run, texts, batch_size=3), strict=True):
        [ids] = encode_for_task("classification", run.tokenizers.source, [text])
        with torch.no_grad():
            expected = run.model(torch.tensor([ids]))[0].softmax(-1)
        assert list(one.probabilities) == ["bad", "good"]
        assert list(one.probabilities.values()) == pytest.approx(expected.tolist(), abs=1e-6)
        assert one.label == run.labels[int(expected.argmax())]
    assert classify(run, []) == []


def test_a_tag_for_every_word(run_of: RunOf) -> None:
    run = Run.open(run_of("tagging"))
    sentences = [["Anna", "lives"], [], ["日本語", "\u2028"], ["x"] * 100]
    tags = tag(run, sentences, batch_size=3)
    assert [len(one) for one in tags] == [2, 0, 2, 100]
    assert {t for one in tags for t in one} <= set(run.labels)
    assert tags == [tag(run, [words])[0] for words in sentences]
    assert tag(run, []) == []


@pytest.mark.parametrize("task", ["language", "translation", "classification", "tagging"])
def test_learned_positions_end(task: str, tmp_path: Path) -> None:
    """A text beyond the table is refused by its number; the one that just fits is not."""
    fields = {"model.position": '{kind = "learned"}', "model.max_len": "60"}
    run = Run.open(train_tiny(tmp_path, task, **fields))
    for n, refused in ((20, False), (104, True)):
        text = (
            " ".join("a" * (n // 2 if task == "tagging" else n)) if task != "language" else "T" * n
        )

        def use(text: str = text) -> object:
            if task == "classification":
                return classify(run, ["a", text], first=10)
            if task == "tagging":
                return tag(run, [["a"], text.split()], first=10)
            return write(run, ["a", text], GreedyConfig(), first=10)

        if refused:
            with pytest.raises(InputError, match=r"12 has 10\d tokens.* at most 60"):
                use()
        else:
            assert use()


def test_runs_of_another_kind(run_of: RunOf) -> None:
    runs = {task: Run.open(run_of(task)) for task in ("language", "translation")}
    readers = {task: Run.open(run_of(task)) for task in ("classification", "tagging")}
    for run in runs.values():
        with pytest.raises(InputError, match=r"use `run.(generate|translate)\(texts\)`"):
            classify(run, ["x"])
        with pytest.raises(InputError, match=r"use `run.(generate|translate)\(texts\)`"):
            tag(run, [["x"]])
    for run in readers.values():
        with pytest.raises(InputError, match=r"use `run.(classify\(text|tag\(sentence)s\)`"):
            write(run, ["x"], GreedyConfig())
    with pytest.raises(InputError, match="does not classify"):
        classify(readers["tagging"], ["x"])
    with pytest.raises(InputError, match="does not tag"):
        tag(readers["classification"], [["x"]])
    with pytest.raises(InputError, match="only a language model streams"):
        write_as_it_comes(runs["translation"], "x", GreedyConfig())
