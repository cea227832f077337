"""The list of works."""

from collections.abc import Sequence

from addnorm.bench import long_context, start_up
from addnorm.bench.training_works import (
    train_characters,
    train_decoder,
    train_translator_base,
    train_translator_tiny,
)
from addnorm.bench.work import Work
from addnorm.bench.writing_works import alone, decode, together, translations
from addnorm.errors import InputError, nearest

WORKS = (
    train_characters(),
    train_decoder(),
    train_translator_tiny(),
    train_translator_base(),
    decode("decode", 1, alone),
    decode("decode-batch", 16, together),
    translations(),
    long_context.work(),
    start_up.work(),
)
"""Every work there is."""


def named(names: Sequence[str]) -> list[Work]:
    """The works of these names; all without any. Raises `InputError` with the nearest name."""
    works = {work.name: work for work in WORKS}
    for name in names:
        if name not in works:
            raise InputError(
                f"no work is called {name!r}; there are {', '.join(works)}.{nearest(name, works)}"
            )
    return [works[name] for name in names] or list(WORKS)
