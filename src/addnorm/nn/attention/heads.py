"""HeadShape: how many heads attention has, and how wide they are."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HeadShape:
    """How many query heads, how many key/value heads they share, and the width of each."""

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
    """The numbers that divide `n`, rising."""
    return [d for d in range(1, n + 1) if n % d == 0]
