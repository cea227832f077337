"""Text decoding: from the tokens of a row to text, in whole characters, up to a stop string."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from addnorm.data.tokenizers import Tokenizer
from addnorm.errors import InputError

Finished = Literal["eos", "stop", "length"]
"""Why a row ended: its end token, a stop string, or its limit."""


@dataclass(frozen=True, kw_only=True)
class Generated:
    """One continuation: its tokens without the end token, and why it ended.

    `score` is the log-probability that the model gives to `ids` (and to the end token, where it
    ended), before any filter of sampling; beam search divides it by its length normaliser.
    `text` is empty unless a `TextDecoder` was given; where a stop string ended the row, `text` is
    what came before that string, while `ids` holds every token that was written.
    """

    ids: tuple[int, ...]
    score: float
    finished: Finished
    text: str = ""


@dataclass(frozen=True)
class TextDecoder:
    """How tokens become text: the tokenizer, and the strings before which the text ends.

    Raises `InputError` for an empty stop string, which would end every text at once.
    """

    tokenizer: Tokenizer
    stop: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.stop, str) or "" in self.stop:
            raise InputError(f"stop must be a list of strings, none empty; got {self.stop!r}")

    def open(self) -> "TextStream":
        """A stream for one row."""
        return TextStream(self)

    def write(self, ids: Sequence[int]) -> str:
        """The text of all of `ids`, up to the first stop string."""
        stream = self.open()
        return "".join(stream.push(i) for i in ids) + stream.finish()


class TextStream:
    """Turns the tokens of one row into pieces of text that may be shown at once.

    The pieces join to the decoding of the whole, cut before the stop string that is complete
    first, wherever its characters fall among the tokens. A piece never ends within a character,
    and what might be the beginning of a stop string is held back until that is settled.
    """

    def __init__(self, text_decoder: TextDecoder) -> None:
        self.stopped = False
        self._stop = tuple(text_decoder.stop)
        self._stream = text_decoder.tokenizer.stream()
        self._held = ""

    def push(self, token: int) -> str:
        """The text that is settled by `token`; nothing once a stop string has been met."""
        return self._settle(self._stream.push(token))

    def finish(self) -> str:
        """The text that was held back, when no more tokens will come."""
        settled = self._settle(self._stream.finish())
        rest, self._held = self._held, ""
        return settled + rest

    def _settle(self, text: str) -> str:
        if self.stopped:
            return ""
        self._held += text
        found = [(at + len(s), at) for s in self._stop if (at := self._held.find(s)) >= 0]
        self.stopped = bool(found)
        at = min(found)[1] if found else len(self._held) - self._doubtful()
        settled, self._held = self._held[:at], "" if found else self._held[at:]
        return settled

    def _doubtful(self) -> int:
        """Length of the longest ending of the held text with which a stop string begins."""
        beginnings = (stop[:n] for stop in self._stop for n in range(1, len(stop)))
        return max((len(b) for b in beginnings if self._held.endswith(b)), default=0)
