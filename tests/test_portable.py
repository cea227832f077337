"""Without oneDNN and glibc, as on a Mac or another processor, everything works by torch's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ELSEWHERE = """
import pkgutil, types
from importlib import import_module

import torch
torch.backends.mkldnn.is_available = lambda: False
torch.ops.mkldnn = types.SimpleNamespace()
import ctypes
ctypes.CDLL = lambda *_: types.SimpleNamespace()  # another C library

import addnorm
for module in pkgutil.walk_packages(addnorm.__path__, "addnorm."):
    if not module.name.endswith("__main__") and ".bench" not in module.name:
        import_module(module.name)
from addnorm.generate import graphs
from addnorm.machine import keep_freed_pages
from addnorm.models import DecoderConfig
from addnorm.tuning.calibration import calibrate, this_machine
from addnorm.nn.choices import KernelChoices, use_choices

keep_freed_pages()
assert calibrate(this_machine()).choices.product == "torch"
model = DecoderConfig(d_model=16, n_layers=1).build(20)
tokens = torch.randint(0, 20, (2, 8))
found = []
for name in ("torch", "onednn"):  # a run that began where there is oneDNN goes on
    bias = "fused" if name == "onednn" else "torch"
    with use_choices(KernelChoices(product=name, bias=bias)):
        for enabled in (False, True):
            with torch.autocast("cpu", enabled=enabled):
                model.eval()(tokens).float().logsumexp(-1).sum().backward()
        found.append(model.eval()(tokens))
assert torch.equal(*found)
x, w, b = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
torch.testing.assert_close(graphs.product(x, w, b), torch.nn.functional.linear(x, w, b))
torch.testing.assert_close(graphs.product(x, w), torch.nn.functional.linear(x, w))
print("done")
"""


@pytest.mark.long
def test_without_onednn_and_glibc(tmp_path: Path) -> None:
    script = tmp_path / "elsewhere.py"
    script.write_text(ELSEWHERE)
    environment = {k: v for k, v in os.environ.items() if k != "ADDNORM_KERNELS"}
    environment |= {"ADDNORM_CACHE": str(tmp_path / "cache"), "ADDNORM_OPERATORS": "off"}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith("done\n"), done.stderr
