"""Cross-attention between words, aggregated over subword tokens."""

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.data.ids.framing import as_read
from addnorm.generate import translate
from addnorm.inspect.capture import attention_weights
from addnorm.inspect.pictures import Panel
from addnorm.models import EncoderDecoderModel
from addnorm.runs.run import Run


@torch.inference_mode()
def words_looked_at(run: Run, source: str) -> Panel:
    """The word-level cross-attention of a translation, averaged over layers and heads."""
    model, tokenizers = run.model, run.tokenizers
    assert isinstance(model, EncoderDecoderModel)
    [read] = as_read("translation", tokenizers.source, [source])
    [[best, *_]] = translate(model, [read], run.recipe.eval.decoding)
    written = [tokenizers.target.bos_id, *best.ids]
    with attention_weights(model) as caught:
        model(torch.tensor([read]), torch.tensor([written]))
    cross = [weights for name, weights in caught.items() if name.endswith("cross_attention")]
    weights = torch.stack(cross).mean((0, 2))[0, : len(best.ids)]
    read_words = words_of(tokenizers.source.pieces(read[:-1]))
    written_words = words_of(tokenizers.target.pieces(best.ids))
    return Panel(
        weights=gathered(weights, [at for _, at in written_words], [at for _, at in read_words]),
        source=[word for word, _ in read_words],
        target=[word for word, _ in written_words],
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
