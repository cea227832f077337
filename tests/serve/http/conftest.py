"""One server over the fake engine for all tests of this folder that do not end it."""

from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest
from tests.data.chat_templates import HERMES, written_call
from tests.serve.servers import serving

SAID = "Let me see.\n"
CALLED = written_call("hermes", "weather", {"city": "Bern"})

RUNS = (
    "fake",
    "slow?delay=0.02",
    "plain?no_template=1",
    "classes?task=classification&endpoint=/classify",
    "translator?task=translation&endpoint=/translate&writes=1&text=ein Hund",
    f"caller?max_len=4096&template={quote(HERMES)}&text={quote(SAID + CALLED * 2)}",
    "denoiser?task=denoising&endpoint=/translate",
    "tagger?task=tagging&endpoint=/tag",
    "rows?task=answering&endpoint=/predict",
)


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    with serving(*RUNS) as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=30) as opened:
        yield opened
