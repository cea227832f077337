"""Transcription by CTC: the loss over all alignments, best paths, and a run on sounds."""

from math import inf

import pytest
import torch

import addnorm as an
from addnorm.data import Corpus, Transcribed
from addnorm.data.batches.batch import Batch
from addnorm.errors import InputError
from addnorm.nn.ctc import CTCHeadConfig
from addnorm.tasks.transcription import FrameTranscription

TASK = FrameTranscription()


def test_the_best_path_is_read_without_blanks_repetitions_and_padding() -> None:
    path = [0, 3, 3, 0, 3, 2, 2, 0, 1, 1]
    logits = torch.full((1, 10, 4), -inf)
    logits[0, range(10), path] = 0.0
    batch = Batch({}, torch.empty(0), 0, [7])
    tokens, score = TASK.answers(CTCHeadConfig().build(4, 4), logits, batch, None)[7]
    assert (tokens, score) == ([3, 3, 2, 1], 0.0)
    valid = torch.arange(10)[None] < 6
    tokens, _ = TASK.answers(CTCHeadConfig().build(4, 4), logits, batch, valid)[7]
    assert tokens == [3, 3, 2]


def sounds(n: int, seed: int) -> list[Transcribed]:
    """Tones of four letters, each some frames long, with silence around them."""
    generator = torch.Generator().manual_seed(seed)
    examples: list[Transcribed] = []
    for _ in range(n):
        letters = torch.randint(
            0, 4, (int(torch.randint(1, 4, (), generator=generator)),), generator=generator
        )
        frames = [torch.full((8, 8), -1.0)]
        for letter in letters.tolist():
            tone = torch.full((8, 8), -1.0)
            tone[2 * letter : 2 * letter + 2] = 1.0
            frames += [tone, torch.full((8, 6), -1.0)]
        text = "".join("abcd"[letter] for letter in letters.tolist())
        examples.append(Transcribed(torch.cat(frames, dim=1), text))
    return examples


def test_options_of_decoding_are_refused_by_name() -> None:
    config = an.EncoderConfig(
        d_model=8, n_layers=1, input=an.LogMelEmbeddingConfig(n_mels=8), head=CTCHeadConfig()
    )
    batching = {"kind": "frames", "frames": 400}
    corpus = Corpus(sounds(8, 0))
    run = an.train(config, corpus, tokenizer="char", batching=batching, steps=1, progress=False)
    options = {"beams": 4, "n_best": 3, "temperature": 0.5, "no_repeat_ngram": 1, "forced_bos": 9}
    for name, value in options.items():
        with pytest.raises(InputError, match=f"without decoding: leave out `{name}`"):
            run.decoding(**{name: value})  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="leave out `decoding`"):
        run.transcribe([], an.GreedyConfig())
    with pytest.raises(InputError, match="leave out `max_new_tokens`"):
        list(run.transcribe([], max_new_tokens=1))
    run.transcribe([], run.decoding())


@pytest.mark.long
def test_a_model_learns_to_write_what_it_hears() -> None:
    corpus = Corpus(sounds(200, 0), sounds(30, 1))
    config = an.EncoderConfig(
        d_model=32,
        n_layers=1,
        input=an.LogMelEmbeddingConfig(n_mels=8),
        position=an.SinusoidalConfig(),
        head=CTCHeadConfig(),
    )
    run = an.train(
        config,
        corpus,
        tokenizer="char",
        batching={"kind": "frames", "frames": 400},
        steps=250,
        lr=3e-3,
        progress=False,
    )
    assert run.task == "transcription"
    scores = run.evaluate(corpus)
    assert scores["cer"] < 10.0
