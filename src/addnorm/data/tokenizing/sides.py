"""The two tokenizers of a model: that of the text read and that of the text written."""

from dataclasses import dataclass
from pathlib import Path

from addnorm.data.examples import Corpus
from addnorm.data.media import has_signals
from addnorm.data.tokenizing.tokenizers import Tokenizer, TokenizerConfig, train_tokenizer


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizer of what is read and that of what is written; often one object."""

    source: Tokenizer
    target: Tokenizer

    @property
    def lowercase(self) -> bool:
        """Whether they put every text in lower case before they read it."""
        return self.source.lowercase

    def lowercased(self, lowercase: bool = True) -> "Tokenizers":
        """The same tokenizers, reading texts in lower case; or with False as they are."""
        source = self.source.lowercased(lowercase)
        both = self.target is self.source
        return Tokenizers(source, source if both else self.target.lowercased(lowercase))

    def beginning(self, begins: tuple[int, ...] | None) -> "Tokenizers":
        """The same tokenizers, with what stands before a text to continue."""
        source = self.source.beginning(begins)
        both = self.target is self.source
        return Tokenizers(source, source if both else self.target.beginning(begins))

    @classmethod
    def train(cls, config: TokenizerConfig, corpus: Corpus) -> "Tokenizers":
        """Learn from the training examples: of images or sound, from the texts to write."""
        if has_signals(corpus.medium):
            written = train_tokenizer(config, corpus.target_texts())
            return cls(written, written)
        if getattr(config, "joint", True) or not corpus.kind.writes:
            both = train_tokenizer(config, [*corpus.source_texts(), *corpus.target_texts()])
            return cls(both, both)
        return cls(
            train_tokenizer(config, corpus.source_texts()),
            train_tokenizer(config, corpus.target_texts()),
        )

    def ending(self) -> "Tokenizers":
        """Both, where the end of a text to learn from ends generation as well."""
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
        both = Tokenizer.load(folder / "tokenizer.json")
        return cls(both, both)
