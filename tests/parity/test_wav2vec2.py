"""wav2vec 2.0 and HuBERT folders against transformers, over random configurations."""

import json
import random
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.cli.conftest import addnorm as addnorm
from tests.parity.encoders import reopened
from tests.parity.families import made
from torch import Tensor
from torch.testing import assert_close

from addnorm.checking.wide import Wide
from addnorm.convert.core.settings import Settings
from addnorm.convert.folder import LoadedModel, load, read_config, save
from addnorm.convert.registry import family_of
from addnorm.errors import InputError

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::FutureWarning")]

Keys = dict[str, Any]
Command = Callable[..., tuple[int, str, str]]

PICKS = {"Model": "last_hidden_state", "ForCTC": "logits", "ForSequenceClassification": "logits"}
STEMS = {"wav2vec2": "Wav2Vec2", "hubert": "Hubert"}
CLASSES = [(name, ending) for name in STEMS for ending in PICKS]


def drawn(name: str, ending: str, seed: int) -> Any:
    draw = random.Random(f"{name} {ending} {seed}")
    n_heads, n = draw.choice((1, 2, 3)), draw.randint(1, 4)
    groups = draw.choice((1, 2))
    tree: Keys = {
        "vocab_size": draw.randint(5, 12),
        "hidden_size": n_heads * groups * draw.choice((2, 4)),
        "num_hidden_layers": draw.randint(1, 3),
        "num_attention_heads": n_heads,
        "intermediate_size": draw.randint(5, 20),
        "hidden_act": draw.choice(("gelu", "relu")),
        "feat_extract_activation": draw.choice(("gelu", "relu")),
        "feat_extract_norm": draw.choice(("group", "layer")),
        "layer_norm_eps": draw.choice((1e-5, 1e-3)),
        "conv_dim": [draw.randint(2, 7) for _ in range(n)],
        "conv_kernel": [draw.randint(1, 5) for _ in range(n)],
        "conv_stride": [draw.randint(1, 3) for _ in range(n)],
        "conv_bias": draw.random() < 0.5,
        "num_conv_pos_embeddings": draw.randint(1, 8),
        "num_conv_pos_embedding_groups": groups,
        "do_stable_layer_norm": draw.random() < 0.5,
        "mask_time_prob": draw.choice((0.0, 0.05)),
        "classifier_proj_size": draw.randint(2, 9),
        "id2label": {i: f"label {i}" for i in range(draw.randint(2, 4))},
        "pad_token_id": draw.choice((0, 0, 4)),
    }
    if name == "hubert":
        tree["feat_proj_layer_norm"] = draw.random() < 0.7
    return getattr(transformers, f"{STEMS[name]}Config")(**tree)


def output(theirs: Any, pick: str, samples: Tensor, mask: Tensor | None = None) -> Tensor:
    theirs = deepcopy(theirs).to(samples.dtype)
    with torch.no_grad():
        if samples.dtype != torch.float64:
            return theirs(samples, attention_mask=mask)[pick]
        with Wide():
            return theirs(samples, attention_mask=mask)[pick]


def check(name: str, ending: str, seed: int, folder: Path) -> None:
    """Alone and in ragged batches, in both types, and both directions."""
    config, pick = drawn(name, ending, seed), PICKS[ending]
    kind = f"{STEMS[name]}{ending}"
    theirs, loaded = made(kind, config, folder)
    least = loaded.spec.model.input.least  # type: ignore[union-attr]
    lengths = [least + n for n in (37, 3, 5, 22)]
    clips = [torch.randn(n, dtype=torch.float64) for n in lengths]
    samples = torch.zeros(len(clips), max(lengths), dtype=torch.float64)
    for row, clip in zip(samples, clips, strict=True):
        row[: len(clip)] = clip
    valid = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    for dtype, near in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        model = load(folder, dtype=dtype).model
        with torch.no_grad():
            batch = model(samples[:, None].to(dtype), valid)
            alone = [model(clip[None, None].to(dtype)) for clip in clips]
        expected = [output(theirs, pick, clip[None].to(dtype)) for clip in clips]
        scale = max(1.0, *(float(e.abs().max()) for e in expected)) if near > 1e-6 else 1.0
        for got, row, other in zip(alone, batch, expected, strict=True):
            assert_close(got, other, rtol=0, atol=near * scale)
            row = row if ending == "ForSequenceClassification" else row[: other.shape[1]]
            assert_close(row, other[0], rtol=0, atol=near * scale)
        if config.feat_extract_norm == "layer":  # theirs counts padding in a norm over time
            masked = output(theirs, pick, samples.to(dtype), valid.long())
            for row, other, e in zip(batch, masked, expected, strict=True):
                n = slice(None) if ending == "ForSequenceClassification" else slice(e.shape[1])
                assert_close(row[n], other[n], rtol=0, atol=near * scale)
    check_both_ways(kind, theirs, loaded, folder, pick, clips[0][None])


def check_both_ways(
    kind: str, theirs: Any, loaded: LoadedModel, folder: Path, pick: str, samples: Tensor
) -> None:
    opened = reopened(kind, theirs, loaded, folder)
    expected = output(theirs, pick, samples)
    assert_close(output(opened, pick, samples), expected, rtol=0, atol=1e-10)


@pytest.mark.long
@pytest.mark.parametrize(("name", "ending"), CLASSES)
def test_equal_to_transformers(name: str, ending: str, tmp_path: Path) -> None:
    check(name, ending, 0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 31))
@pytest.mark.parametrize(("name", "ending"), CLASSES)
def test_random_configurations(name: str, ending: str, seed: int, tmp_path: Path) -> None:
    check(name, ending, seed, tmp_path)


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("wav2vec2", {"add_adapter": True}, "add_adapter = True is not supported, only false"),
        ("wav2vec2", {"adapter_attn_dim": 16}, "adapter_attn_dim = 16"),
        ("wav2vec2", {"use_weighted_layer_sum": True}, "use_weighted_layer_sum = True"),
        ("wav2vec2", {"architectures": ["Wav2Vec2ForXVector"]}, "Valid: Wav2Vec2Model"),
        ("wav2vec2", {"feat_extract_norm": "batch"}, "feat_extract_norm = 'batch'"),
        ("wav2vec2", {"conv_dim": [5] * 9}, "a number for each convolution"),
        ("hubert", {"conv_pos_batch_norm": True}, "conv_pos_batch_norm = True"),
        ("hubert", {"something_new": 3}, "something_new = 3 is not supported"),
    ],
)
def test_unsupported_settings_are_named(name: str, changes: Keys, expected: str) -> None:
    settings = Settings(drawn(name, "Model", 3).to_dict() | {"conv_bias": True} | changes)
    with pytest.raises(InputError, match=expected):
        read_config(family_of(settings), settings)


def test_names_of_older_files(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    made("Wav2Vec2ForCTC", drawn("wav2vec2", "ForCTC", 0), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    old = {
        name.replace("parametrizations.weight.original0", "weight_g").replace(
            "parametrizations.weight.original1", "weight_v"
        ): weight
        for name, weight in weights.items()
    }
    before = load(tmp_path).model.state_dict()
    save_file(old, tmp_path / "model.safetensors")
    after = load(tmp_path).model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


VOCABULARY = ["<pad>", "<s>", "</s>", "<unk>", "|", "A", "B", "C", "'"]


def test_texts_are_spelled_as_theirs(tmp_path: Path) -> None:
    config = drawn("wav2vec2", "ForCTC", 0)
    config.vocab_size, config.pad_token_id = len(VOCABULARY), 0
    made("Wav2Vec2ForCTC", config, tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(VOCABULARY)}))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(tmp_path / "vocab.json")
    tokenizer.save_pretrained(tmp_path)
    text = load(tmp_path).text
    assert text is not None
    for words in ("A B", "CAB'S", "AA  BB", "", " A "):
        assert text.target.encode(words) == tokenizer(words).input_ids
    for ids in ([5, 5, 4, 6], [4, 5, 4], [5, 8, 7], []):
        spelled = [[i, 0] for i in ids]  # a blank keeps equal neighbours apart
        assert text.target.decode(ids) == tokenizer.decode([i for two in spelled for i in two])


def test_a_saved_vocabulary_is_read_by_their_class(tmp_path: Path) -> None:
    config = drawn("wav2vec2", "ForCTC", 0)
    config.vocab_size, config.pad_token_id = len(VOCABULARY), 0
    made("Wav2Vec2ForCTC", config, tmp_path)
    file = tmp_path / "vocab.json"
    file.write_text(json.dumps({t: i for i, t in enumerate(VOCABULARY)}))
    first = transformers.Wav2Vec2CTCTokenizer(file)
    first.save_pretrained(tmp_path)
    loaded, out = load(tmp_path), tmp_path / "out"
    save(out, loaded.spec, loaded.model, loaded.text)
    tokenizer, again = transformers.AutoTokenizer.from_pretrained(out), load(out).text
    assert again is not None
    assert type(tokenizer) is type(first)
    for words in ("A B", "CAB'S", "AA  BB", ""):
        assert tokenizer(words).input_ids == again.target.encode(words) == first(words).input_ids
    assert tokenizer.decode([5, 5, 0, 5, 4, 6]) == first.decode([5, 5, 0, 5, 4, 6]) == "AA B"


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny wav2vec 2.0 with its vocabulary and reader, and three clips."""
    soundfile = pytest.importorskip("soundfile")
    folder = tmp_path_factory.mktemp("wav2vec2")
    config = drawn("wav2vec2", "ForCTC", 1)
    config.vocab_size, config.pad_token_id, config.feat_extract_norm = 9, 0, "group"
    config.conv_dim, config.conv_kernel, config.conv_stride = [4, 4], [5, 3], [3, 2]
    config.num_feat_extract_layers = 2
    made("Wav2Vec2ForCTC", config, folder)
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(VOCABULARY)}))
    transformers.Wav2Vec2CTCTokenizer(folder / "vocab.json").save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor().save_pretrained(folder)
    for name, n in (("a.wav", 900), ("b.wav", 411), ("c.wav", 1300)):
        samples = 0.3 * torch.randn(n, generator=torch.Generator().manual_seed(n)) + 0.1
        soundfile.write(folder / name, samples.clamp(-1, 1).numpy(), 16_000, subtype="FLOAT")
    return folder


def test_files_are_heard_as_theirs(speaker: Path, addnorm: Command) -> None:
    soundfile = pytest.importorskip("soundfile")
    model = transformers.Wav2Vec2ForCTC.from_pretrained(speaker).eval()
    tokenizer = transformers.Wav2Vec2CTCTokenizer.from_pretrained(speaker)
    reader = transformers.Wav2Vec2FeatureExtractor.from_pretrained(speaker)
    files = sorted(speaker.glob("*.wav"))
    code, out, err = addnorm("generate", speaker, *files)
    assert code == 0, err
    for file, line in zip(files, out.splitlines(), strict=True):
        samples, rate = soundfile.read(file, dtype="float32")
        inputs = reader(samples, sampling_rate=rate, return_tensors="pt")
        with torch.no_grad():
            ids = model(**inputs).logits.argmax(-1)
        expected = tokenizer.batch_decode(ids)[0]
        for special in ("<s>", "</s>", "<unk>"):
            expected = expected.replace(special, "")
        assert line == f"{expected.strip()}\t{file}"
    code, out, err = addnorm("embed", speaker, *files)
    assert (code, len(out.splitlines())) == (0, 3), err


def test_wrong_files_are_named(speaker: Path, tmp_path: Path, addnorm: Command) -> None:
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "short.wav", [0.1], 16_000)
    pillow = pytest.importorskip("PIL.Image")
    pillow.new("RGB", (4, 4)).save(tmp_path / "x.png")
    for words, said in (
        (["generate", speaker, tmp_path / "x.png"], "x.png is not readable as sound"),
        (["generate", speaker, tmp_path / "short.wav"], "but this model reads at least"),
        (["generate", speaker, "--prompt", "x"], "--prompt"),
        (["classify", speaker, speaker / "a.wav"], "has no classes"),
    ):
        code, out, err = addnorm(*words)
        assert (code, out) == (2, ""), (words, err)
        assert said in err
        assert err.count("\n") == 1


def test_it_is_trained_further_on_our_task_and_goes_back(
    speaker: Path, tmp_path: Path, addnorm: Command
) -> None:
    table = "".join(
        f"{speaker / name},{text}\n" for name, text in (("a.wav", "AB C"), ("c.wav", "B"))
    )
    (tmp_path / "clips.csv").write_text(f"file_name,label\n{table}")
    recipe = tmp_path / "r.toml"
    recipe.write_text(f"""
[data]
kind = "audio"
form = "waveform"
labels = "text"
train = "{tmp_path / "clips.csv"}"
[train]
start = "{speaker}"
steps = 2
batching = {{ kind = "frames", frames = 3000 }}
""")
    code, _, err = addnorm("train", recipe, "--out", tmp_path / "run")
    assert code == 0, err
    code, heard, err = addnorm("generate", tmp_path / "run", speaker / "a.wav")
    assert code == 0, err
    code, _, err = addnorm("export", tmp_path / "run", tmp_path / "out")
    assert code == 0, err
    code, again, err = addnorm("generate", tmp_path / "out", speaker / "a.wav")
    assert (code, again) == (0, heard), err
