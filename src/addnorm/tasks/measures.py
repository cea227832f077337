"""The settings of metrics for reports: packages with their versions, and units."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version

MARKS = "case and punctuation count"


@cache
def measured_by(package: str, how: str) -> str:
    """Return a line that begins with a package and its version, if it is installed."""
    try:
        return f"{package} {version(package)}: {how}"
    except PackageNotFoundError:
        return f"{package}: {how}"


def error_rates(metric: str) -> str:
    """How word and character error rates are measured; empty for other metrics."""
    units = {"wer": "words between white space", "cer": "characters"}
    return measured_by("jiwer", f"{units[metric]}; {MARKS}") if metric in units else ""
