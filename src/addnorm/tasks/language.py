"""Language modelling: the next token of texts and conversations."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from addnorm.data import Corpus
from addnorm.data.batches.buckets import Buckets
from addnorm.data.examples import Chat, Text
from addnorm.data.ids.answers import ids_and_answers
from addnorm.data.ids.compact import IGNORE, Compact, Encoded
from addnorm.data.ids.encoding import EncodedCorpus, encode_texts
from addnorm.data.ids.layout import NextToken
from addnorm.data.tokenizing.pieces import Advance, Ids
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.metrics import scores as metrics
from addnorm.models import Model
from addnorm.tasks.task import Evaluation, EvaluationSplit, Outputs, Task


class Language(Task):
    """`p(token | tokens before)` of a decoder; its loss is also reported as perplexity."""

    name = "language"
    model = "model.kind = 'decoder'"
    metrics = ("loss",)
    call = "run.generate(texts)"
    endpoint = "/v1/completions"
    page = "continue"
    target_unit = "tokens"
    examples = (Text, Chat)
    layout = NextToken()
    plain_texts = True
    classes = True
    writes_text = True
    decodes = True
    exits_early = True
    predicts_lines = False

    def encode(
        self, examples: Sequence[Any], tokenizers: Tokenizers | None, numbers: Mapping[str, int]
    ) -> Iterator[Encoded]:
        """Encode conversations, in which only the answers are learnt."""
        assert tokenizers is not None
        for n, example in enumerate(examples):
            ids, answered = ids_and_answers(tokenizers.source, example)
            targets = [
                i if is_answer else IGNORE for i, is_answer in zip(ids, answered, strict=True)
            ]
            yield Encoded(n, ids[:-1], targets[1:])

    def encode_corpus(
        self,
        corpus: Corpus,
        tokenizers: Tokenizers | None,
        numbers: Mapping[str, int],
        advance: Advance,
    ) -> EncodedCorpus:
        """Encode plain texts in one stream, or conversations one by one."""
        if corpus.kind is Chat:
            return super().encode_corpus(corpus, tokenizers, numbers, advance)
        assert tokenizers is not None
        return encode_texts(corpus, tokenizers, self.layout, advance)

    def score(
        self, outputs: Outputs, split: EvaluationSplit, model: Model, n_written: int | None
    ) -> Evaluation:
        """Return the perplexity, and for plain texts the bits per character."""
        scores = {"perplexity": metrics.perplexity(outputs.loss)}
        if split.characters is not None:
            n_characters = _n_characters(split, split.characters)
            scores["bits_per_character"] = metrics.bits_per_character(
                outputs.total_loss, n_characters
            )
        return Evaluation(scores)


def _n_characters(split: EvaluationSplit, characters: Ids) -> int:
    """Return the number of predicted characters; for shortened texts, of what remains."""
    if isinstance(split.loader, Buckets):
        return sum(_n_characters_of(example, split, characters) for example in split.encoded)
    places = split.encoded.places if isinstance(split.encoded, Compact) else None
    return int((characters if places is None else characters[places]).sum())


def _n_characters_of(example: Encoded, split: EvaluationSplit, characters: Ids) -> int:
    assert split.tokenizers is not None
    tokenizer = split.tokenizers.source
    shortened = example.targets[-1] != tokenizer.end_id
    return len(tokenizer.decode(example.targets)) if shortened else int(characters[example.index])
