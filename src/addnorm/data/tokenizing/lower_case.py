"""Lower case, of texts and examples: labels and tags keep theirs."""

from dataclasses import replace

from addnorm.data.examples import (
    Chat,
    Clip,
    Corpus,
    Example,
    Image,
    Labelled,
    LabelledSeries,
    Pair,
    Scored,
    ScoredSeries,
    Series,
    Tagged,
)


def lower_case(text: str) -> str:
    """A text in lower case, each character by itself, as tokenizers of other libraries have it.

    Python's `lower` looks at the characters around one in a single case: a capital sigma at the end
    of a word, which here is a small one as within. A character may become two: `İ` is `i` and a
    dot above.
    """
    return text.replace("Σ", "σ").lower()


def lowered(example: Example) -> Example:
    """The example with its texts, but not its labels, in lower case."""
    match example:
        case Pair(source, target, others):
            return Pair(lower_case(source), lower_case(target), tuple(map(lower_case, others)))
        case Tagged(tokens, tags):
            return Tagged(tuple(map(lower_case, tokens)), tags)
        case Chat() | Image() | Clip() | Series() | LabelledSeries() | ScoredSeries():
            return example
        case Labelled(text, _, str(second)) | Scored(text, _, str(second)):
            return replace(example, text=lower_case(text), text_pair=lower_case(second))
        case _:
            return replace(example, text=lower_case(example.text))


def lowered_corpus(corpus: Corpus) -> Corpus:
    """The corpus with all of its texts in lower case."""
    if corpus.lowercase:
        return corpus
    splits = {split: [*map(lowered, some)] for split, some in corpus.splits.items()}
    return replace(corpus, **splits, lowercase=True)
