"""Lower case."""


def lower_case(text: str) -> str:
    """A text in lower case, each character by itself, as tokenizers of other libraries have it.

    Python's `lower` looks at the characters around one in a single case: a capital sigma at the end
    of a word, which here is a small one as within. A character may become two: `İ` is `i` and a
    dot above.
    """
    return text.replace("Σ", "σ").lower()
