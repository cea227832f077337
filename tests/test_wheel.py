"""The wheel in a fresh environment without extras: it trains, uses and describes a model there."""

import os
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.test_house import _blocks

import addnorm

ROOT = Path(__file__).parents[1]


def test_the_citation_has_the_version_of_the_package() -> None:
    citation, readme = ((ROOT / name).read_text("utf-8") for name in ("CITATION.cff", "README.md"))
    assert f"version: {addnorm.__version__}\n" in citation
    assert f"version = {{{addnorm.__version__}}}" in readme


def required(name: str, extra: str = "") -> dict[str, Distribution]:
    """What a distribution needs, and what that needs, by name; without extras."""
    here = distribution(name)
    needs = {here.metadata["Name"]: here}
    for line in here.requires or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": extra}):
            for extra_of in requirement.extras or {""}:
                if requirement.name not in needs:
                    needs |= required(requirement.name, extra_of)
    return needs


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_wheel_works_in_a_fresh_environment(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path]
    subprocess.run([*build, ROOT], check=True, stdout=subprocess.DEVNULL)
    [wheel] = tmp_path.glob("addnorm-*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    bin_folder, site = tmp_path / "env" / "bin", tmp_path / "site"
    install = ["install", "--quiet", "--no-index", "--no-deps", wheel]
    subprocess.run([bin_folder / "python", "-m", "pip", *install], check=True)
    site.mkdir()  # the core dependencies alone, from the environment of the tests
    for name, dependency in required("addnorm").items():
        for part in {file.parts[0] for file in dependency.files or () if file.parts[0] != ".."}:
            if name != "addnorm" and not (site / part).exists() and part != "__pycache__":
                (site / part).symlink_to(Path(str(dependency.locate_file(part))))
    environment = {**os.environ, "PYTHONPATH": str(site), "HOME": str(tmp_path)}

    def addnorm_prints(*words: str, status: int = 0) -> str:
        command = [bin_folder / "addnorm", *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    [recipe] = _blocks("toml")
    (tmp_path / "my.toml").write_text(recipe.replace("steps = 1000", "steps = 4"))
    (tmp_path / "my.txt").write_text("To be, or not to be, that is the question.\n" * 200)
    assert addnorm_prints("--version").strip() == addnorm.__version__
    assert "addnorm demo" in addnorm_prints("--help")
    assert "not measured" in addnorm_prints("lab", "list")
    assert "rotary" in addnorm_prints("parts")
    assert "parameters" in addnorm_prints("train", "my.toml")
    assert addnorm_prints("generate", "runs/my", "--prompt", "To be", "--max-new-tokens", "4")
    assert "decoder" in addnorm_prints("info", "runs/my")
    assert "pip install 'addnorm[plots]'" in addnorm_prints("plot", "runs/my", status=2)
    assert "pip install 'addnorm[serve]'" in addnorm_prints("serve", "runs/my", status=2)
