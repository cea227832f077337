"""The corpora of the recipes load completely; skipped if they are absent."""

from pathlib import Path

import pytest
from tests.public_data import DATA

from addnorm.data import (
    AudioConfig,
    ConllConfig,
    Corpus,
    ImageFilesConfig,
    ImagesConfig,
    LinesConfig,
    ParallelConfig,
    TextConfig,
)
from addnorm.data.batches.buckets import TokensConfig, WindowsConfig
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import BPEConfig, CharConfig
from addnorm.errors import InputError
from addnorm.runs.encoded_data import encode


def folder(name: str) -> Path:
    if not (DATA / name).is_dir():
        pytest.skip(f"no {name} in {DATA}; ADDNORM_DATA says where the data are")
    return DATA / name


def sizes(corpus: Corpus) -> tuple[int, int, int]:
    return len(corpus.train), len(corpus.valid), len(corpus.test)


@pytest.mark.long
@pytest.mark.parametrize("prefix", ["", "tok/"])
def test_multi30k(prefix: str) -> None:
    mark = "lc.norm.tok." if prefix else ""

    def pair(split: str) -> tuple[str, str]:
        return f"{prefix}{split}.{mark}en.gz", f"{prefix}{split}.{mark}de.gz"

    corpus = ParallelConfig(
        root=folder("multi30k"),
        train=pair("train"),
        valid=pair("val"),
        test=pair("test_2016_flickr"),
    ).load()
    assert corpus.task == "translation"
    assert sizes(corpus) == (29_000, 1_014, 1_000)
    assert all(not report.left_out for report in corpus.reports.values())


def test_multi30k_is_covered_by_an_epoch() -> None:
    root = folder("multi30k")
    corpus = ParallelConfig(root=root, train=("val.en.gz", "val.de.gz")).load()
    encoded = encode(corpus, Tokenizers.train(BPEConfig(vocab_size=1000), corpus))
    loader = TokensConfig().build(encoded, seed=1).train
    indices = [i for batch in loader.batches(1) for i in batch.indices]
    assert sorted(indices) == [*range(1_014)]


def test_tiny_shakespeare() -> None:
    config = TextConfig(root=folder("tinyshakespeare"), train="input.txt", valid_fraction=0.1)
    corpus = config.load()
    assert [len(split[0].text) for split in (corpus.train, corpus.valid)] == [1_003_854, 111_540]
    tokenizers = Tokenizers.train(CharConfig(), corpus)
    assert tokenizers.source.vocab_size == 4 + 65
    loaders = WindowsConfig(documents="joined").build(encode(corpus, tokenizers))
    assert sum(batch.n_tokens for batch in loaders.valid.batches()) == 111_540 - 1


def test_trec_needs_latin_1() -> None:
    files = {
        "root": folder("text_classification"),
        "train": "TREC.train.all",
        "test": "TREC.test.all",
    }
    with pytest.raises(InputError, match=r'TREC\.train\.all:66: .*encoding = "latin-1"'):
        LinesConfig(**files).load()
    corpus = LinesConfig(**files, encoding="latin-1").load()
    assert sizes(corpus) == (5_452, 0, 500)
    assert corpus.labels == ("0", "1", "2", "3", "4", "5")


def test_sst_2() -> None:
    corpus = LinesConfig(
        root=folder("text_classification"),
        train="stsa.binary.train",
        valid="stsa.binary.dev",
        test="stsa.binary.test",
    ).load()
    assert sizes(corpus) == (6_920, 872, 1_821)
    assert corpus.labels == ("0", "1")


@pytest.mark.long
def test_wnut_17() -> None:
    corpus = ConllConfig(
        root=folder("ner_wnut17"),
        train="wnut17train.conll",
        valid="emerging.dev.conll",
        test="emerging.test.annotated",
    ).load()
    assert corpus.task == "tagging"
    assert sizes(corpus) == (3_394, 1_008, 1_287)
    assert len(corpus.labels) == 13
    # One line of the development set holds a byte-order mark and no tag.
    [(reason, [where])] = corpus.reports["valid"].left_out.items()
    assert reason == "a line without word and tag"
    assert where.endswith("emerging.dev.conll:16742")


@pytest.mark.long
@pytest.mark.parametrize(("pool", "side"), [(1, 28), (4, 7)])
def test_mnist(pool: int, side: int) -> None:
    """Its test images alone: 60,000 more of the same would take the type checks a while."""
    root, held = folder("mnist"), ("x_test", "y_test")
    corpus = ImagesConfig(
        root=root, file=Path("mnist.npz"), train=held, test=None, pool=pool
    ).load()
    assert len(corpus.train) == 10_000
    assert corpus.labels == tuple("0123456789")
    assert {one.signal.shape for one in encode(corpus, None).train} == {(1, side, side)}


@pytest.mark.long
def test_spoken_digits() -> None:
    config = AudioConfig(
        root=folder("fsdd"),
        train="recordings/*_[5-9].wav",
        test="recordings/*_[0-4].wav",
        label_pattern="^([0-9])_",
        sample_rate=8000,
        n_mels=40,
    )
    corpus = config.load()
    assert sizes(corpus) == (300, 0, 300)
    assert corpus.labels == tuple("0123456789")


@pytest.mark.long
def test_colour_images_in_parquet() -> None:
    pytest.importorskip("pyarrow")
    config = ImageFilesConfig(root=folder("cifar10"), train="test.parquet", image_size=(32, 32))
    corpus = config.load()
    assert sizes(corpus) == (10_000, 0, 0)
    assert len(corpus.labels) == 10
