"""Lower case."""


def lower_case(text: str) -> str:
    """Return a text in lower case, character by character, as tokenizers of other libraries do.

    Python's `lower` depends on the context for one character, a capital sigma at the end of a word;
    here it becomes the usual small sigma. A character may become two: `İ` is `i` and a dot above.
    """
    return text.replace("Σ", "σ").lower()
