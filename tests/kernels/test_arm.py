"""Every operator compiles for ARM; what they compute there, `benchmarks/arm.py` tests."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from tests.kernels.arm import TOOLS

from addnorm.kernels.build import FLAGS, HERE, LEVELS

COMPILER = TOOLS[0]


@pytest.mark.long
@pytest.mark.skipif(not shutil.which(COMPILER), reason=f"needs {COMPILER}")
@pytest.mark.parametrize("source", sorted(HERE.glob("*.cpp")), ids=lambda source: source.stem)
def test_an_operator_compiles_without_a_warning(source: Path, tmp_path: Path) -> None:
    headers = Path(torch.__file__).with_name("include")
    command = [COMPILER, *FLAGS, *LEVELS["neon"].flags, "-Werror", f"-isystem{headers}"]
    command += [str(source), "-o", str(tmp_path / "operator.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
