"""Seeded ways of corrupting JSON files."""

import json
from random import Random
from typing import Any

NASTY: list[Any] = [
    *(-1, 0, 1, 4, 24, 2**31, 2**32, 2**62, 2**63, 2**64, 10**30, -(2**63), 10**400),
    *(1.5, -0.0, float("inf"), float("nan"), True, False, None),
    *("", "F32", "F64", "BF16", "BOOL", "U8", "x" * 5000, "\ud800", "\0", "../x", "__metadata__"),
    *([], [0], [0, 0], [2**62, 4], [2**32, 2**32], [0, 2**63 - 1], [1] * 70, {}, {"dtype": "F32"}),
    "<deep>",
]
"""What a mutation puts in the place of a value, or of a name."""


def dumped(tree: Any, rng: Random) -> bytes:
    """As JSON, or what Python would write for it, with the odd abyss."""
    n = rng.choice([10, 1000, 100_000])
    return json.dumps(tree).encode().replace(b'"<deep>"', b"[" * n + b"]" * n)


def flipped(content: bytes, rng: Random, upto: int) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.randrange(1, 4)):
        changed[rng.randrange(upto)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(content: bytes, rng: Random, upto: int) -> bytes:
    return content[: rng.randrange(len(content))] + rng.randbytes(rng.choice([0, 0, 1, 50]))
