"""Strings of clips and images: what is in them, from which files, and the same from one seed."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from addnorm.data import Captioned, Clip, Corpus, Example, Image, Report, Transcribed
from addnorm.data.readers.rows import Row
from addnorm.data.readers.strings import StringsConfig, one_after_another
from addnorm.errors import InputError


def clips(n: int) -> list[Row]:
    """Clips whose only feature is the number of the clip, of two speakers in turn."""
    names = [f"{i}_{'ab'[i % 2]}.wav" for i in range(n)]
    return [
        Row(name, Clip(torch.full((2, 3), i / 100), str(i)), Path(name))
        for i, name in enumerate(names)
    ]


def made(split: str = "test", **options: Any) -> list[Transcribed]:
    rows = StringsConfig(**options).rows(split, clips(20))
    return [row.content for row in rows if isinstance(row.content, Transcribed)]


@pytest.mark.parametrize(("split", "times"), [("train", 3), ("valid", 1), ("test", 1)])
def test_every_file_is_in_a_string(split: str, times: int) -> None:
    found = made(split, times=3, shortest=1, longest=4)
    words = [word for one in found for word in one.text.split()]
    assert sorted(words) == sorted(times * [str(i) for i in range(20)])
    assert {len(one.text.split()) for one in found} <= {1, 2, 3, 4}


def test_the_text_has_the_classes_in_the_order_of_the_clips() -> None:
    for one in made(pause=(2, 4)):
        levels = one.frames[0].tolist()
        heard = [round(100 * level) for level in levels if level >= 0]
        assert heard[::3] == [int(word) for word in one.text.split()]
        gaps = [
            len(gap) for gap in re.findall("x+", "".join("x" if x < 0 else "." for x in levels))
        ]
        assert all(2 <= gap <= 4 for gap in gaps)
        assert len(gaps) == len(one.text.split()) - 1


def test_the_last_string_is_filled_up() -> None:
    assert {len(one.text.split()) for one in made(shortest=3, longest=3)} == {3}
    assert sum(len(one.text.split()) for one in made(shortest=3, longest=3)) == 21


def test_a_group_shares_no_string_with_another() -> None:
    for one in made(group_pattern="_([ab])$"):
        assert len({int(word) % 2 for word in one.text.split()}) == 1
    with pytest.raises(InputError, match=r"0_a\.wav: .* finds no group"):
        made(group_pattern="_([xy])$")


def test_one_seed_one_result() -> None:
    texts = [one.text for one in made()]
    assert texts == [one.text for one in made()]
    assert texts != [one.text for one in made(seed=1)]
    assert texts != [one.text for one in made("valid")]


def test_what_was_left_out_stays_so() -> None:
    rows = list(StringsConfig().rows("test", [*clips(4), Row("bad.wav", "is damaged")]))
    assert [row.content for row in rows if row.where == "bad.wav"] == ["is damaged"]
    places = [place for row in rows for place in row.where.split(" + ")]
    assert {one.where for one in clips(4)} <= set(places)


def test_images_stand_side_by_side_in_one_size() -> None:
    images: list[Example] = [
        Image(torch.full((1, 2, 3), i + 1, dtype=torch.uint8), str(i)) for i in range(9)
    ]
    reports = {"train": Report(9, 9)}
    corpus = StringsConfig(longest=4, separator="").corpus(Corpus(images, reports=reports))
    assert corpus.task == "translation"
    assert corpus.medium == "images"
    assert corpus.reports == reports
    for one in corpus.train:
        assert isinstance(one, Captioned)
        assert one.pixels.shape == (1, 2, 12)
        shown = one.pixels[0, 0, ::3].tolist()
        assert shown == [int(c) + 1 for c in one.text] + [0] * (4 - len(one.text))
    with pytest.raises(InputError, match="have no names"):
        StringsConfig(group_pattern="(a)").corpus(Corpus(images))


def test_features_end_80_db_below_the_loudest() -> None:
    loud, quiet = torch.tensor([[1.0]]), torch.tensor([[-1.4]])
    assert one_after_another([loud, quiet], [0, 1]).tolist() == [[1.0, -1.0, -1.0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shortest": 4, "longest": 3}, "longest = 3 is less than shortest = 4"),
        ({"pause": (3, 1)}, "ends before it begins"),
        ({"group_pattern": "("}, "not a regular expression"),
        ({"group_pattern": "a"}, "has 0 groups"),
    ],
)
def test_wrong_fields_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        StringsConfig(**options)
