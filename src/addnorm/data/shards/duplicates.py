"""Detects duplicates among the documents for shards, exact or nearly equal ones."""

import numpy as np

from addnorm.data.shards.account import Outcome
from addnorm.data.shards.near import NearIndex, Signature
from addnorm.data.shards.options import ShardOptions

DIGEST_BYTES = 16


class Duplicates:
    """The kept documents by their digests and, for near duplicates, their signatures."""

    def __init__(self, options: ShardOptions) -> None:
        self._exact = options.dedup is not None
        self._near = NearIndex(options) if options.dedup == "near" else None
        self._size = DIGEST_BYTES + (4 * options.permutations if self._near else 0)
        self._digests = set[bytes]()

    def outcome(self, digest: bytes, signature: Signature | None) -> Outcome:
        """Return whether a document is kept, or its kind of duplicate; remember kept ones."""
        if digest in self._digests:
            return "duplicate"
        if self._near is not None and signature is not None:
            if self._near.is_near(signature):
                return "near"
            self._near.add(signature)
        if self._exact:
            self._digests.add(digest)
        return "kept"

    def record(self, digest: bytes, signature: Signature | None) -> bytes:
        """Return the bytes from which `restore` restores a document; empty if all are kept."""
        if not self._exact:
            return b""
        return digest if signature is None else digest + signature.tobytes()

    def restore(self, records: bytes) -> None:
        """Add the documents of these records."""
        for i in range(0, len(records), self._size):
            self._digests.add(records[i : i + DIGEST_BYTES])
            if self._near is not None:
                signature = records[i + DIGEST_BYTES : i + self._size]
                self._near.add(np.frombuffer(signature, "<u4"))
