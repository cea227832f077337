"""`addnorm merge`: merge an adapter into its base, which gives one plain model."""

from pathlib import Path

from addnorm.cli.main import NewPlace
from addnorm.cli.where import ON_CPU, Imports, import_named, working
from addnorm.errors import InputError


def merge(run: Path, *, out: NewPlace, imports: Imports = ()) -> None:
    """Add a low-rank adapter to the weights of its base: one plain model.

    Every command opens an adapter's folder as it is, as long as its base is there; the folder that
    is written needs no base.
    Example: `addnorm merge runs/tuned --out runs/whole`.

    Parameters
    ----------
    run
        A run folder of `train.adapter`, or an adapter's folder of PEFT's.
    out
        The run folder to write.
    """
    import_named(imports)
    opened = ON_CPU.open(run)
    from addnorm.cli.terminal import console
    from addnorm.convert.weights.peft import is_adapter

    if not is_adapter(run):
        raise InputError(f"{run}: no adapter, but a whole model: there is nothing to merge")
    with working("writing the model"):
        opened.save(out)
    console.out(f"{out}: the weights of the base with the adapter's changes", highlight=False)
