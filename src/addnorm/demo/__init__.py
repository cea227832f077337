"""The demo: train a translator for dates and numbers in about a minute, and use it."""

import shutil
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

import torch
from jaxtyping import Float
from rich.console import Console
from torch import Tensor

from addnorm.data.examples import Pair
from addnorm.data.ids.framing import encode_for_task
from addnorm.data.readers.dates import DatesConfig
from addnorm.errors import InputError
from addnorm.generate import translate
from addnorm.inspect.capture import attention_weights
from addnorm.inspect.pictures import Lettering, Panel, attention_picture, position_picture
from addnorm.models import EncoderDecoderModel
from addnorm.nn.positions import sinusoidal_encoding
from addnorm.runs.evaluation import evaluate_run
from addnorm.runs.files.folder import read_settings
from addnorm.runs.files.lock import LOCK, locked
from addnorm.runs.inference.text import write
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.run import Run
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
    with locked(out):
        clear(out)
        warn_of_fonts([p.target for p in corpus.test if isinstance(p, Pair)], console)
        console.print(f"Learning to translate English dates and numbers to {to!r} …")
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
    draw(run, shown, out, console)
    console.print(f"""
The run is in {out}. What next?
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


def clear(out: Path) -> None:
    """Remove an earlier demo. Raises `InputError` for a folder with other content."""
    files = [file for file in out.glob("*") if file.name != LOCK]
    if not files:
        return
    if not (out / "config.json").exists() or not isinstance(
        read_settings(out).recipe.data, DatesConfig
    ):
        raise InputError(f"{out}: holds something other than an earlier demo: choose another `out`")
    for file in files:
        shutil.rmtree(file) if file.is_dir() else file.unlink()


def warn_of_fonts(texts: Sequence[str], console: Console) -> None:
    """Warn before training if fonts are missing for the plots, and suggest what to install."""
    if lacking := sorted(Lettering.of(texts).missing):
        console.print(
            f"No installed font draws {' '.join(lacking[:5])}: the pictures will show code points "
            "instead. A font to install is fonts-noto-cjk (Debian, Ubuntu) or "
            "google-noto-sans-cjk-fonts (Fedora)."
        )


def varied(pairs: Sequence[Pair]) -> list[Pair]:
    """A few different sentences: dates with a weekday, dates with a time, and numbers."""
    dates = [p for p in pairs if p.source.endswith("M") and "," in p.source]
    weekdays = [p for p in pairs if "day, " in p.source and not p.source.endswith("M")]
    numbers = [p for p in pairs if not any(c.isdigit() for c in p.source)]
    return [*weekdays[:3], *dates[:2], *numbers[:1]]


def draw(run: Run, pairs: list[Pair], out: Path, console: Console) -> None:
    """Plot cross-attention and position encodings to files in the run folder."""
    panels = [word_attention(run, pair.source) for pair in pairs]
    attention_picture(panels, out / "attention.png", "Where each produced word looked", columns=2)
    table = sinusoidal_encoding(torch.arange(64), run.recipe.model.d_model)
    position_picture(table, out / "positions.png", "Sinusoidal positions")
    console.print(f"\nPictures: {out / 'attention.png'} · {out / 'positions.png'}")


@torch.inference_mode()
def word_attention(run: Run, source: str) -> Panel:
    """The word-level cross-attention of a translation, averaged over layers and heads."""
    model, tokenizers = run.model, run.tokenizers
    assert isinstance(model, EncoderDecoderModel)
    [tokens] = encode_for_task("translation", tokenizers.source, [source])
    [[best, *_]] = translate(model, [tokens], run.recipe.eval.decoding)
    output = [tokenizers.target.bos_id, *best.ids]
    with attention_weights(model) as by_module:
        model(torch.tensor([tokens]), torch.tensor([output]))
    cross = [weights for name, weights in by_module.items() if name.endswith("cross_attention")]
    weights = torch.stack(cross).mean((0, 2))[0, : len(best.ids)]
    source_words = words_of(tokenizers.source.pieces(tokens[:-1]))
    target_words = words_of(tokenizers.target.pieces(best.ids))
    return Panel(
        weights=gathered(weights, [i for _, i in target_words], [i for _, i in source_words]),
        source=[word for word, _ in source_words],
        target=[word for word, _ in target_words],
    )


def words_of(pieces: list[str]) -> list[tuple[str, list[int]]]:
    """Group tokens into words with token indices: a token that begins with a space begins a word.

    In scripts without spaces, such as Chinese and Japanese, every token is a word.
    """
    unspaced = any("\u3040" <= char <= "\u9fff" for piece in pieces for char in piece)
    if unspaced or not any(piece.startswith(" ") for piece in pieces):
        return [(piece.strip() or piece, [i]) for i, piece in enumerate(pieces)]
    words: list[tuple[str, list[int]]] = []
    for i, piece in enumerate(pieces):
        if piece.startswith(" ") or not words:
            words.append((piece.strip(), [i]))
        else:
            word, places = words[-1]
            words[-1] = (word + piece, [*places, i])
    return words


def gathered(
    weights: Float[Tensor, "target source"], rows: list[list[int]], columns: list[list[int]]
) -> Float[Tensor, "target_words source_words"]:
    """Word-level weights: the mean over target tokens of the sum over source tokens."""
    by_row = torch.stack([weights[places].mean(0) for places in rows])
    return torch.stack([by_row[:, places].sum(1) for places in columns], dim=1)
