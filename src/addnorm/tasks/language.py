"""Language modelling: the next token of texts and conversations."""

from addnorm.data.batches.buckets import Buckets
from addnorm.data.ids.compact import Compact, Encoded
from addnorm.data.tokenizing.pieces import Ids
from addnorm.metrics import scores as metrics
from addnorm.models import Model
from addnorm.tasks.task import Evaluation, EvaluationSplit, Outputs, Task


class Language(Task):
    """`p(token | tokens before)` of a decoder; its loss is also told as perplexity."""

    name = "language"
    model = "model.kind = 'decoder'"
    metrics = ("loss",)
    command = "addnorm generate"
    plain_texts = True
    exits_early = True

    def score(
        self, outputs: Outputs, split: EvaluationSplit, model: Model, n_written: int | None
    ) -> Evaluation:
        """The perplexity, and of plain texts the bits for each character."""
        scores = {"perplexity": metrics.perplexity(outputs.loss)}
        if split.characters is not None:
            n_characters = _n_characters(split, split.characters)
            scores["bits_per_character"] = metrics.bits_per_character(
                outputs.total_loss, n_characters
            )
        return Evaluation(scores)


def _n_characters(split: EvaluationSplit, characters: Ids) -> int:
    """How many characters were predicted: of shortened texts, those that are left."""
    if isinstance(split.loader, Buckets):
        return sum(_n_characters_of(example, split, characters) for example in split.encoded)
    places = split.encoded.places if isinstance(split.encoded, Compact) else None
    return int((characters if places is None else characters[places]).sum())


def _n_characters_of(example: Encoded, split: EvaluationSplit, characters: Ids) -> int:
    assert split.tokenizers is not None
    tokenizer = split.tokenizers.source
    shortened = example.targets[-1] != tokenizer.end_id
    return len(tokenizer.decode(example.targets)) if shortened else int(characters[example.index])
