"""Structured output: which tokens a grammar allows next, by the library llguidance."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from addnorm.data.tokenizing.token_bytes import token_bytes
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError, optional
from addnorm.serve.engine.grammar_limits import error_of, matcher_of


class GrammarCompiler:
    """The tokens of a tokenizer, over which grammars are compiled.

    One id more stands for the end of a text: an answer may have any tokens as its ends, or none.
    Raises `InputError` without the extra `structured`, and for a tokenizer whose tokens are not
    known as bytes.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        library = optional("llguidance", "structured", "structured output")
        content = token_bytes(tokenizer)
        vocabulary = library.TokenizerWrapper(_Vocabulary(tokenizer, content))
        self._tokens = library.LLTokenizer(vocabulary)
        self._is_text = torch.tensor([bool(each) for each in content])

    def start(self, grammar: str, field: str = "structured output") -> "Grammar":
        """Return the beginning of a text of the grammar, in the form of llguidance.

        Raises `InputError`, which names the `field` of the request, for a grammar that is wrong or
        too large, or that no token of the model begins.
        """
        start = Grammar(matcher_of(grammar, self._tokens, field), self._is_text, field)
        begins = start.is_complete or bool(start.allowed(len(self._is_text), ()).any())
        if start.is_broken or not begins:
            raise InputError(start.why_none)
        return start


class _Vocabulary:
    """A tokenizer as llguidance reads it."""

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


class Grammar:
    """How far an answer has come in its grammar."""

    def __init__(self, matcher: Any, is_text: Bool[Tensor, " tokens"], field: str) -> None:
        self._matcher = matcher
        self._is_text = is_text
        self._field = field

    def copy(self) -> "Grammar":
        """Return the same place, for another answer."""
        return Grammar(self._matcher.deep_copy(), self._is_text, self._field)

    @property
    def is_complete(self) -> bool:
        """Whether the answer is whole, and no token may follow."""
        return self._matcher.is_stopped() and not self.is_broken

    @property
    def is_broken(self) -> bool:
        """Whether the grammar is wrong or too large, and followed no further."""
        return self._matcher.is_error()

    @property
    def why_none(self) -> str:
        """Why no token is allowed."""
        reason = error_of(self._matcher)
        if not reason or reason.startswith("NoExtension"):
            reason = "no token of the model continues the text"
        return f"{self._field}: {reason}"

    def allowed(self, vocab: int, ends: Sequence[int]) -> Bool[Tensor, " vocab"]:
        """Return the tokens that may come next; the `ends` where the answer may end."""
        if self.is_broken:
            return torch.zeros(vocab, dtype=torch.bool)
        bits = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        mask = (bits[:, None] >> torch.arange(8, dtype=torch.uint8)).bitwise_and(1).bool().flatten()
        allowed = torch.zeros(vocab, dtype=torch.bool)
        n = min(vocab, len(self._is_text))
        allowed[:n] = mask[:n] & self._is_text[:n]
        if ends:
            allowed[list(ends)] = mask[len(self._is_text)]
        return allowed

    def accept(self, token: int) -> None:
        """Advance by a token that was allowed, and is not an end."""
        self._matcher.consume_token(token)
