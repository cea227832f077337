"""What the claims cost, which is said before they run."""

from collections import Counter
from collections.abc import Mapping, Sequence

from addnorm.lab.claims.claim import Size

HOURS: Mapping[Size, Mapping[str, float]] = {
    "quick": {
        "extrapolation": 0.03,
        "word_order": 0.02,
        "warmup": 0.08,
        "norms": 0.06,
        "score_scale": 0.02,
        "heads": 0.03,
        "distance": 0.04,
        "residuals": 0.02,
        "rmsnorm": 0.01,
        "cache": 0.01,
    },
    "full": {
        "extrapolation": 0.42,
        "word_order": 0.12,
        "warmup": 1.06,
        "norms": 0.49,
        "score_scale": 0.36,
        "heads": 0.32,
        "distance": 1.25,
        "residuals": 0.22,
        "rmsnorm": 0.14,
        "cache": 0.35,
    },
    "night": {
        "extrapolation": 0.83,
        "word_order": 0.41,
        "warmup": 6.32,
        "norms": 0.88,
        "score_scale": 1.23,
        "heads": 0.63,
        "distance": 2.85,
        "residuals": 1.11,
        "rmsnorm": 0.30,
        "cache": 0.37,
    },
}
"""The hours of one busy core that all seeds of a claim take on one kind of data.

Of `full`, a few steps of every cell were timed, and the sum brought to what all took when they were
measured claim by claim; `quick` and `night` follow from these by steps, layers and lengths.
"""


def plan(
    size: Size, cells: Sequence[tuple[str, str]], left: Sequence[tuple[str, str]], n: int
) -> str:
    """What is left to measure, and about how long that takes with `n` processes.

    `cells` has the claim and the data of each cell.
    """
    kept = len(cells) - len(left)
    number = f"{len(cells):,} cell{'s' if len(cells) > 1 else ''}"
    said = number + (f", {kept:,} of them kept already" if kept else "")
    if not left:
        return f"{said}: nothing is left to measure"
    there, wanted = Counter(cells), Counter(left)
    hours = sum(HOURS[size][key[0]] * wanted[key] / there[key] for key in wanted)
    busy = f", {_time(hours)} of one busy core" if n > 1 else ""
    return f"{said}: about {_time(hours / n)} with {n} at once{busy}"


def _time(hours: float) -> str:
    minutes = max(1, round(60 * hours))
    if hours >= 1.5:
        return f"{hours:.1f} hours"
    return f"{minutes} minute{'s' if minutes > 1 else ''}"
