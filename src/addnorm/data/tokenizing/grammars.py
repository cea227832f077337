"""Structured output: which tokens a grammar allows next, computed by the library llguidance."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from addnorm.data.tokenizing.grammar_forms import error_of, matcher_of
from addnorm.data.tokenizing.token_bytes import token_bytes
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError, optional


class GrammarCompiler:
    """A tokenizer's vocabulary, for which grammars are compiled.

    One id more stands for the end of a text: an answer may have any tokens as its ends, or none.
    Raises `InputError` without the extra `structured`, and for a tokenizer whose tokens are not
    known as bytes.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        library = optional("llguidance", "structured", "structured output")
        content = token_bytes(tokenizer)
        vocabulary = library.TokenizerWrapper(_Vocabulary(tokenizer, content))
        self._tokens = library.LLTokenizer(vocabulary)
        self._n_tokens = len(content)
        self._text = int("".join("01"[bool(each)] for each in reversed(content)), 2)

    def start(self, grammar: str, field: str = "structured output") -> "Grammar":
        """Compile a grammar, and return its state at the start of a text.

        Raises `InputError`, which names the `field` of the request, for a grammar that is wrong or
        too large, or that no token of the model begins.
        """
        matcher = matcher_of(grammar, self._tokens, field)
        start = Grammar(matcher, self._text, self._n_tokens, field)
        if start.is_broken or not (start.is_complete or start.allowed().tokens):
            raise InputError(start.why_none)
        return start


class _Vocabulary:
    """A tokenizer in the form that llguidance reads."""

    def __init__(self, tokenizer: Tokenizer, content: Sequence[bytes]) -> None:
        names = [tokenizer.codec.name(i) or f"<{i}>" for i in range(tokenizer.vocab_size)]
        self.eos_token_id, self.bos_token_id = len(names), None
        self.tokens = [*content, b"<end>"]
        self.special_token_ids = [i for i, content in enumerate(self.tokens) if not content]
        for i in self.special_token_ids:
            self.tokens[i] = names[i].encode()
        self.special_token_ids.append(self.eos_token_id)
        self._encode = tokenizer.encode

    def __call__(self, text: bytes) -> list[int]:
        """Return the ids of a text."""
        return self._encode(text.decode(errors="replace"))


@dataclass(frozen=True)
class Allowed:
    """The tokens that may come next in a text, and whether it may end."""

    tokens: int
    """A bit for each of the tokens, the lowest for token 0."""
    n_tokens: int
    end: bool
    """Whether the text may end."""


class Grammar:
    """The state of one text within its grammar."""

    def __init__(self, matcher: Any, text: int, n_tokens: int, field: str) -> None:
        self._matcher = matcher
        self._text = text
        self._n_tokens = n_tokens
        self._field = field

    def copy(self) -> "Grammar":
        """Return a copy of this state, for another text."""
        return Grammar(self._matcher.deep_copy(), self._text, self._n_tokens, self._field)

    @property
    def is_complete(self) -> bool:
        """Whether the text is complete, so that no token may follow."""
        return self._matcher.is_stopped() and not self.is_broken

    @property
    def is_broken(self) -> bool:
        """Whether the grammar is wrong or too large, so that it can be followed no further."""
        return self._matcher.is_error()

    @property
    def why_none(self) -> str:
        """The reason why no token is allowed."""
        reason = error_of(self._matcher)
        if not reason or reason.startswith("NoExtension"):
            reason = "no token of the model continues the text"
        return f"{self._field}: {reason}"

    def allowed(self) -> Allowed:
        """Return the tokens that may come next, and whether the text may end."""
        bits = 0 if self.is_broken else int.from_bytes(self._matcher.compute_bitmask(), "little")
        return Allowed(bits & self._text, self._n_tokens, bool(bits >> self._n_tokens & 1))

    def accept(self, token: int) -> None:
        """Advance by a token that is allowed and does not end the text."""
        self._matcher.consume_token(token)
