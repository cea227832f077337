"""Families are recognised by what a part builds, or named explicitly."""

import sys
from pathlib import Path

import pytest
from tests.checking import my_parts

from addnorm.checking.families import families, family_name, part_examples
from addnorm.errors import InputError
from addnorm.nn.attention import WindowPatternConfig
from addnorm.runs.recipes.custom_parts import named_object


@pytest.mark.parametrize(
    ("part", "family"),
    [
        (my_parts.DyTConfig, "norm"),
        (my_parts.SineConfig, "feedforward"),
        (my_parts.CosineConfig, "score"),
        (my_parts.NearConfig, "pattern"),
        (my_parts.BrierConfig, "loss"),
        (my_parts.HalvingConfig, "schedule"),
        (my_parts.MomentumConfig, "optimizer"),
        (my_parts.LettersConfig, "tokenizer"),
    ],
)
def test_a_family_is_found(part: type, family: str) -> None:
    assert family_name(part) == family
    assert family_name(part, family) == family


def test_ours_are_found_too() -> None:
    from addnorm.checking.axes import PARTS
    from addnorm.parts import members

    for name, axis in PARTS.items():
        assert {family_name(member) for member in members(axis.union)} == {name}


def test_another_object_is_rejected_as_a_part_in_one_message() -> None:
    class Nothing:
        """No part."""

    with pytest.raises(InputError, match="fits no family: name its family with `family`"):
        family_name(Nothing)
    with pytest.raises(InputError, match="Did you mean 'norm'"):
        family_name(my_parts.DyTConfig, "nrom")
    with pytest.raises(InputError, match="does not fit as schedule: it has no method factor"):
        family_name(my_parts.DyTConfig, "schedule")
    assert {"norm", "mixer", "loss", "data"} < {*families()}


def test_a_person_who_names_a_part_has_it_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parts_of_mine.py").write_text("class Thing:\n    size = 3\n")
    monkeypatch.chdir(tmp_path)
    try:
        assert named_object("parts_of_mine:Thing.size", "part") == 3
        with pytest.raises(InputError, match=r"`part = .* has no Thign. Did you mean 'Thing'"):
            named_object("parts_of_mine:Thign", "part")
    finally:
        sys.modules.pop("parts_of_mine", None)
    with pytest.raises(InputError, match="give the module and the name"):
        named_object("Thing", "part")
    with pytest.raises(InputError, match="no such module"):
        named_object("no_module_at_all:Thing", "definition")


def test_examples() -> None:
    assert [*part_examples(my_parts.DyTConfig).values()] == [my_parts.DyTConfig()]
    assert len(part_examples(WindowPatternConfig)) == 2
    with pytest.raises(InputError, match="NeedsSizeConfig cannot be built without arguments"):
        part_examples(my_parts.NeedsSizeConfig)
