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


NO_TOML = """
import sys
from addnorm.cli.main import status
for words in (["train"], ["ablate"], ["info"], ["plan", "--cards", "8", "--card", "H100"]):
    assert status([words[0], "my.toml", *words[1:]]) == 2
assert "torch" not in sys.modules
"""


def test_a_recipe_that_is_not_toml_is_refused_without_torch(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text("[data]\nkind = text\n")
    done = subprocess.run(
        [sys.executable, "-c", NO_TOML], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("my.toml:2: not valid TOML: not a value: write text in quotes") == 4
