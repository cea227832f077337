"""ShardsConfig: folders of shards as data for a language model."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from pydantic import PositiveFloat

from addnorm.config import config
from addnorm.data.examples import Corpus, Report
from addnorm.data.ids.compact import Encoded
from addnorm.data.ids.encoding import EncodedCorpus
from addnorm.data.ids.layout import NextToken
from addnorm.data.readers.text_files import OneOrMoreFiles, base_of, given
from addnorm.data.shards.index import INDEX, TOKENIZER, Framing, ShardFolder
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError


class ShardedTexts(Sequence[Encoded]):
    """The documents of one or more folders of shards, each read on access."""

    def __init__(
        self, folders: Sequence[ShardFolder], weights: tuple[float, ...] | None = None
    ) -> None:
        self.folders = folders
        self.weights = weights
        self._ends = [*accumulate(folder.n_documents for folder in folders)]

    @property
    def n_tokens(self) -> int:
        """The number of tokens that a model reads: all but the last of each document."""
        ends = sum(folder.n_documents for folder in self.folders if not folder.framing.shared)
        return sum(int(folder.token_starts[-1]) for folder in self.folders) - ends

    @property
    def digest(self) -> str:
        """The digest of all texts, with their order and weights."""
        facts = [*(folder.digest for folder in self.folders), self.weights]
        return sha256(repr(facts).encode()).hexdigest()

    def __len__(self) -> int:
        return self._ends[-1]

    @overload
    def __getitem__(self, i: int) -> Encoded: ...
    @overload
    def __getitem__(self, i: slice) -> list[Encoded]: ...
    def __getitem__(self, i: int | slice) -> Encoded | list[Encoded]:
        if isinstance(i, slice):
            return [self[n] for n in range(*i.indices(len(self)))]
        n = range(len(self))[i]
        which = next(k for k, end in enumerate(self._ends) if n < end)
        folder = self.folders[which]
        ids = folder.document(n - (self._ends[which] - folder.n_documents)).tolist()
        return Encoded(n, ids[:-1], ids[1:])


@config
class ShardsConfig:
    """Texts in ids that `addnorm tokenize` has written, for a language model.

    They may be of any size: what a batch needs is read when it is built. The tokenizer is that of
    the shards. Several folders are mixed by `weights`. The order of an epoch is a function of the
    seed, the epoch and the place alone, so a run resumes at any place at once, and in any number of
    processes.
    """

    kind: Literal["shards"] = "shards"
    train: OneOrMoreFiles
    """The folder of shards to learn from; or several, which are mixed."""
    weights: tuple[PositiveFloat, ...] | None = None
    """The share of each folder of train in the rows of an epoch, such as `[3, 1]`; by default that
    of its tokens. A folder with more than its share of tokens is read several times.
    """
    valid: Path | None = None
    """The folder of shards to validate on while training."""
    test: Path | None = None
    """The folder of shards that training never sees."""
    root: Path | None = None
    """Where relative paths start; by default `$ADDNORM_DATA`, else the current folder."""

    def __post_init__(self) -> None:
        if self.weights is not None and len(self.weights) != len(self.folders):
            raise ValueError(
                f"weights has {len(self.weights)} numbers, and train {len(self.folders)} folders: "
                "give one for each"
            )

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders to learn from."""
        return self.train if isinstance(self.train, tuple) else (self.train,)

    def load(self) -> Corpus:
        """Raise `InputError`: shards hold ids, not texts that can be read as examples."""
        raise InputError(
            'data.kind = "shards" has ids for training and evaluation, and no texts: give the '
            'texts themselves here, by data.kind = "text" or "table"'
        )

    def tokenizers(self) -> Tokenizers:
        """Return the tokenizer of the first folder. Raises `InputError` without one."""
        file = base_of(self.root) / self.folders[0] / TOKENIZER
        ShardFolder.open(file.parent)
        tokenizer = Tokenizer.load(file)
        return Tokenizers(tokenizer, tokenizer).ending()

    def encoded(self, tokenizers: Tokenizers) -> EncodedCorpus:
        """Open all shards. Raises `InputError` for damaged ones, and those of another tokenizer."""
        framing = Framing.of(tokenizers.source)
        splits: dict[str, ShardedTexts] = {}
        for split, paths in given(
            self.folders, self._one(self.valid), self._one(self.test)
        ).items():
            folders = [self._opened(path, framing) for path in paths]
            splits[split] = ShardedTexts(folders, self.weights if split == "train" else None)
        return EncodedCorpus(
            "language",
            tokenizers.target.bos_id,
            tokenizers.target.pad_id,
            splits["train"],
            splits.get("valid", ()),
            splits.get("test", ()),
            reports=_reports(splits),
            characters={
                split: np.array([folder.characters for folder in texts.folders], np.int64)
                for split, texts in splits.items()
            },
            tokenizer=tokenizers.source,
            layout=NextToken(),
        )

    def _one(self, folder: Path | None) -> tuple[Path, ...] | None:
        return None if folder is None else (folder,)

    def _opened(self, path: Path, framing: Framing) -> ShardFolder:
        folder = ShardFolder.open(base_of(self.root) / path)
        if folder.framing.tokenizer != framing.tokenizer:
            raise InputError(
                f"{folder.path}: its ids are those of another tokenizer than the model's: make the "
                "shards by `addnorm tokenize --tokenizer` with the run or folder"
            )
        if folder.framing != framing:
            raise InputError(
                f"{folder.path / INDEX}: damaged: its framing is not that of its tokenizer"
            )
        return folder


def _reports(splits: Mapping[str, ShardedTexts]) -> Mapping[str, Any]:
    return {split: Report(len(texts), len(texts)) for split, texts in splits.items()}
