"""Near copies: signatures beside exact similarities and the library's own; what is found."""

import random
import sys
from functools import cache
from math import sqrt

import numpy as np
import pytest
from datasketch import MinHash
from hypothesis import given
from hypothesis import strategies as st

from addnorm.data.shards import near
from addnorm.data.shards.duplicates import Duplicates
from addnorm.data.shards.near import Table, bands, shingles, signer_of
from addnorm.data.shards.options import ShardOptions
from addnorm.errors import InputError

NEAR = ShardOptions(dedup="near")
WORDS = [f"w{n}" for n in range(500)]


@cache
def exact_shingles(text: str) -> set[str]:
    """The shingles of a text."""
    return shingles(text, NEAR.shingle_words)


def similarity(a: str, b: str) -> float:
    """The exact share of equal shingles."""
    ours, theirs = exact_shingles(a), exact_shingles(b)
    return len(ours & theirs) / len(ours | theirs)


def changed(text: str, n: int, rng: random.Random) -> str:
    """The text with n words replaced."""
    words = text.split()
    for place in rng.sample(range(len(words)), n):
        words[place] = "other"
    return " ".join(words)


def test_shingles_are_runs_of_words() -> None:
    assert shingles("The cat, sat.", 2) == {"the cat", "cat sat"}
    assert shingles("One", 2) == {"one"} == shingles(" ONE! ", 3)
    assert shingles(" ?! ", 2) == {"?!"}
    assert shingles("我们 abc了", 2) == {"我 们", "们 abc", "abc 了"}


def test_signatures_are_those_of_the_library_and_estimate_the_exact_similarity() -> None:
    rng = random.Random(0)
    sign = signer_of(NEAR)
    for n in (0, 1, 3, 8, 20):
        a = " ".join(rng.choices(WORDS, k=300))
        b = changed(a, n, rng)
        ours, theirs = sign([a, b])
        share = np.count_nonzero(ours == theirs) / NEAR.permutations
        of_library = [
            MinHash(seed=1, hashvalues=values, scheme="affine32") for values in (ours, theirs)
        ]
        assert of_library[0].jaccard(of_library[1]) == share
        exact = similarity(a, b)
        assert abs(share - exact) <= 4 * sqrt(exact * (1 - exact) / NEAR.permutations)


def test_a_long_text_is_signed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(random.Random(0).choices(WORDS, k=300))
    whole = signer_of(NEAR)([text])[0]
    monkeypatch.setattr(near, "AT_ONCE", 7)
    assert (signer_of(NEAR)([text])[0] == whole).all()


@pytest.mark.parametrize("threshold", [0.5, 0.8, 1.0])
def test_planted_copies_are_found_and_others_are_kept(threshold: float) -> None:
    options = ShardOptions(dedup="near", near_threshold=threshold)
    rng = random.Random(1)
    texts: list[str] = []
    for _ in range(30):
        text = " ".join(rng.choices(WORDS, k=200))
        texts += [text, changed(text, rng.randrange(30), rng), text.upper()]
    duplicates, kept = Duplicates(options), list[str]()
    missed = 0
    for i, (text, signature) in enumerate(zip(texts, signer_of(options)(texts), strict=True)):
        most = max((similarity(text, other) for other in kept), default=0.0)
        outcome = duplicates.outcome(str(i).encode(), signature)
        margin = 4 * sqrt(most * (1 - most) / options.permutations)
        if outcome == "near":
            assert most >= threshold - margin
        else:
            missed += most >= min(1.0, threshold + margin)
            kept.append(text)
    assert missed == 0
    assert len(kept) >= 30


@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.5, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("permutations", [16, 128, 200])
def test_few_texts_as_alike_as_the_threshold_share_no_band(
    threshold: float, permutations: int
) -> None:
    options = ShardOptions(dedup="near", near_threshold=threshold, permutations=permutations)
    n, width = bands(options)
    assert n * width <= permutations
    assert width == 1 or (1 - threshold**width) ** n <= near.MISSED


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 9).map(lambda n: n << 20), max_size=99))
def test_a_table_has_the_numbers_of_each_hash(hashes: list[int]) -> None:
    table = Table(size=2)
    for number, key in enumerate(hashes):
        table.add(key, number)
    for key in {*hashes, 5}:
        assert sorted(table.values(key)) == [n for n, other in enumerate(hashes) if other == key]


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketch", None)
    with pytest.raises(InputError, match=r"dedup = 'near' needs .* pip install 'addnorm\[dedup\]'"):
        signer_of(NEAR)
