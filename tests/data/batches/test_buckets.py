"""Batches: what each task's model gets, every example once, and an order that can be resumed."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from addnorm.data import Corpus, Labelled, Pair, Report, Tagged, Text
from addnorm.data.batches.batch import epoch_random
from addnorm.data.batches.buckets import (
    Batch,
    Buckets,
    PackedConfig,
    TokensConfig,
    WindowsConfig,
)
from addnorm.data.ids.encoding import Encoded, EncodedCorpus
from addnorm.data.ids.layout import SourceAndTarget
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import CharConfig, Tokenizer, WordConfig
from addnorm.errors import InputError
from addnorm.runs.encoded_data import encode
from addnorm.tasks.registry import TASKS

lengths = st.lists(st.integers(1, 12), min_size=1, max_size=40)


def encoded(n_tokens: list[int], task="tagging") -> EncodedCorpus:
    examples = [Encoded(i, [4 + i] * n, [i] * n) for i, n in enumerate(n_tokens)]
    layout = TASKS[task].layout
    return EncodedCorpus(task, bos_id=2, pad_id=0, train=examples, valid=examples, layout=layout)


def chars(corpus: Corpus, **options) -> tuple[EncodedCorpus, Tokenizers]:
    tokenizers = Tokenizers.train(CharConfig(**options), corpus)
    return encode(corpus, tokenizers), tokenizers


def only(corpus: EncodedCorpus, **options) -> Batch:
    [batch] = TokensConfig(**options).build(corpus).train.batches()
    return batch


def by_index(batch: Batch) -> list[int]:
    return sorted(range(len(batch.indices)), key=lambda row: batch.indices[row])


# What each task's model gets


def test_language_predicts_the_next_token_and_the_end() -> None:
    corpus, _ = chars(Corpus([Text("ab"), Text("")]))
    batch = only(corpus)
    rows = by_index(batch)
    assert batch.inputs["tokens"][rows].tolist() == [[2, 4, 5], [2, 0, 0]]
    assert batch.inputs["valid"][rows].tolist() == [[True] * 3, [True, False, False]]
    assert batch.targets[rows].tolist() == [[4, 5, 3], [3, -100, -100]]
    assert batch.n_tokens == 4


def test_translation_shifts_the_target() -> None:
    corpus, _ = chars(Corpus([Pair("a", "bc"), Pair("ab", "c")]), joint=False)
    batch = only(corpus)
    rows = by_index(batch)
    assert batch.inputs["source"][rows].tolist() == [[4, 3, 0], [4, 5, 3]]
    assert batch.inputs["source_valid"][rows].tolist() == [[True, True, False], [True] * 3]
    assert batch.inputs["target"][rows].tolist() == [[2, 4, 5], [2, 5, 0]]
    assert batch.inputs["target_valid"][rows].tolist() == [[True] * 3, [True, True, False]]
    assert batch.targets[rows].tolist() == [[4, 5, 3], [5, 3, -100]]
    assert batch.n_tokens == 5


def test_classification_has_one_target_to_a_text() -> None:
    corpus, _ = chars(Corpus([Labelled("ab", "y"), Labelled("ba", "x")]))
    batch = only(corpus)
    rows = by_index(batch)
    assert list(batch.inputs) == ["inputs"]  # nothing is padded
    assert batch.inputs["inputs"][rows].tolist() == [[2, 4, 5, 3], [2, 5, 4, 3]]
    assert batch.targets[rows].tolist() == [1, 0]
    assert batch.n_tokens == 2


def test_tagging_has_a_target_at_the_first_piece_of_each_word() -> None:
    corpus, _ = chars(Corpus([Tagged(("ab", "c"), ("O", "B"))]))
    batch = only(corpus)
    # bos a b space c eos: the space goes with the word that follows it
    assert batch.inputs["inputs"].tolist() == [[2, 5, 6, 4, 7, 3]]
    assert batch.targets.tolist() == [[-100, 1, -100, 0, -100, -100]]
    assert batch.n_tokens == 2


def test_an_end_that_is_also_padding_is_learnt_once() -> None:
    corpus = Corpus([Text("ab"), Text("")])
    made = WordConfig().train(["ab"])
    ours = Tokenizer(made.inner, pad_id=3, eos_ids=(3,))
    batch = only(encode(corpus, Tokenizers(ours, ours)))
    assert (batch.targets == 3).sum(-1).tolist() == [1, 1]


def test_labels_can_be_given_and_must_be_known() -> None:
    corpus = Corpus([Labelled("a", "y"), Labelled("b", "x")])
    tokenizers = Tokenizers.train(CharConfig(), corpus)
    assert [e.targets for e in encode(corpus, tokenizers, ["z", "y", "x"]).train] == [[1], [2]]
    with pytest.raises(InputError, match="unknown label 'x'"):
        encode(corpus, tokenizers, ["y"])


def test_a_batch_moves_to_a_device() -> None:
    batch = only(encoded([1, 2])).to("meta")
    assert {t.device.type for t in (*batch.inputs.values(), batch.targets)} == {"meta"}


def test_joint_is_one_tokenizer(tmp_path: Path) -> None:
    corpus = Corpus([Pair("ab", "c")])
    for joint, sizes in ((True, (7, 7)), (False, (6, 5))):
        made = Tokenizers.train(CharConfig(joint=joint), corpus)
        assert (made.source is made.target) == joint
        folder = tmp_path / str(joint)
        folder.mkdir()
        made.save(folder)
        loaded = Tokenizers.load(folder)
        assert (loaded.source.vocab_size, loaded.target.vocab_size) == sizes


# Too long


def test_long_examples_are_left_out_and_reported() -> None:
    corpus, _ = chars(
        Corpus([Text("abcd"), Text("ab")], reports={"train": Report(3, 2, {"x": ["?"]})})
    )
    loaders = TokensConfig(max_len=4).build(corpus)
    assert [b.indices for b in loaders.train.batches()] == [[1]]
    assert loaders.reports["train"] == Report(
        3, 1, {"x": ["?"], "longer than 4 tokens": ["train example 1"]}
    )
    with pytest.raises(InputError, match="every training example is longer than max_len=2"):
        TokensConfig(max_len=2).build(corpus)


@pytest.mark.parametrize(
    ("example", "tokens", "targets"),
    [
        (Text("abcd"), [2, 4, 5], [4, 5, 6]),
        (Pair("abcd", "dcba"), [4, 5, 3], [7, 6, 5]),
        (Labelled("abcd", "x"), [2, 4, 3], [0]),
        (Tagged(("ab", "cd"), ("x", "x")), [2, 5, 3], [-100, 0, -100]),
    ],
)
def test_long_examples_are_shortened_and_reported(example, tokens, targets) -> None:
    corpus, _ = chars(Corpus([example]))
    short = corpus.within(3, "shorten")
    assert short.train == [Encoded(0, tokens, targets)]
    assert short.reports["train"].shortened == ["train example 1"]
    assert "1 shortened (train example 1)" in str(short.reports["train"])


def test_an_example_longer_than_a_batch_is_refused() -> None:
    with pytest.raises(InputError, match="of 9 tokens is longer than a batch of 8"):
        TokensConfig(tokens=8).build(encoded([3, 9]))


# Order


@given(lengths, st.integers(12, 50), st.integers(1, 4), st.integers(0, 3))
def test_every_example_is_in_one_batch_within_the_budget(n_tokens, tokens, pad_to, epoch) -> None:
    tokens = max(tokens, 12 + pad_to)
    loader = TokensConfig(tokens=tokens, pad_to=pad_to).build(encoded(n_tokens), seed=1).train
    batches = list(loader.batches(epoch))
    assert len(batches) == len(loader)
    assert sorted(i for batch in batches for i in batch.indices) == [*range(len(n_tokens))]
    for batch in batches:
        shape = batch.inputs["inputs"].shape
        assert shape.numel() <= tokens
        assert shape[1] % pad_to == 0
        for row, i in zip(batch.inputs["inputs"].tolist(), batch.indices, strict=True):
            assert row == [4 + i] * n_tokens[i] + [0] * (len(row) - n_tokens[i])
    assert sum(batch.n_tokens for batch in batches) == sum(n_tokens)


@given(
    n_tokens=st.lists(st.integers(1, 12), min_size=1, max_size=60),
    tokens=st.integers(13, 60),
    seed=st.none() | st.integers(0, 3),
    epoch=st.integers(0, 3),
)
def test_batches_are_those_of_a_plain_loop(
    n_tokens: list[int], tokens: int, seed: int | None, epoch: int
) -> None:
    rng, order = epoch_random(seed, epoch), [*range(len(n_tokens))]
    if rng:
        rng.shuffle(order)
    order.sort(key=n_tokens.__getitem__)
    expected = list[list[int]]()
    for i in order:
        if not expected or (len(expected[-1]) + 1) * n_tokens[i] > tokens:
            expected.append([])
        expected[-1].append(i)
    if rng:
        rng.shuffle(expected)
    corpus = encoded(n_tokens)
    buckets = Buckets(corpus, corpus.train, tokens, seed=seed)
    assert buckets.plan(epoch) == expected
    assert len(buckets) == len(expected)


def test_the_longer_side_of_a_pair_counts() -> None:
    examples = [
        Encoded(i, [4] * (10 if i % 2 else 2), [4] * (2 if i % 2 else 10)) for i in range(8)
    ]
    corpus = EncodedCorpus("translation", 2, 0, examples, layout=SourceAndTarget())
    for batch in Buckets(corpus, examples, 20).batches():
        assert batch.inputs["source"].numel() <= 20
        assert batch.inputs["target"].numel() <= 20
        assert len(batch.indices) == 2


CONFIGS = pytest.mark.parametrize(
    "config",
    [
        TokensConfig(tokens=24),
        WindowsConfig(batch_size=3, seq_len=5),
        WindowsConfig(batch_size=2, seq_len=7, documents="joined"),
        PackedConfig(batch_size=2, seq_len=9),
    ],
    ids=["tokens", "windows", "joined", "packed"],
)
DOCUMENTS = Corpus([Text("abcdefgh"[: 1 + i % 8]) for i in range(60)], [Text("abc"), Text("d")])


def content(batch: Batch) -> tuple:
    inputs = {name: tensor.tolist() for name, tensor in batch.inputs.items()}
    return inputs, batch.targets.tolist(), batch.n_tokens, batch.indices


@CONFIGS
def test_the_order_is_a_pure_function_of_seed_and_epoch(config) -> None:
    corpus, _ = chars(DOCUMENTS)
    loader, again, other = (config.build(corpus, seed=seed).train for seed in (1, 1, 2))
    torch.manual_seed(5)
    whole = [content(batch) for batch in loader.batches(3)]
    torch.manual_seed(6)
    list(again.batches(7))
    for start in (0, 1, len(whole) - 1, len(whole)):
        assert [content(batch) for batch in again.batches(3, start)] == whole[start:]
    assert [content(batch) for batch in loader.batches(4)] != whole
    assert [content(batch) for batch in other.batches(3)] != whole


@CONFIGS
def test_every_epoch_has_as_many_batches_and_targets(config) -> None:
    corpus, _ = chars(DOCUMENTS)
    loader = config.build(corpus, seed=1).train
    counts = {
        (len(b), sum(x.n_tokens for x in b)) for b in (list(loader.batches(e)) for e in range(9))
    }
    assert len(counts) == 1
    assert counts.pop()[0] == len(loader)


@CONFIGS
def test_validation_has_one_order(config) -> None:
    loader = config.build(chars(DOCUMENTS)[0], seed=1).valid
    assert [content(b) for b in loader.batches(0)] == [content(b) for b in loader.batches(1)]


@pytest.mark.parametrize("config", [WindowsConfig(), PackedConfig()])
def test_windows_and_packing_are_for_language_models(config) -> None:
    with pytest.raises(InputError, match='for language models; tagging needs kind = "tokens"'):
        config.build(encoded([3]))


def test_splits_that_are_not_there_have_no_loader() -> None:
    corpus = replace(encoded([3]), valid=())
    loaders = TokensConfig().build(corpus)
    assert loaders.valid is None
    assert loaders.test is None


def test_targets_are_counted() -> None:
    batch = Batch.of({}, torch.tensor([[1, -100], [0, 5]]), [0, 1])
    assert batch.n_tokens == 3


@given(lengths)
def test_batches_are_of_similar_length(n_tokens: list[int]) -> None:
    loader = TokensConfig(tokens=24).build(encoded(n_tokens), seed=3).train
    spans = sorted((min(w), max(w)) for w in ([n_tokens[i] for i in b] for b in loader.plan(2)))
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
