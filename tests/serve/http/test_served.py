"""Errors of an engine as answers: their status, and the field that they are about."""

import pytest

from addnorm.serve.http.served import of_engine
from addnorm.serve.messages import Error, ErrorKind


@pytest.mark.parametrize(
    ("message", "written"),
    [
        (
            "`n_best = 5` needs as many `beams`, not 4",
            "`n_best = 5` needs as many `num_beams`, not 4",
        ),
        ("leave out `temperature`, or `beams`", "leave out `temperature`, or `num_beams`"),
        ("`max_new_tokens = 0`: at least 1", "`max_tokens = 0`: at least 1"),
        ("5 beams", "5 beams"),
    ],
)
def test_options_are_named_as_the_fields_of_a_request(message: str, written: str) -> None:
    error = of_engine(Error(name="a", message=message, kind="input"), "prompt")
    assert (error.status, error.message) == (400, written)


@pytest.mark.parametrize(
    ("kind", "status", "param"),
    [
        ("large", 400, "prompt"),
        ("full", 429, None),
        ("memory", 503, None),
        ("ending", 503, None),
        ("failed", 500, None),
    ],
)
def test_each_kind_of_error_has_a_status(kind: ErrorKind, status: int, param: str | None) -> None:
    error = of_engine(Error(name="a", message="why", kind=kind, retry_after=2.5), "prompt")
    assert (error.status, error.param) == (status, param)
    assert error.headers.get("retry-after") == {429: "3", 503: "1"}.get(status)
