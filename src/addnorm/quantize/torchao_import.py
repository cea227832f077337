"""Importing torchao, an optional library, without its warnings."""

import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager

from addnorm.compiler import separate_caches
from addnorm.errors import InputError


@contextmanager
def torchao_for(what: str, otherwise: str) -> Generator[None]:
    """In this context, suppress torchao's import warnings about kernels for other machines.

    Raises `InputError` if it is not installed: `what` needs it, and `otherwise` is the alternative.
    """
    separate_caches()  # importing some of it compiles kernels
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except ImportError as error:
        raise InputError(
            f'{what} is done by torchao: pip install "addnorm[compression]", or {otherwise}'
        ) from error
    finally:
        logging.disable(before)
