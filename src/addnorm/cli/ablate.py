"""`addnorm ablate`: variants of a recipe with several seeds, compared with intervals."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from addnorm.cli.fields import fields_given
from addnorm.cli.main import NewPlace
from addnorm.cli.where import Imports, import_named
from addnorm.errors import InputError
from addnorm.files import read_toml
from addnorm.lab import check_packages
from addnorm.lab.studies.options import DEFAULTS, StudyOptions

Varying = Annotated[list[str] | None, Parameter(negative="", consume_multiple=False)]
Options = Annotated[
    StudyOptions, Parameter(name="*", negative="", show_default=lambda v: v or None)
]


def ablate(
    recipe: Path,
    *overrides: Annotated[str, Parameter(allow_leading_hyphen=True)],
    vary: Varying = None,
    out: NewPlace | None = None,
    options: Options = DEFAULTS,
    dry_run: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    imports: Imports = (),
) -> None:
    """Train variants of a recipe with several seeds each, and say which is better, if any.

    Every combination of the values that vary is compared with the first one, seed by seed: the mean
    difference with its 95 % interval, the effect, a p-value corrected for all comparisons, or
    "undecided" and the number of seeds that would decide it. The same command resumes a study that
    was stopped. Example: `addnorm ablate my.toml --vary model.norm=layernorm,rmsnorm --seeds 5`.

    Parameters
    ----------
    recipe
        The TOML file that varies.
    overrides
        Fields to replace in all variants, as `--table.field value`.
    vary
        A field and its values, written as in a recipe: `model.position=rotary,alibi`. May be given
        again, for every combination.
    out
        The study's folder; by default `studies/` and the recipe's name.
    dry_run
        Only print the variants, what they cost and the time to expect.
    """
    fields = fields_given(overrides)
    import_named(imports)
    if recipe.is_dir():
        raise InputError(f"{recipe}: a folder: ablate takes a recipe, and --out {recipe}")
    read_toml(recipe)
    check_packages("`addnorm ablate`")
    from addnorm.cli.terminal import console
    from addnorm.lab.studies.ablation import ablate_recipe
    from addnorm.lab.studies.variants import read_vary

    files = ablate_recipe(
        recipe,
        out or Path("studies") / recipe.stem,
        read_vary(vary or []),
        options,
        console,
        dry_run=dry_run,
        imports=imports,
        overrides=fields,
    )
    for file in files:
        console.out(str(file), highlight=False)
