"""Runs tests on an emulated ARM processor, with Python and torch for ARM.

    python benchmarks/arm.py FOLDER [ARGUMENT OF PYTEST ...]

By default those are the fast tests of operators: a quarter of an hour. This needs Debian 12 with
the packages g++-aarch64-linux-gnu, qemu-user and debootstrap, and root. The first call fills the
folder with some gigabytes: Debian's Python and wheels for ARM. ARM_PROCESSOR names another
processor of qemu, such as `max`, which has instructions for bfloat16.
"""

import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parents[1]
TESTS = ["tests/kernels", "tests/nn/attention/test_cached_attention.py", "-m", "not slow"]
FOR_TESTS = ["beartype", "hypothesis", "numpy", "pytest", "pytest-timeout"]
NO_WHEEL = "num2words"
"""What needs a package without a wheel, and these tests do not."""

DEBIAN = "bookworm"
PYTHON = "3.11"

CPUINFO = "Features : fp asimd asimddp\nCPU implementer : 0x41\nCPU part : 0xd0c\n"
"""What Linux says of a Neoverse N1; without it, programs read what it says of this machine."""


def debian(root: Path) -> None:
    """Unpack Python for ARM, and the libraries that it needs."""
    command = ["debootstrap", "--foreign", "--arch=arm64", "--variant=minbase", "--include=python3"]
    subprocess.run([*command, DEBIAN, str(root)], check=True)
    for package in (root / "var/cache/apt/archives").glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/cpuinfo").write_text(CPUINFO)


def wheels(site: Path) -> None:
    """Install what the project and its tests need."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    needed = [each for each in project["dependencies"] if not each.startswith(NO_WHEEL)]
    needed += [f"torch=={version('torch').partition('+')[0]}", *FOR_TESTS]
    platforms = [f"--platform=manylinux_2_{n}_aarch64" for n in range(17, 37)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", f"--target={site}"]
    command += ["--only-binary=:all:", f"--python-version={PYTHON}", *platforms]
    command += ["--platform=manylinux2014_aarch64", *needed]
    subprocess.run(command, check=True)


def program(folder: Path) -> Path:
    """Write a program that is Python for ARM, also for processes that tests start."""
    root, file = folder / "root", folder / "python"
    python = f"{root}/usr/bin/python{PYTHON}"
    file.write_text(
        "#!/bin/sh\n"
        f"exec qemu-aarch64 -L {root} -cpu ${{ARM_PROCESSOR:-neoverse-n1}} -0 {file} {python} "
        '"$@"\n'
    )
    file.chmod(0o755)
    return file


def run(folder: Path, arguments: Sequence[str]) -> int:
    """Run tests; their operators are compiled by this machine's own compiler for ARM."""
    if not (root := folder / "root").exists():
        debian(root)
    if not (site := folder / "site").exists():
        wheels(site)
    environment = os.environ | {
        "ADDNORM_CACHE": str(folder / "cache"),
        "CI": "true",  # hypothesis waits for slow tests
        "CXX": "aarch64-linux-gnu-g++",
        "JAXTYPING_DISABLE": "1",
        "PYTHONHOME": f"{root}/usr",
        "PYTHONPATH": f"{site}:{HERE / 'src'}",
    }
    command = [program(folder), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-o", "timeout=3000", *arguments]
    return subprocess.run(command, env=environment, cwd=HERE, check=False).returncode


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]).resolve(), sys.argv[2:] or TESTS))
