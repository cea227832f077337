"""Freed pages are kept: repeated allocations cause no new page faults."""

import gc
import subprocess
import sys

import pytest

from addnorm.memory import rare_collections

FAULTS = """
import resource
import torch
from addnorm.memory import keep_freed_pages

{keep}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        tensors = [torch.ones(2**20 * n) for n in (1, 9, 17)]  # 4, 36 and 68 MB
        del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries are left alone")
def test_pages_are_kept() -> None:
    def faults(keep: str) -> int:
        script = FAULTS.format(keep=keep)
        return int(
            subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
        )

    assert faults("keep_freed_pages()") < faults("") / 10


def test_collections_are_rare_within_and_as_before_after() -> None:
    before = gc.get_threshold()
    with rare_collections():
        assert gc.get_threshold() == (200_000, *before[1:])
    assert gc.get_threshold() == before
