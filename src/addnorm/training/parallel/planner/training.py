"""The sizes of a training step, and how a training system stores and exchanges numbers."""

from dataclasses import dataclass

NARROW = 2
WIDE = 4


@dataclass(frozen=True)
class States:
    """The number of float32 values that an optimiser stores: per value of a weight, and per weight.

    `inner` is for linear layers in a stack, `other` for all other weights. `by_matrix` says that
    those of layers are changed as whole matrices, as by Muon, which are gathered for it.
    """

    inner: float = 2.0
    other: float = 2.0
    inner_numbers: int = 1
    other_numbers: int = 1
    by_matrix: bool = False

    def values(self, n: float, *, inner: bool) -> float:
        """The number of values that an optimiser stores on a card for `n` values of a weight."""
        if inner:
            return self.inner * n + self.inner_numbers
        return self.other * n + self.other_numbers


@dataclass(frozen=True, kw_only=True, eq=False)
class Training:
    """A step: `rows` texts of `seq_len` tokens, and the number of steps, None if it is unknown."""

    rows: int
    seq_len: int
    steps: int | None = None
    precision: str = "float32"
    states: States = States()
    average: bool = False
    smoothed: bool = False
    on_cpu: bool = False

    @property
    def tokens(self) -> int:
        """The number of tokens in a step."""
        return self.rows * self.seq_len

    @property
    def products(self) -> int:
        """The bytes per value in matrix products."""
        return WIDE if self.precision == "float32" else NARROW


@dataclass(frozen=True, kw_only=True, eq=False)
class System:
    """How a training system stores and exchanges numbers; the defaults are ours.

    The first four are bytes of a value: of weights and gradients as they stay, of weights as shards
    are gathered, and of the residual stream and its gradient.
    """

    weights: int = WIDE
    gradients: int = WIDE
    gathered: int = WIDE
    stream: int = WIDE
    cast: bool = True
    """Whether products take a copy of the weights in their type."""
    overlaps: bool = False
    """Whether gradients of some layers, and outputs of stages, are sent while others compute."""
    once: bool = False
    """Whether shards are gathered and gradients summed once in a step, and not in each pass."""
    scattered: bool = False
    """Whether processes of `tensor` send a part of a stage's output each (Narayanan et al. 2021,
    §4.1).
    """
    order: tuple[str, ...] = ("tensor", "context", "data", "pipeline")
    """Along which axis neighbours are next to each other, then those along which."""
    recomputed: float = 0.0
    """The share of forward products that is computed again where layers are not as a whole."""


OURS = System()
