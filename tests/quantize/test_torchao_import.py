"""Importing torchao: without noise where it is there, with a word on how to get it elsewhere."""

import logging
import warnings

import pytest

from addnorm.errors import InputError
from addnorm.quantize.torchao_import import torchao_for


def test_warnings_are_silent_inside_the_context_alone(caplog: pytest.LogCaptureFixture) -> None:
    with torchao_for("this", "leave it out"):
        warnings.warn("a warning would be an error", stacklevel=1)
        logging.getLogger("torchao").warning("within")
    logging.getLogger("torchao").warning("after")
    assert [record.message for record in caplog.records] == ["after"]


def test_a_missing_library_names_its_extra() -> None:
    message = r'this is done by torchao: pip install "addnorm\[compression\]", or leave it out'
    with pytest.raises(InputError, match=message), torchao_for("this", "leave it out"):
        import no_such_library  # noqa: F401  # pyright: ignore[reportMissingImports]
