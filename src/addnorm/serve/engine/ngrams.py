"""Prompt lookup: drafts copy the text that followed the last tokens at an earlier place."""

from collections.abc import Mapping
from collections.abc import Sequence as Items

from addnorm.serve.engine.choosing import Answer
from addnorm.serve.engine.sequence import Sequence

SIZES = (4, 2)
"""The lengths of the n-grams that are looked up, the longest first."""


class NGrams:
    """The n-grams of a text, each with the place after its previous occurrence.

    Saxena 2023, "Prompt Lookup Decoding"; `prompt_lookup_num_tokens` in transformers.
    """

    def __init__(self) -> None:
        self._places: tuple[dict[tuple[int, ...], int], ...] = tuple({} for _ in SIZES)
        self._n_read = 0
        self._place: int | None = None

    def read(self, tokens: Items[int]) -> None:
        """Index the new tokens of the text."""
        for end in range(self._n_read + 1, len(tokens) + 1):
            self._place = None
            for size, places in zip(SIZES, self._places, strict=True):
                if end >= size:
                    gram = tuple(tokens[end - size : end])
                    if self._place is None:
                        self._place = places.get(gram)
                    places[gram] = end
        self._n_read = len(tokens)

    def draft(self, tokens: Items[int], n: int) -> tuple[int, ...]:
        """The `n` tokens that followed the last n-gram earlier; empty if it is new.

        Where these tokens reach the end of the text, they start again: a text that repeats itself
        is expected to do so.
        """
        if self._place is None:
            return ()
        period = len(tokens) - self._place
        return tuple(tokens[self._place + i % period] for i in range(n))


class PromptLookup:
    """Drafts from the prompt and the answer so far."""

    is_free, memory, name = True, 0, "prompt lookup"

    def __init__(self) -> None:
        self._texts: dict[Sequence, NGrams] = {}

    def propose(
        self, lengths: Mapping[Sequence, int], answers: Mapping[Sequence, Answer]
    ) -> dict[Sequence, tuple[int, ...]]:
        """A draft for each sequence whose last tokens have occurred together before."""
        drafts: dict[Sequence, tuple[int, ...]] = {}
        for sequence, length in lengths.items():
            ngrams = self._texts.setdefault(sequence, NGrams())
            ngrams.read(sequence.tokens)
            drafts[sequence] = ngrams.draft(sequence.tokens, length)
        return drafts

    def forget(self, sequence: Sequence) -> None:
        """Drop the state of a sequence that has ended."""
        self._texts.pop(sequence, None)
