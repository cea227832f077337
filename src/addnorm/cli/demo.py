"""`addnorm demo`: train a small translator from scratch, and use it."""

from pathlib import Path

from addnorm.cli.main import NewPlace


def demo(*, to: str = "de", out: NewPlace | None = None) -> None:
    """Train a translator of dates and numbers in about a minute, then look at what it does.

    Needs no data, no network and no GPU. Example: `addnorm demo --to zh`.

    Parameters
    ----------
    to
        The language to translate to: de, zh, fr, es, ja, ru, ar, …
    out
        The run folder; by default `runs/demo-` and the language.
    """
    from addnorm.languages import locale_called

    locale_called(to)
    from addnorm.cli.terminal import console
    from addnorm.demo import demo as run_demo

    run_demo(to, out or Path("runs") / f"demo-{to}", console)
