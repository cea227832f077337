"""The demo: a translator for dates and numbers, trained from nothing in about a minute and used."""

import shutil
from importlib.resources import as_file, files
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from addnorm.data.examples import Pair
from addnorm.demo.words import words_looked_at
from addnorm.inspect.pictures import attention_picture, position_picture
from addnorm.nn.positions import sinusoidal_encoding
from addnorm.runs.evaluation import evaluate_run
from addnorm.runs.folder import Run
from addnorm.runs.recipe import read_recipe
from addnorm.runs.training import train_run
from addnorm.runs.use import write

SHOWN = 6
"""How many translations are printed and drawn."""


def demo(to: str, out: Path, console: Console) -> float:
    """Train, score, translate and draw; return the percentage of exact translations.

    Everything goes into the run folder `out`, whose earlier demo is replaced. Raises `InputError`
    for a language that Babel does not know.
    """
    with as_file(files("addnorm.demo") / "recipe.toml") as file:
        recipe = read_recipe(file, {"data.to": f'"{to}"'})
    recipe.data.load()  # an unknown language stops here, with the earlier demo untouched
    shutil.rmtree(out, ignore_errors=True)
    console.print(f"Learning to translate English dates and numbers to {to!r} …")
    run = train_run(recipe, out, resume=False, console=console)
    scores = evaluate_run(run, "test")
    console.print(
        f"\n[bold]{scores['exact']:.1f} % of {scores['examples']:,} sentences it never saw are "
        "translated exactly.[/bold]\n"
    )
    pairs = [e for e in recipe.data.load().test if isinstance(e, Pair)]
    longest = sorted(pairs[:200], key=lambda pair: -len(pair.source))[: SHOWN * 4 : 4]
    console.print(translations(run, longest))
    draw(run, longest, console)
    console.print(f"""
The run is in {out}. What next?
  echo "Friday, November 20, 2026" | addnorm generate {out}
  addnorm demo --to zh            another language: fr, es, ja, ru, ar …
  addnorm info {out}       what the model is made of

Your own data: two files with a sentence a line, and a copy of the recipe that this run used:
  addnorm train my-recipe.toml    with kind = "parallel", train = ["my.en", "my.de"]
The folder recipes/ has recipes for translation, language models, classification and tagging.""")
    return scores["exact"]


def translations(run: Run, pairs: list[Pair]) -> Table:
    """A table of sentences and what the run makes of them."""
    table = Table("English", "translation", "")
    said = write(run, [pair.source for pair in pairs], run.recipe.eval.decoding)
    for pair, [best, *_] in zip(pairs, said, strict=True):
        right = best.text == pair.target
        table.add_row(pair.source, best.text, "✓" if right else f"✗ {pair.target}")
    return table


def draw(run: Run, pairs: list[Pair], console: Console) -> None:
    """Draw where each produced word looked, and the position encoding, into the run folder."""
    panels = [words_looked_at(run, pair.source) for pair in pairs]
    attention_picture(
        panels, run.folder / "attention.png", "Where each produced word looked", columns=2
    )
    table = sinusoidal_encoding(torch.arange(64), run.recipe.model.d_model)
    position_picture(table, run.folder / "positions.png", "Sinusoidal positions")
    console.print(f"\nPictures: {run.folder / 'attention.png'} · {run.folder / 'positions.png'}")
