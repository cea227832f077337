"""The tokenizers of a model's source and target, and the special tokens around texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tokenizers as library

from addnorm.data.tokenizing.tokenizers import Tokenizer, TokenizerConfig, train_tokenizer
from addnorm.errors import InputError

if TYPE_CHECKING:  # they import torch, which a web server does without
    from addnorm.data.examples import Corpus


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of source and target texts; often the same object."""

    source: Tokenizer
    target: Tokenizer

    @property
    def lowercase(self) -> bool:
        """Whether both convert texts to lower case first."""
        return self.source.lowercase

    def lowercased(self, lowercase: bool = True) -> "Tokenizers":
        """Return the same tokenizers that convert texts to lower case first, or do not."""
        source = self.source.lowercased(lowercase)
        shared = self.target is self.source
        return Tokenizers(source, source if shared else self.target.lowercased(lowercase))

    def beginning(self, begins: tuple[int, ...] | None) -> "Tokenizers":
        """Return these tokenizers with other ids before a text to continue."""
        source = self.source.beginning(begins)
        shared = self.target is self.source
        return Tokenizers(source, source if shared else self.target.beginning(begins))

    @classmethod
    def train(cls, config: TokenizerConfig, corpus: "Corpus") -> "Tokenizers":
        """Learn tokenizers from the training examples; for signals, from their target texts."""
        from addnorm.data.example import has_signals

        if has_signals(corpus.medium):
            written = train_tokenizer(config, corpus.target_texts())
            return cls(written, written)
        if getattr(config, "joint", True) or not corpus.kind.writes:
            tokenizer = train_tokenizer(config, [*corpus.source_texts(), *corpus.target_texts()])
            return cls(tokenizer, tokenizer)
        return cls(
            train_tokenizer(config, corpus.source_texts()),
            train_tokenizer(config, corpus.target_texts()),
        )

    @property
    def sampled(self) -> str:
        """A message on the texts that `train` has skipped; empty if it has read all."""
        step = max(self.source.step, self.target.step)
        if step == 1:
            return ""
        return f"tokenizer: learnt from one of {step} texts: tokenizer.sample says from how much"

    def ending(self) -> "Tokenizers":
        """Return the same tokenizers, with the end of a training text also ending generation."""
        source = self.source.ending()
        shared = self.target is self.source
        return Tokenizers(source, source if shared else self.target.ending())

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json`, or `source.tokenizer.json` and `target.tokenizer.json`."""
        if self.source is self.target:
            self.source.save(folder / "tokenizer.json")
        else:
            self.source.save(folder / "source.tokenizer.json")
            self.target.save(folder / "target.tokenizer.json")

    @classmethod
    def load(cls, folder: Path) -> "Tokenizers":
        """Read the files that `save` wrote; raise `InputError` if one is missing or damaged."""
        if (folder / "source.tokenizer.json").exists():
            source = Tokenizer.load(folder / "source.tokenizer.json")
            return cls(source, Tokenizer.load(folder / "target.tokenizer.json"))
        tokenizer = Tokenizer.load(folder / "tokenizer.json")
        return cls(tokenizer, tokenizer)


MASK = "<mask>"
"""The mask token of tokenizers that are learnt here."""

MASKS = (MASK, "[MASK]", "<|mask|>")
"""The names of mask tokens, in imported tokenizers too."""

SENTINELS = tuple(f"<extra_id_{n}>" for n in range(100))
"""T5's sentinels, each of which stands for one span (Raffel et al. 2020, §3.1.4)."""


def mask_id_of(tokenizer: Tokenizer) -> int:
    """Return the id of the mask token. Raises `InputError` if the tokenizer has none."""
    for i in map(tokenizer.id_of, MASKS):
        if i is not None and i in tokenizer.special_ids:
            return i
    raise InputError(
        f"the tokenizer has no mask token, such as {' or '.join(MASKS[:2])}: start from a folder "
        "that has one, or learn a tokenizer by [tokenizer]"
    )


def sentinel_ids_of(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids of T5's sentinels, in order. Raises `InputError` if there are none."""
    named = [tokenizer.id_of(name) for name in SENTINELS]
    ids = tuple(i for i in named if i is not None and i in tokenizer.special_ids)
    if not ids or named[: len(ids)] != [*ids]:
        raise InputError(
            f"the tokenizer has no sentinels {SENTINELS[0]}, {SENTINELS[1]} …: start from a folder "
            "that has them, or learn a tokenizer by [tokenizer]"
        )
    return ids


def with_special_tokens(tokenizers: Tokenizers, names: Sequence[str]) -> Tokenizers:
    """Add special tokens to our own tokenizers; their ids come after all others.

    Raises `InputError` for a custom tokenizer, whose ids are fixed.
    """
    if not names:
        return tokenizers
    source = _with(tokenizers.source, names)
    shared = tokenizers.target is tokenizers.source
    return Tokenizers(source, source if shared else _with(tokenizers.target, names))


def _with(tokenizer: Tokenizer, names: Sequence[str]) -> Tokenizer:
    inner = library.Tokenizer.from_str(tokenizer.inner.to_str())
    inner.add_special_tokens([*names])
    return Tokenizer.learnt(inner, tokenizer.step)


def around(task: str, tokenizer: Tokenizer) -> tuple[Sequence[int], Sequence[int]]:
    """Return the special tokens before and after each text that models of this task expect."""
    before, after = tokenizer.before, tokenizer.after
    if before is None:
        before = () if task == "translation" else (tokenizer.bos_id,)
    if after is None:
        after = tokenizer.eos_ids[:1]
    return before, () if task == "language" else after


def encode_prompts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of texts to continue, with the first tokens used in training.

    Special tokens that are spelt in them are read as `encode_marked` does.

    None is empty: an empty text is the start token. A model that learnt from a single text has
    seen it once at most, and starts better from a line break or a word.
    """
    before = start_of_prompts(tokenizer)
    return [[*before, *ids] or [tokenizer.bos_id] for ids in tokenizer.encode_marked(texts)]


def start_of_prompts(tokenizer: Tokenizer) -> Sequence[int]:
    """The special tokens at the start of each text to continue."""
    return around("language", tokenizer)[0] if tokenizer.begins is None else tokenizer.begins


def loses_space(tokenizer: Tokenizer, text: str, prompt: Sequence[int]) -> bool:
    """Whether a text to continue ends in white space that its ids do not represent."""
    return text[-1:].isspace() and not tokenizer.decode(prompt)[-1:].isspace()
