"""One server over the fake engine for all tests of this folder that do not end it."""

from collections.abc import Iterator

import httpx
import pytest
from tests.serve.servers import serving

RUNS = (
    "fake",
    "slow?delay=0.02",
    "plain?no_template=1",
    "classes?task=classification&endpoint=/classify",
    "translator?task=translation&endpoint=/translate&writes=1&text=ein Hund",
    "denoiser?task=denoising&endpoint=/translate",
)


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    with serving(*RUNS) as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=30) as opened:
        yield opened
