"""Counts of the documents read for shards, and the report of what was written."""

from dataclasses import dataclass, replace
from typing import Literal

Outcome = Literal["kept", "empty", "duplicate", "near"]
"""What became of a document."""


@dataclass(frozen=True)
class Account:
    """An account of documents: `read == kept + empty + duplicate + near`."""

    read: int = 0
    kept: int = 0
    empty: int = 0
    duplicate: int = 0
    near: int = 0

    def with_one(self, outcome: Outcome) -> "Account":
        """Return the account with one more document."""
        return replace(self, read=self.read + 1, **{outcome: getattr(self, outcome) + 1})

    def __add__(self, other: "Account") -> "Account":
        return Account(*(a + b for a, b in zip(_values(self), _values(other), strict=True)))

    def __str__(self) -> str:
        reasons = {
            "empty": self.empty,
            "duplicate": self.duplicate,
            "near duplicate": self.near,
        }
        parts = [f"{self.read:,} read", f"{self.kept:,} kept"]
        return ", ".join(parts + [f"{n:,} left out: {name}" for name, n in reasons.items() if n])


def _values(account: Account) -> tuple[int, ...]:
    return (account.read, account.kept, account.empty, account.duplicate, account.near)


@dataclass(frozen=True)
class ShardReport:
    """The result of writing shards: the counts of documents, and what was written."""

    documents: Account
    tokens: int
    characters: int
    shards: int
    valid_documents: int = 0
