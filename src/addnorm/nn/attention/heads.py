"""HeadShape: the number of attention heads and their width."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HeadShape:
    """The numbers of query heads and key/value heads, and the width of a head."""

    n_heads: int
    n_kv_heads: int
    d_head: int

    def __post_init__(self) -> None:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads = {self.n_heads} cannot share n_kv_heads = {self.n_kv_heads} evenly: "
                f"n_kv_heads must be one of {divisors(self.n_heads)}"
            )


def divisors(n: int) -> list[int]:
    """The divisors of `n` in ascending order."""
    return [d for d in range(1, n + 1) if n % d == 0]
