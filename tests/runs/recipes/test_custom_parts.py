"""Custom parts in recipes and runs: explicit imports only; reading imports nothing."""

import json
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from tests.runs.own_parts import forgotten, own_recipe, write_parts
from tests.runs.tiny import quiet

from addnorm import parts
from addnorm.errors import InputError
from addnorm.runs.description import describe
from addnorm.runs.files.folder import read_settings
from addnorm.runs.recipes.custom_parts import check_imports, import_parts, imports_of
from addnorm.runs.recipes.recipe import Recipe, read_recipe
from addnorm.runs.run import Run
from addnorm.runs.train.train_run import train_run

NORM = '{ kind = "own_norms:ScaledConfig", size = 0.5 }'
IMPORT = 'import = ["own_norms.py"]'


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    with forgotten("own_norms", "canary"):
        yield


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The run of a model with a norm of someone's own, whose module is no longer imported."""
    write_parts(tmp_path)
    return trained(own_recipe(tmp_path, "model.norm", NORM, imports=IMPORT))


def trained(file: Path) -> Path:
    recipe = read_recipe(file, import_parts=True)
    train_run(recipe, file.parent / "run", resume=False, console=quiet())
    sys.modules.pop("own_norms", None)
    return file.parent / "run"


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        Run.open(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_run_says_what_its_parts_need(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = json.loads((run / "config.json").read_text())
    file = str(run.parent / "own_norms.py")
    assert facts["imports"] == {"own_norms": file}
    assert facts["recipe"]["model"]["norm"] == {
        "kind": "own_norms:ScaledConfig",
        "size": 0.5,
        "names": [],
    }
    said = refusal(run)
    assert f"on the command line add `--import {file}`" in said
    assert "`import own_norms` before" in said
    import_parts([file])
    opened = Run.open(run)
    assert opened.recipe.model.norm.size == 0.5
    assert type(opened.recipe.model.norm).__module__ == "own_norms"
    monkeypatch.chdir(run.parent)
    assert imports_of(opened.recipe) == {"own_norms": "own_norms.py"}


def test_a_run_resumes_with_the_import_of_its_recipe(run: Path) -> None:
    file = run.parent / "language.toml"
    with pytest.raises(InputError, match="own_norms"):
        read_settings(run)
    recipe = read_recipe(file, {"train.steps": "6"}, import_parts=True)
    done = train_run(recipe, run, resume=True, console=quiet())
    assert done.recipe.train.steps == 6


@pytest.mark.parametrize("where", ["run", "here", "package"])
def test_reading_a_recipe_imports_nothing(
    where: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module of the right name beside the run, in the current folder, and on the path."""
    places = {"run": run, "here": tmp_path / "here", "package": tmp_path / "packages"}
    places[where].mkdir(exist_ok=True)
    sign = tmp_path / "imported"
    for name in ("own_norms", "canary"):
        text = f"from pathlib import Path\nPath({str(sign)!r}).touch()\n"
        (places[where] / f"{name}.py").write_text(text)
    monkeypatch.chdir(places[where])
    monkeypatch.syspath_prepend(places[where])
    facts = json.loads((run / "config.json").read_text())
    for kind in ("own_norms:ScaledConfig", "canary:Config", "os:system", "subprocess:Popen"):
        facts["recipe"]["model"]["norm"]["kind"] = kind
        (run / "config.json").write_text(json.dumps(facts))
        refusal(run)
        start = own_recipe(tmp_path, "train.start", f'"{run}"')
        start.write_text(start.read_text().replace('[tokenizer]\nkind = "char"\n', ""))
        with pytest.raises(InputError, match=r"own_norms|canary|system|Popen"):
            read_recipe(start, import_parts=True)
    facts.pop("imports")
    facts["recipe"]["model"]["norm"] = {"kind": "canary:Config"}
    (run / "config.json").write_text(json.dumps(facts))
    assert "canary" in refusal(run)
    assert not sign.exists()
    assert not {"own_norms", "canary"} & set(sys.modules)


def test_an_entry_point_is_not_imported_for_a_run(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(tmp_path / "own_norms.py", tmp_path / "canary.py")
    monkeypatch.syspath_prepend(tmp_path)
    entry = EntryPoint("singing", "canary:ScaledConfig", parts.ENTRY_POINTS)
    monkeypatch.setattr(parts, "installed_parts", lambda: {"singing": entry})
    facts = json.loads((run / "config.json").read_text())
    facts.pop("imports")
    facts["recipe"]["model"]["norm"] = {"kind": "singing"}
    (run / "config.json").write_text(json.dumps(facts))
    assert "--import canary" in refusal(run)
    start = own_recipe(tmp_path, "train.start", f'"{run}"')
    start.write_text(start.read_text().replace('[tokenizer]\nkind = "char"\n', ""))
    with pytest.raises(InputError, match="--import canary"):
        read_recipe(start, import_parts=True)
    assert "canary" not in sys.modules
    # A person who names it in a recipe of their own has it imported, and it is found again.
    named = own_recipe(tmp_path, "model.norm", '"singing"')
    with pytest.raises(InputError, match="--import canary"):
        read_recipe(named)
    assert "canary" not in sys.modules
    recipe = read_recipe(named, import_parts=True)
    assert parts.kind_of(recipe.model.norm) == "singing"
    assert imports_of(recipe) == {"canary": str(tmp_path / "canary.py")}


def test_a_lazy_package_stays_lazy(run: Path) -> None:
    lazy: Any = type(sys)("canary")
    lazy.__getattr__ = lambda name: pytest.fail(f"{name} was asked for")
    sys.modules["canary"] = lazy
    facts = json.loads((run / "config.json").read_text())
    facts.pop("imports")
    facts["recipe"]["model"]["norm"] = {"kind": "canary:Config"}
    (run / "config.json").write_text(json.dumps(facts))
    assert "has no Config" in refusal(run)


def test_a_recipe_that_is_only_read_imports_nothing(run: Path) -> None:
    file = run.parent / "language.toml"
    with pytest.raises(InputError, match=r"--import own_norms\.py"):
        describe(file)
    assert "own_norms" not in sys.modules


@pytest.mark.parametrize("folder", [".", "checkpoints", "checkpoints/step-2"])
def test_a_recipe_in_the_folder_of_a_model_imports_nothing(run: Path, folder: str) -> None:
    (run / folder).mkdir(parents=True, exist_ok=True)
    inside = run / folder / "recipe.toml"
    inside.write_text((run.parent / "language.toml").read_text())
    write_parts(run / folder)
    with pytest.raises(InputError, match="in the folder of a model"):
        read_recipe(inside, import_parts=True)
    assert "own_norms" not in sys.modules


WRONG = {
    "no such file": (NORM, 'import = ["own_norm.py"]', "Did you mean 'own_norms.py'?"),
    "no such module": (NORM, 'import = ["own_nothing"]', "no such module"),
    "no list": (NORM, 'import = "own_norms.py"', "import is a list"),
    "the name of another module": (NORM, 'import = ["this.py"]', "another module"),
    "the name of an imported module": (NORM, 'import = ["json.py"]', "is imported already"),
    "not imported": (NORM, "", "--import own_norms.py"),
    "no such class": (
        '{ kind = "own_norms:Scaled_Config" }',
        IMPORT,
        "Did you mean 'ScaledConfig'?",
    ),
    "no such field": (
        '{ kind = "own_norms:ScaledConfig", sise = 1 }',
        IMPORT,
        "Did you mean 'size'?",
    ),
    "a wrong value": (
        '{ kind = "own_norms:ScaledConfig", size = "x" }',
        IMPORT,
        "size: must be",
    ),
    "not frozen": ('"own_norms:NotFrozen"', IMPORT, "frozen"),
    "another signature": ('"own_norms:TakesTwo"', IMPORT, "missing a required argument: 'more'"),
    "another family": ('"own_norms:HeadWithoutTask"', IMPORT, "missing a required argument"),
    "no configuration": ('"own_norms:Scaled"', IMPORT, "frozen dataclass"),
    "a wrong word": ('"rmsnrom"', IMPORT, "Did you mean 'rmsnorm'?"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_message_with_its_line(case: str, tmp_path: Path) -> None:
    value, imports, expected = WRONG[case]
    for name in ("own_norms", "this", "json"):
        write_parts(tmp_path, name)
    file = own_recipe(tmp_path, "model.norm", value, imports=imports)
    line = (
        1 if case in list(WRONG)[:5] else file.read_text().split("\n").index(f"norm = {value}") + 1
    )
    with pytest.raises(InputError) as caught:
        read_recipe(file, import_parts=True)
    said = str(caught.value)
    assert said.startswith(f"{file}:{line}: ")
    assert expected in said
    assert "\n" not in said


def test_an_error_in_an_imported_module_keeps_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "own_norms.py").write_text("def (:\n")
    with pytest.raises(SyntaxError):
        read_recipe(own_recipe(tmp_path, "model.norm", NORM, imports=IMPORT), import_parts=True)
    assert "own_norms" not in sys.modules


def test_a_deeply_nested_file_is_accepted(tmp_path: Path) -> None:
    tree: dict[str, Any] = {}
    for _ in range(100_000):
        tree = {"a": tree}
    with pytest.raises(InputError, match="nested too deep"):
        check_imports(tmp_path, tree)
    while tree:  # taken apart by hand: Python itself would take it apart level by level
        tree = tree["a"]


def test_our_own_recipe_needs_no_import(tmp_path: Path) -> None:
    recipe: Recipe = read_recipe(own_recipe(tmp_path, "model.norm", '"rmsnorm"'))
    assert imports_of(recipe) == {}
