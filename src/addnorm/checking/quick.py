"""`addnorm.check`: compare combinations of parts with their definitions, from Python."""

from addnorm.arguments import known_keywords
from addnorm.checking.run import Report, matching
from addnorm.checking.run import check as check_cells
from addnorm.checking.sampling import sample as sample_of
from addnorm.errors import InputError


@known_keywords
def check(only: str = "", *, sample: int = 50, seed: int = 0, jobs: int = 1) -> Report:
    """Compare tiny models of random combinations of parts with their definitions in float64.

    `only` names parts, with `*` as a wildcard: `addnorm.check("decoder/rotary/*/moe")`. `sample` is
    the number of random cells, drawn with `seed`, and `jobs` the number of processes. Returns a
    report: `report.failed` is empty if everything agrees, and `report.text()` is a summary. Raises
    `InputError` for an unknown part.
    """
    for name, value, least in (("sample", sample, 0), ("seed", seed, 0), ("jobs", jobs, 1)):
        if value < least:
            raise InputError(f"`{name} = {value}`: must be at least {least}")
    cells, others = matching(only)
    return check_cells([*sample_of(sample, seed, cells), *others], jobs=jobs)
