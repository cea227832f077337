"""The check compares numbers: its tests leave the types to the tests of every part."""

import pytest


@pytest.fixture(autouse=True)
def _without_checks_of_types(types_unchecked: None) -> None:
    """Two thirds of the time would be theirs."""
