"""Whisper on sound of any length: no word is lost at a seam and none is written twice."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from tests.cli.conftest import addnorm as addnorm
from torch import Tensor

from addnorm.generate.generated import Generated
from addnorm.generate.timestamps import FRAMES, TimestampRules
from addnorm.runs.inference.speech import LongSound, windowed_texts
from addnorm.runs.run import Run

Command = Callable[..., tuple[int, str, str]]

FIRST, WIDTH = 1000, 60
RULES = TimestampRules(FIRST, 900)


def spoken(durations: Sequence[int]) -> LongSound:
    """A sound of words: each lasts an even number of frames, which hold its number from 1 on."""
    words = [torch.full((1, 2 * n), float(i)) for i, n in enumerate(durations, 1)]
    frames = torch.cat(words, 1)
    return LongSound(frames, frames.shape[1])


def hear(window: Tensor, whole: bool) -> list[int]:
    """What a perfect listener writes: the words that the window has whole, each in a segment.

    A word that the window cuts is heard too, and its segment has no end.
    """
    ids: list[int] = []
    row = window[0].tolist()
    heard = sorted({int(word) for word in row} - {0})
    for word in heard:
        start, end = row.index(word), len(row) - row[::-1].index(word)
        ids += [FIRST + start // FRAMES, word - 1]
        if whole or end < len(row):
            ids.append(FIRST + end // FRAMES)
    return ids


@given(
    st.lists(st.lists(st.integers(1, WIDTH // 4), min_size=1, max_size=20), min_size=1, max_size=4)
)
def test_words_are_neither_lost_nor_doubled(sounds: list[list[int]]) -> None:
    """Wherever the seams are; the words begin and end where they are spoken."""
    long = [spoken(durations) for durations in sounds]
    begun = [0] * len(long)

    def write(which: Sequence[int], windows: Sequence[Tensor]) -> list[Generated]:
        texts: list[Generated] = []
        for i, window in zip(which, windows, strict=True):
            assert window.shape == (1, WIDTH)
            last = int((window == len(sounds[i])).sum())
            ids = hear(window, whole=last == 2 * sounds[i][-1])
            texts.append(Generated("", -1.0, "eos", ids=tuple(ids)))
            begun[i] += 1
        return texts

    texts = windowed_texts(write, long, RULES, WIDTH)
    for durations, text, n in zip(sounds, texts, begun, strict=True):
        words = [token for _, _, ids in text.spans for token in ids]
        assert words == list(range(len(durations)))
        ends = np.cumsum(durations) / 50
        times = [(start, end) for start, end, _ in text.spans]
        assert times == [
            (pytest.approx(end - duration / 50), pytest.approx(end))
            for end, duration in zip(ends, durations, strict=True)
        ]
        assert text.score == -n


# A tiny Whisper of random weights that hears two seconds, beside transformers.

SPECIAL = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|transcribe|>",
           "<|translate|>", "<|notimestamps|>")  # fmt: skip
END, START, EN, DE, TRANSCRIBE, TRANSLATE, PLAIN = range(40, 47)
STAMPS = 101
KEYS: dict[str, Any] = {
    "bos_token_id": END, "eos_token_id": END, "pad_token_id": END, "decoder_start_token_id": START,
    "max_new_tokens": 25, "lang_to_id": {"<|en|>": EN, "<|de|>": DE}, "is_multilingual": True,
    "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
    "no_timestamps_token_id": PLAIN, "max_initial_timestamp_index": 50,
    "suppress_tokens": [3, 5, START, EN, DE, TRANSCRIBE, TRANSLATE],
    "begin_suppress_tokens": [1, END],
}  # fmt: skip
SECONDS = {"short.wav": 0.7, "whole.wav": 2.0, "long.wav": 5.3, "longer.wav": 9.1}


def tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models

    built = Tokenizer(models.WordLevel({f"w{i}": i for i in range(40)}, unk_token="w0"))
    built.decoder = decoders.Fuse()
    built.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    built.add_tokens([f"<|{i / 50:.2f}|>" for i in range(STAMPS)])
    return built


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers: Any = pytest.importorskip("transformers")
    soundfile: Any = pytest.importorskip("soundfile")
    folder = tmp_path_factory.mktemp("whisper")
    torch.manual_seed(3)
    config = transformers.WhisperConfig(
        vocab_size=47 + STAMPS, d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
        decoder_ffn_dim=32, num_mel_bins=20, max_source_positions=100, max_target_positions=40,
        init_std=0.9, pad_token_id=END, bos_token_id=END, eos_token_id=END,
        decoder_start_token_id=START, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    transformers.WhisperForConditionalGeneration(config).eval().save_pretrained(folder)
    transformers.WhisperFeatureExtractor(feature_size=20, chunk_length=2).save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    (folder / "generation_config.json").write_text(json.dumps(KEYS))
    rng = np.random.default_rng(0)
    for name, seconds in SECONDS.items():
        time = np.arange(int(16_000 * seconds))
        wave = 0.3 * np.sin(time * 0.1 * (1 + 0.3 * np.sin(time / 3000))) * np.sin(time / 5000)
        wave += 0.02 * rng.normal(size=len(time))
        soundfile.write(folder / name, wave.astype(np.float32), 16_000)
    return folder


def theirs(folder: Path, name: str, **options: Any) -> Any:
    """The segments of a sound by transformers."""
    import soundfile
    import transformers

    model: Any = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    wave, rate = soundfile.read(folder / name, dtype="float32")
    long = len(wave) > 2 * rate
    how: dict[str, Any] = {"padding": "longest", "truncation": False} if long else {}
    features = extractor(wave, sampling_rate=rate, return_tensors="pt", **how)["input_features"]
    written = model.generate(features, return_timestamps=True, return_segments=True, **options)
    return written["segments"][0]


OPTIONS: dict[str, dict[str, Any]] = {
    "detected": {},
    "german": {"language": "de"},
    "translated": {"language": "german", "task": "translate"},
    "beams": {"num_beams": 3},
}


@pytest.mark.long
@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize("name", OPTIONS)
def test_segments_are_those_of_transformers(name: str, whisper: Path) -> None:
    options = OPTIONS[name].copy()
    expected = {file: theirs(whisper, file, **options) for file in SECONDS}
    options["beams"] = options.pop("num_beams", 1)
    run = Run.open(whisper)
    files = [whisper / name for name in SECONDS]
    for file, [text] in run.transcribe(files, timestamps=True, **options):
        assert text.segments is not None
        segments = expected[file.name]
        times = [(float(part["start"]), float(part["end"])) for part in segments]
        words = [[t for t in part["tokens"].tolist() if t < END] for part in segments]
        shown = [(*pair, tokens) for pair, tokens in zip(times, words, strict=True) if tokens]
        if file.name == "short.wav":  # they write on in the silence after the sound
            shown = shown[: len(text.segments)]
        assert list(text.ids) == [token for _, _, tokens in shown for token in tokens]
        assert text.text == tokenizer().decode(list(text.ids))
        for part, (start, end, tokens) in zip(text.segments, shown, strict=True):
            assert (part.start, part.end) == (pytest.approx(start), pytest.approx(end))
            assert part.text == tokenizer().decode(tokens)
        if "language" in options:
            assert text.language == "de"


@pytest.mark.long
@pytest.mark.usefixtures("types_unchecked")
def test_texts_are_those_of_each_sound_alone(whisper: Path) -> None:
    """Long sounds share batches; without time stamps, the text of a long one is the same."""
    run = Run.open(whisper)
    files = [whisper / name for name in SECONDS]
    together = [best for _, best in run.transcribe(files, timestamps=True)]
    alone = [next(run.transcribe([file], timestamps=True))[1] for file in files]
    assert [(t.ids, t.segments, t.language) for [t] in together] == [
        (t.ids, t.segments, t.language) for [t] in alone
    ]
    plain = [best[0] for _, best in run.transcribe(files)]
    assert [text.text for text in plain[2:]] == [best[0].text for best in together[2:]]
    assert [text.segments is None for text in plain] == [True, True, False, False]
    assert {text.language for text in plain} <= {"en", "de"}


@pytest.mark.usefixtures("types_unchecked")
def test_the_forms_of_the_command(whisper: Path, addnorm: Command) -> None:
    clip = whisper / "long.wav"
    how = ("generate", whisper, clip, "--language", "German", "--task", "translate")
    printed = {
        form: addnorm(*how, *words)
        for form, words in {
            "plain": (),
            "lines": ("--timestamps",),
            "json": ("--timestamps", "--json"),
            "srt": ("--subtitles", "srt"),
            "vtt": ("--subtitles", "vtt"),
        }.items()
    }
    for code, _, err in printed.values():
        assert code == 0, err
    out = {form: text for form, (_, text, _) in printed.items()}
    answer = json.loads(out["json"])
    assert (answer["language"], out["plain"]) == ("de", f"{answer['text']}\t{clip}\n")
    lines = out["lines"].splitlines()
    assert len(lines) == len(answer["segments"]) > 3
    assert lines[0].endswith(f"] {answer['segments'][0]['text'].strip()}\t{clip}")
    assert out["srt"].count(" --> ") == out["vtt"].count(" --> ") == len(lines)
    assert out["vtt"].startswith("WEBVTT\n\n00:00:")


@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["long.wav", "--n-best", "2"], "or leave out n_best: windows have one text each"),
        (["short.wav", "--timestamps", "--n-best", "2"], "--n-best 2: a text with time stamps"),
        (["short.wav", "--language", "gemran"], "does not list it. Did you mean"),
        (["short.wav", "--task", "translation"], "translate"),
        (["short.wav", "long.wav", "--subtitles", "srt"], "name a single file"),
        (["short.wav", "--subtitles", "srt", "--json"], "either --json or --subtitles"),
        (["short.wav", "--subtitles", "ass"], "srt"),
    ],
)
def test_options_that_do_not_fit(
    words: list[str], message: str, whisper: Path, addnorm: Command
) -> None:
    words = [str(whisper / word) if word.endswith(".wav") else word for word in words]
    code, out, err = addnorm("generate", whisper, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
