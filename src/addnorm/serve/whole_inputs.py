"""The computations for whole inputs: vectors, classes, tags, rows, translations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from addnorm.data.ids.framing import unframed
from addnorm.data.tokenizing.sides import around, start_of_prompts
from addnorm.data.tokenizing.word_splitting import words_between_spaces
from addnorm.errors import InputError, TextError, choices
from addnorm.models import DecoderModel
from addnorm.runs.inference.predictions import as_json
from addnorm.runs.inference.results import Sentence
from addnorm.runs.inference.text import embed
from addnorm.runs.run import Run
from addnorm.tasks.regression import Regression

Options = Mapping[str, Any]


def embeddings(run: Run, inputs: Sequence[Any], options: Options) -> list[list[float]]:
    """A vector for each input, given as text or as ids.

    Raises `TextError` for ids beyond the vocabulary.
    """
    size = run.tokenizers.source.vocab_size
    for ids in (each for each in inputs if not isinstance(each, str)):
        if wrong := [i for i in ids if not 0 <= i < size]:
            raise TextError(
                f"input: the id {wrong[0]} is beyond the vocabulary of {size:,}: ids of another "
                "tokenizer, such as those that LangChain sends unless "
                "check_embedding_ctx_length=False"
            )
    return embed(run, inputs, **options).tolist()


def classify(run: Run, inputs: Sequence[Any], options: Options) -> list[dict[str, Any]]:
    """The classes of each text or pair with their probabilities; or its numbers."""
    given: Any = [each if isinstance(each, str) else tuple(each) for each in inputs]
    if isinstance(run.task_value, Regression):
        rows = run.predict(given).tolist()
        return [{"numbers": dict(zip(run.labels, row, strict=True))} for row in rows]
    return [asdict(result) for result in run.classify(given, **options)]


def tag(run: Run, inputs: Sequence[Any], options: Options) -> list[dict[str, Any]]:
    """The words of each sentence with their tags."""
    sentences: list[Sentence] = [
        words_between_spaces(x) if isinstance(x, str) else [*x] for x in inputs
    ]
    tags = run.tag(sentences, **options)
    return [{"tokens": words, "tags": row} for words, row in zip(sentences, tags, strict=True)]


def predict(run: Run, inputs: Sequence[Any], options: Options) -> list[dict[str, Any]]:
    """The result of the run's task for each row."""
    return [as_json(result) for result in run.predict([*inputs], **options)]


def translate(run: Run, inputs: Sequence[Any], options: Options) -> list[list[dict[str, Any]]]:
    """The best translations of each text with their scores; an empty text has an empty one."""
    texts = [text for text in inputs if text.strip()]
    written = iter(run.write(texts, **options) if texts else ())
    return [
        [{"text": x.text, "score": x.score, "finished": x.finished} for x in next(written)]
        if text.strip()
        else [{"text": "", "score": 0.0, "finished": "eos"}]
        for text in inputs
    ]


ENDPOINTS: Mapping[str, Callable[[Run, Sequence[Any], Options], list[Any]]] = {
    "/v1/embeddings": embeddings,
    "/classify": classify,
    "/tag": tag,
    "/predict": predict,
    "/translate": translate,
}
"""What computes the outputs of each endpoint."""


def outputs_for(
    run: Run, endpoint: str, inputs: Sequence[Any], options: Options
) -> tuple[list[Any], int]:
    """The outputs for inputs, and the number of tokens read.

    Raises `InputError` for an input that the model cannot read, or an endpoint that does not exist.
    """
    if endpoint not in ENDPOINTS:
        raise InputError(f"no endpoint {endpoint}.{choices(endpoint, ENDPOINTS)}")
    return ENDPOINTS[endpoint](run, inputs, options), token_counts(run, inputs)[0]


def token_counts(run: Run, inputs: Sequence[Any]) -> tuple[int, int]:
    """The number of tokens in the inputs, including special ones, and how many are unknown.

    Ids count as they are.
    """
    if run.text is None:
        return 0, 0
    before, after = around(run.task, run.tokenizers.source)
    if isinstance(run.model, DecoderModel):
        before = start_of_prompts(run.tokenizers.source)
    special = len(before) + len(after)
    words = [each for each in inputs if isinstance(each, list | tuple) and not _are_ids(each)]
    texts = [*(each for each in inputs if isinstance(each, str)), *map(" ".join, words)]
    ids = [
        unframed(each, before, after)
        for each in inputs
        if isinstance(each, list | tuple) and _are_ids(each)
    ]
    rows = [*run.tokenizers.source.encode_batch(texts), *ids]
    n_unknown = sum(run.tokenizers.source.count_unknown(row) for row in rows)
    return sum(len(row) + special for row in rows), n_unknown


def _are_ids(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int) for value in values)
