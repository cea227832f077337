"""The pictures of the demo: attention between words, and positions; needs the extra `plots`."""

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from rich.console import Console
from torch import Tensor

from addnorm.data.examples import Pair
from addnorm.data.ids.framing import encode_for_task
from addnorm.generate import translate
from addnorm.inspect.capture import attention_weights
from addnorm.inspect.pictures import Lettering, Panel, attention_picture, position_picture
from addnorm.models import EncoderDecoderModel
from addnorm.nn.positions import sinusoidal_encoding
from addnorm.runs.run import Run


def warn_of_fonts(texts: Sequence[str], console: Console) -> None:
    """Warn before training if the plots need fonts that are missing, and suggest them."""
    if lacking := sorted(Lettering.of(texts).missing):
        console.print(
            f"No installed font draws {' '.join(lacking[:5])}: the pictures will show code points "
            "instead. A font to install is fonts-noto-cjk (Debian, Ubuntu) or "
            "google-noto-sans-cjk-fonts (Fedora)."
        )


def draw(run: Run, pairs: list[Pair], out: Path) -> list[Path]:
    """Plot cross-attention and position encodings; return the files, in the run folder."""
    panels = [word_attention(run, pair.source) for pair in pairs]
    files = [out / "attention.png", out / "positions.png"]
    attention_picture(panels, files[0], "Where each produced word looked", columns=2)
    table = sinusoidal_encoding(torch.arange(64), run.recipe.model.d_model)
    position_picture(table, files[1], "Sinusoidal positions")
    return files


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
    """Group tokens into words with token indices; a token with a leading space begins a word.

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
    """Word-level weights: the sum over a word's source tokens, averaged over target tokens."""
    by_row = torch.stack([weights[places].mean(0) for places in rows])
    return torch.stack([by_row[:, places].sum(1) for places in columns], dim=1)
