"""What a command must not import to train and to write."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runs.tiny import LANGUAGE, write_corpora

SLOW = ("torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes", "sympy")
"""torch's compiler and its symbolic shapes, which take longer to import than torch."""

WORDS = """
import json, sys
import addnorm.serve.worker
from addnorm.cli.main import status
assert status(["train", "my.toml", "--out", "my"]) == 0
assert status(["generate", "my", "--prompt", "a", "--max-new-tokens", "2"]) == 0
print(json.dumps([*sys.modules]))
"""


@pytest.mark.long
def test_commands_import_neither_the_compiler_nor_what_they_do_not_use(tmp_path: Path) -> None:
    write_corpora(tmp_path)
    (tmp_path / "my.toml").write_text(LANGUAGE)
    done = subprocess.run(
        [sys.executable, "-c", WORDS], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    imported = json.loads(done.stdout.splitlines()[-1])
    assert "torch" in imported
    assert [name for name in SLOW if name in imported] == []
