"""`make mutants`: a reproducible sample, and mutants detected as expected."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("mutmut", reason="needs the development extra")

CODE = '''"""A file."""

Alias = list[int]
SIZE = 3


class Part:
    kind: str = "part"

    def forward(self, x: int | None = None) -> int:
        """One more."""
        if x is None:
            raise ValueError("x is " + "missing")
        return x + 1


def last(xs: list[int]) -> int:
    return xs[-1] if xs else 0
'''


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / "mutants.py"
    spec = spec_from_file_location("mutants_script", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def fair(script: ModuleType, code: str) -> dict:
    return {m.id: m for m in script.mutants("part.py", code) if m.is_fair()}


def test_types_aliases_and_messages_are_left_alone(script: ModuleType) -> None:
    found = {(m.before, m.after) for m in fair(script, CODE).values()}
    assert {("x + 1", "x - 1"), ("1", "2"), ("is", "is not"), ("SIZE = 3", "SIZE = None")} <= found
    assert not any("Alias" in before or "missing" in before for before, _ in found)
    assert all(m.code != CODE for m in fair(script, CODE).values())


def test_an_edit_elsewhere_changes_no_name(script: ModuleType) -> None:
    before = fair(script, CODE)
    after = fair(script, CODE.replace("SIZE = 3", "# new\n\n\nSIZE = 4\nMORE = SIZE * 2"))
    ours = {name: m for name, m in before.items() if m.place}
    assert ours.keys() <= after.keys()
    assert all(after[name].line == m.line + 4 for name, m in ours.items())
    assert all(after[name].before == m.before for name, m in ours.items())


@pytest.mark.slow
def test_the_sample_of_a_tree_is_the_first_of_a_fixed_order(script: ModuleType) -> None:
    few, more = script.sample(5), script.sample(9)
    assert [m.id for m in more[:5]] == [m.id for m in few]


def test_a_file_is_as_it_was_afterwards(script: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "part.py"
    file.write_text(CODE)

    def stopped() -> None:
        with script.Replaced(file, "changed = 1\n"):
            assert file.read_text() == "changed = 1\n"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert file.read_text() == CODE


def test_the_output_of_pytest_is_read(script: ModuleType, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("...\nFAILED tests/test_a.py::test_b[1] - assert 1 == 2\n1 failed\n")
    assert script._verdict(1, log) == ("killed", "tests/test_a.py::test_b[1]")
    assert script._verdict(0, log) == ("survived", "")
