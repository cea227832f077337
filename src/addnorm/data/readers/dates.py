"""A synthetic translation corpus of dates, times and numbers in words, without a download."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Annotated, Literal

from pydantic import Field

from addnorm.config import config
from addnorm.data.examples import Corpus, Pair, Report


@config
class DatesConfig:
    """Translate English dates, times and numbers into another language.

    The words are CLDR's (through Babel) and num2words'; the corpus is a pure function of this
    config. No source sentence occurs twice, in one split or in two, and each has one translation.
    Numbers below 100 are always learnt from and never held out: they are the words of the others.
    `n_train` may grow without a change to `valid` and `test`.

    Raises `InputError` in `load` when CLDR does not know the language `to`.
    """

    kind: Literal["dates"] = "dates"
    to: str = "de"
    """The language to translate into, by its code; numbers are in words where these are known."""
    n_train: Annotated[int, Field(ge=1)] = 30_000
    """How many sentences to learn from."""
    n_valid: Annotated[int, Field(ge=0)] = 500
    """How many sentences to validate on."""
    n_test: Annotated[int, Field(ge=0)] = 1_000
    """How many sentences to test on."""
    seed: int = 0
    """The seed of the sentences that are drawn."""

    def load(self) -> Corpus:
        """Generate the corpus, test sentences first."""
        # These import the words of all languages.
        from addnorm.data.readers.date_sentences import draw, number_pair
        from addnorm.languages import locale_called

        locale, rng = locale_called(self.to), Random(self.seed)
        pairs = _distinct(lambda: draw(rng, locale))
        test = [next(pairs) for _ in range(self.n_test)]
        valid = [next(pairs) for _ in range(self.n_valid)]
        train = [number_pair(number, locale) for number in range(min(100, self.n_train))]
        train += [next(pairs) for _ in range(self.n_train - len(train))]
        splits = {"train": train, "valid": valid, "test": test}
        reports = {name: Report(read=len(s), used=len(s)) for name, s in splits.items()}
        return Corpus(train=train, valid=valid, test=test, reports=reports)


def _distinct(draw: Callable[[], Pair]) -> Iterator[Pair]:
    """Draw again and again; yield each source once."""
    seen = set[str]()
    while True:
        pair = draw()
        if pair.source not in seen:
            seen.add(pair.source)
            yield pair
