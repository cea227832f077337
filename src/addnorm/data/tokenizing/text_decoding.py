"""Incremental detokenisation: tokens to text, in whole characters, up to a stop string."""

from collections.abc import Sequence
from dataclasses import dataclass

from addnorm.data.tokenizing.grammars import Grammar
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError


@dataclass(frozen=True)
class TextDecoder:
    """Converts tokens to text; it knows the tokenizer, stop strings and grammar of the text.

    If the tokenizer puts texts in lower case, so are the stop strings, since the model generates
    only such texts. With `continues`, a text continues its prompt and may begin with a space;
    otherwise it is independent of its prompt, as answers and translations are. The `grammar` of
    texts that follow one is at its beginning; what a token adds to them does not depend on others.

    Raises `InputError` for an empty stop string, which would end every text at once.
    """

    tokenizer: Tokenizer
    stop: Sequence[str] = ()
    continues: bool = False
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str) or "" in self.stop:
            raise InputError(f"stop must be a list of strings, none empty; got {self.stop!r}")

    def open(self, prompt: Sequence[int] = ()) -> "TextStream":
        """Open a stream of text for one row that follows this prompt."""
        return TextStream(self, prompt if self.continues or self.grammar is not None else ())

    def write(self, ids: Sequence[int], prompt: Sequence[int] = ()) -> str:
        """The text of all `ids`, up to the first stop string."""
        stream = self.open(prompt)
        return "".join(stream.push(i) for i in ids) + stream.finish()


class TextStream:
    """Converts one row's tokens to pieces of text that can be shown at once.

    Joined, the pieces are the decoded text, cut before the stop string that is completed first,
    even if it spans several tokens. A piece never ends within a character, and text that might be
    the beginning of a stop string is held back until that is decided. `grammar` is how far the text
    has come in its grammar, if it follows one.
    """

    def __init__(self, text_decoder: TextDecoder, after: Sequence[int] = ()) -> None:
        self.stopped = False
        self._stop = tuple(map(text_decoder.tokenizer.prepared, text_decoder.stop))
        self._stream = text_decoder.tokenizer.stream(after)
        self.grammar = None if text_decoder.grammar is None else text_decoder.grammar.copy()
        self._held = ""

    def push(self, token: int) -> str:
        """Return the text that becomes final with `token`; empty after a stop string.

        Raises `InputError` for a grammar that becomes too large.
        """
        if self.grammar is not None:
            self.grammar.accept(token)
            if self.grammar.is_broken:
                raise InputError(self.grammar.why_none)
        return self._settle(self._stream.push(token))

    def finish(self) -> str:
        """Return the text that was still held back after the last token."""
        settled = self._settle(self._stream.finish())
        rest, self._held = self._held, ""
        return settled + rest

    @property
    def is_complete(self) -> bool:
        """Whether the grammar allows no further token, so that the text is complete."""
        return self.grammar is not None and self.grammar.is_complete

    @property
    def is_unfinished(self) -> bool:
        """Whether the grammar does not let the text end here."""
        return self.grammar is not None and not self.grammar.allowed().end

    def _settle(self, text: str) -> str:
        if self.stopped:
            return ""
        self._held += text
        matches = [(at + len(s), at) for s in self._stop if (at := self._held.find(s)) >= 0]
        self.stopped = bool(matches)
        at = min(matches)[1] if matches else len(self._held) - self._doubtful()
        settled, self._held = self._held[:at], "" if matches else self._held[at:]
        return settled

    def _doubtful(self) -> int:
        """The length of the longest end of the held text that begins a stop string."""
        beginnings = (stop[:n] for stop in self._stop for n in range(1, len(stop)))
        return max((len(b) for b in beginnings if self._held.endswith(b)), default=0)
