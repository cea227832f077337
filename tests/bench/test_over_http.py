"""Serving over HTTP is measured with a server of its own."""

from pathlib import Path

import pytest
from tests.bench.test_serving import SIZES

from addnorm.bench.over_http import server, start, streamed


@pytest.mark.slow
def test_streams_and_starts_are_measured(gpt2_folder: Path) -> None:
    done = streamed(gpt2_folder, sizes=SIZES)()
    assert done.units == SIZES.tokens
    cold = start(gpt2_folder, compiled=False)()
    assert 0 < cold.details["warm s"] < cold.seconds


@pytest.mark.slow
def test_a_server_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="has not started"), server(tmp_path):
        pass
