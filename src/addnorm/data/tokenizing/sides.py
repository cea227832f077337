"""The source and target tokenizers of a model."""

from dataclasses import dataclass
from pathlib import Path

from addnorm.data.examples import Corpus
from addnorm.data.media import has_signals
from addnorm.data.tokenizing.tokenizers import Tokenizer, TokenizerConfig, train_tokenizer


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of source and target texts; often one object."""

    source: Tokenizer
    target: Tokenizer

    @property
    def lowercase(self) -> bool:
        """Whether they put every text in lower case first."""
        return self.source.lowercase

    def lowercased(self, lowercase: bool = True) -> "Tokenizers":
        """Return the same tokenizers, with texts put in lower case first; with False, not."""
        source = self.source.lowercased(lowercase)
        shared = self.target is self.source
        return Tokenizers(source, source if shared else self.target.lowercased(lowercase))

    def beginning(self, begins: tuple[int, ...] | None) -> "Tokenizers":
        """Return the same tokenizers, with these ids before a text to continue."""
        source = self.source.beginning(begins)
        shared = self.target is self.source
        return Tokenizers(source, source if shared else self.target.beginning(begins))

    @classmethod
    def train(cls, config: TokenizerConfig, corpus: Corpus) -> "Tokenizers":
        """Learn tokenizers from the training examples; for signals, from their target texts."""
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
        """Read what `save` wrote; raise `InputError` where it is missing or damaged."""
        if (folder / "source.tokenizer.json").exists():
            source = Tokenizer.load(folder / "source.tokenizer.json")
            return cls(source, Tokenizer.load(folder / "target.tokenizer.json"))
        tokenizer = Tokenizer.load(folder / "tokenizer.json")
        return cls(tokenizer, tokenizer)
