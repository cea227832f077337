"""Importing torchao, an optional library: without its noise, or with a word on how to get it."""

import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager

from addnorm.compiler import separate_caches
from addnorm.errors import InputError


@contextmanager
def torchao_for(what: str, otherwise: str) -> Generator[None]:
    """Import torchao within this, which keeps silent of kernels that are not for this machine.

    Raises `InputError` where it is not installed: `what` needs it, and `otherwise` is what to
    choose in its place.
    """
    separate_caches()  # some of it compiles without being asked
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ImportError as error:
        raise InputError(
            f'{what} is done by torchao: pip install "addnorm[compression]", or {otherwise}'
        ) from error
    finally:
        logging.disable(before)
