"""How many planted faults the check of a custom part finds, with a definition and without."""

from typing import Any

import pytest
from tests.checking.planted import FAULTS, Fault

from addnorm.checking.own import check_part

SEEN = {True: [*FAULTS], False: [name for name, fault in FAULTS.items() if fault.without]}
"""What is found with a definition, and without one."""


def found(fault: Fault, definition: Any) -> list[str]:
    report = check_part(
        fault.part, family=fault.family, definition=definition, compile=False, partners=3
    ).report
    return [result.failed for result in report.failed if result.failed]


def test_there_are_faults_of_every_family() -> None:
    assert len(FAULTS) >= 26
    families = {fault.family for fault in FAULTS.values()}
    assert families >= {"norm", "score", "pattern", "feedforward", "core", "output", "mixer"}
    assert families >= {"placement", "position"}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_definition_shows_every_fault(name: str) -> None:
    assert found(FAULTS[name], FAULTS[name].definition)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_without_a_definition_only_other_functions_pass(name: str) -> None:
    """What keeps every property is another right part."""
    assert bool(found(FAULTS[name], None)) == FAULTS[name].without
