"""The demo: train a translator for dates and numbers in about a minute, and use it."""

import os
import shutil
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.resources import as_file, files
from pathlib import Path
from types import ModuleType

from rich.console import Console

from addnorm.data.examples import Pair
from addnorm.data.readers.dates import DatesConfig
from addnorm.errors import InputError
from addnorm.languages import locale_called
from addnorm.runs.evaluation import evaluate_run
from addnorm.runs.files.folder import read_settings
from addnorm.runs.files.lock import LOCK, locked
from addnorm.runs.inference.text import write
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.train.train_run import train_run
from addnorm.tuning.provider import check_choices


def demo(to: str, out: Path, console: Console) -> float:
    """Train, evaluate, translate and plot; return the percentage of exact translations.

    All files go to the run folder `out`, replacing an earlier demo. Raises `InputError` for a
    language unknown to Babel, for a folder with other content, and for a wrong `$ADDNORM_KERNELS`.
    """
    with as_file(files("addnorm.demo") / "recipe.toml") as file:
        recipe = read_recipe(file, {"data.to": f'"{to}"'})
        text = file.read_text(encoding="utf-8")
    check_choices()  # an error here comes before anything is removed
    corpus = recipe.corpus()
    pictures, reason = pictures_or_reason()
    with locked(out):
        clear(out)
        if pictures is not None:
            pictures.warn_of_fonts([p.target for p in corpus.test if isinstance(p, Pair)], console)
        language = locale_called(to).english_name
        console.print(f"Learning to translate English dates and numbers into {language} …")
        run = train_run(recipe, out, resume=False, console=console)
    (out / "recipe.toml").write_text(text.replace('to = "de"', f'to = "{to}"'), encoding="utf-8")
    scores = evaluate_run(run, "test")
    console.print(
        f"\n[bold]{scores['exact']:.1f} % of {scores['examples']:,} sentences it never saw are "
        "translated exactly.[/bold]\n"
    )
    shown = varied([e for e in corpus.test if isinstance(e, Pair)])
    for pair, [best, *_] in zip(
        shown, write(run, [p.source for p in shown], recipe.eval.decoding), strict=True
    ):
        mark = "✓" if best.text == pair.target else f"✗ ({pair.target})"
        console.print(f"  {pair.source}\n    → {best.text} {mark}")
    console.print()
    if pictures is None:
        console.out(reason, highlight=False)
    else:
        console.print(f"Pictures: {' · '.join(map(str, pictures.draw(run, shown, out)))}")
    console.print(f"""
The run is in {out}. What next?{activation()}
  echo "Friday, November 20, 2026" | addnorm generate {out}
  addnorm info {out}
  addnorm demo --to zh        another language: fr, es, ja, ru, ar …

Your own sentences, a line each in two files: put this into {out / "recipe.toml"}
  \\[data]
  kind = "parallel"
  train = ["my.en", "my.{to}"]
  valid_fraction = 0.1
and run
  addnorm train {out / "recipe.toml"} --out runs/my
Recipes for language models, classification and tagging are in the project's folder recipes/.""")
    return scores["exact"]


def pictures_or_reason() -> tuple[ModuleType | None, str]:
    """The module that draws, or None and how to install what it needs."""
    try:
        return import_module("addnorm.demo.drawing"), ""
    except InputError as error:
        return None, str(error)


def activation() -> str:
    """The line that lets the shell find `addnorm`, where it does not, as after `make demo`."""
    script = Path(sys.prefix) / "bin" / "activate"
    if shutil.which("addnorm") or not script.is_file():
        return ""
    return f"\n  source {os.path.relpath(script)}"


def clear(out: Path) -> None:
    """Remove the files of an earlier demo. Raises `InputError` for a folder with other content."""
    files = [file for file in out.glob("*") if file.name != LOCK]
    if not files:
        return
    if not (out / "config.json").exists() or not isinstance(
        read_settings(out).recipe.data, DatesConfig
    ):
        raise InputError(f"{out}: holds something other than an earlier demo: choose another `out`")
    for file in files:
        shutil.rmtree(file) if file.is_dir() else file.unlink()


def varied(pairs: Sequence[Pair]) -> list[Pair]:
    """A few varied sentences: dates with a weekday, dates with a time, and numbers."""
    dates = [p for p in pairs if p.source.endswith("M") and "," in p.source]
    weekdays = [p for p in pairs if "day, " in p.source and not p.source.endswith("M")]
    numbers = [p for p in pairs if not any(c.isdigit() for c in p.source)]
    return [*weekdays[:3], *dates[:2], *numbers[:1]]
