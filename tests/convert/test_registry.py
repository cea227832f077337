"""Families from outside: registered, or of an installed package, whose module must be imported."""

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from addnorm.convert import registry
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.families import FAMILIES
from addnorm.convert.families.llama import LLAMA, LLAMA_MODEL
from addnorm.convert.folder import hf_model_type, load, save
from addnorm.convert.registry import families, family_named, installed_families, register_family
from addnorm.errors import InputError

ROOT = Path(__file__).parents[2]
MODEL = replace(LLAMA_MODEL, d_model=8, n_layers=1, max_len=16)
MODULE = """
from dataclasses import replace
from addnorm.convert.families.llama import LLAMA
THEIRS = replace(LLAMA, model_type="theirs")
"""


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    before = dict(registry.REGISTERED)
    yield
    registry.REGISTERED.clear()
    registry.REGISTERED.update(before)
    installed_families.cache_clear()
    sys.modules.pop("their_families", None)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package that names a family by its entry point."""
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[addnorm.families]\ntheirs = their_families:THEIRS\n")
    (tmp_path / "their_families.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    installed_families.cache_clear()
    return tmp_path


def test_a_registered_family_opens_and_saves_folders(tmp_path: Path) -> None:
    mine = replace(LLAMA, model_type="mine")
    with pytest.raises(InputError, match="model_type = 'mine' is not supported"):
        family_named("mine", "here")
    register_family(mine)
    register_family(mine)  # the module is run again in a notebook
    spec = ModelSpec(model=MODEL, vocab_size=11)
    model = MODEL.build(11)
    assert save(tmp_path / "a", spec, model, None) == "llama", "the built-in ones come first"
    assert save(tmp_path / "b", spec, model, None, model_type="mine") == "mine"
    assert hf_model_type(tmp_path / "b") == "mine"
    assert load(tmp_path / "b").spec.model == load(tmp_path / "a").spec.model


def test_names_that_are_taken_are_refused() -> None:
    with pytest.raises(InputError, match="'llama' is a built-in family"):
        register_family(replace(LLAMA, prefix="other."))
    register_family(replace(LLAMA, model_type="mine"))
    with pytest.raises(InputError, match="'mine' is registered already, by another family"):
        register_family(replace(LLAMA, model_type="mine", prefix="other."))
    with pytest.raises(InputError, match="takes a Family, not str"):
        register_family("llama")


def test_the_nearest_name_counts_families_from_outside() -> None:
    register_family(replace(LLAMA, model_type="minerva"))
    with pytest.raises(InputError, match="Did you mean 'minerva'"):
        family_named("minerba", "here")


def test_an_installed_family_is_used_once_its_module_is_imported(package: Path) -> None:
    assert "theirs" not in families()
    with pytest.raises(InputError, match=r"imports nothing.*--import their_families"):
        family_named("theirs", "here")
    assert "their_families" not in sys.modules
    theirs = import_module("their_families").THEIRS
    assert family_named("theirs", "here") is theirs
    assert [*families()][-1] == "theirs"


def test_an_entry_point_must_name_a_family_of_its_name(package: Path) -> None:
    (package / "their_families.py").write_text(MODULE.replace('type="theirs"', 'type="others"'))
    import_module("their_families")
    with pytest.raises(InputError, match="is not a Family whose model_type is 'theirs'"):
        families()


def test_the_pages_name_every_built_in_family() -> None:
    page = (ROOT / "docs/checkpoints.md").read_text(encoding="utf-8")
    assert not {name for name in FAMILIES if f"`{name}`" not in page}


@pytest.mark.parametrize("readme", ["README.md", "README.zh-CN.md"])
def test_both_readmes_count_them(readme: str) -> None:
    text = " ".join((ROOT / readme).read_text(encoding="utf-8").split())
    counted = re.findall(r"(\d+) (?:model types|种模型类型)", text)
    assert [*map(int, counted)] == [len(FAMILIES)] * 2
