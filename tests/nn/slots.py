"""What the slots of packed and padded rows hold, and passes over them, for tests of mixers."""

from hypothesis import settings
from hypothesis import strategies as st
from tests.contracts import context
from torch import Tensor

from addnorm.nn.context import Context

PADDING, TOKEN, BEGIN = 0, 1, 2
"""What a slot holds: nothing, a token of the text before it, or the first token of a text."""
ROW = st.lists(st.integers(PADDING, BEGIN), min_size=7, max_size=7)
ROW_OF_ONE = st.lists(st.integers(PADDING, TOKEN), min_size=7, max_size=7)
SLOTS = st.one_of(st.lists(row, min_size=1, max_size=3) for row in (ROW, ROW_OF_ONE))
TWO_ROWS = st.lists(ROW, min_size=2, max_size=2)
FEW = settings(max_examples=12)


def passing(slots: Tensor, start: int = 0, end: int | None = None) -> Context:
    """The pass over the slots from `start` to `end`, those before them being cached."""
    seen = slots[:, :end]
    valid, segments = seen != PADDING, (seen == BEGIN).cumsum(1) if (slots == BEGIN).any() else None
    return context(len(seen), seen.shape[1] - start, valid=valid, segments=segments, past=start)
