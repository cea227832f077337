"""Tables of definitions: look-up by type, and errors for missing entries."""

from dataclasses import dataclass

import pytest

from addnorm.checking.definition import DEFINITIONS, MissingDefinition
from addnorm.checking.definition.definitions import Definitions


@dataclass(frozen=True)
class Known:
    """A part with a definition."""


@dataclass(frozen=True)
class Own(Known):
    """A part of someone's own."""


def test_a_part_without_a_definition_is_named() -> None:
    table = Definitions[int]("norm", "norms.py", {Known: 1})
    assert table.of(Known()) == 1
    assert Known in table
    with pytest.raises(MissingDefinition, match=r"norm '.*Own' has no definition: .*/norms.py"):
        table.of(Own())  # a subclass is another part


def test_a_custom_definition_is_added_temporarily() -> None:
    table = Definitions[int]("norm", "norms.py", {Known: 1}, wrap=lambda own: own + 1)
    with table.adding(Own, 2):
        assert table.of(Own()) == 3
    assert Own not in table
    with pytest.raises(ZeroDivisionError), table.adding(Own, 2):
        _ = 1 / 0
    assert Own not in table


@pytest.mark.parametrize("family", DEFINITIONS)
def test_no_table_defines_what_it_does_not_know(family: str) -> None:
    with pytest.raises(MissingDefinition, match=family):
        DEFINITIONS[family].of(Own())
