"""Zero-shot classification by an entailment model: classes that were not learnt.

Each label makes a hypothesis, such as "This example is politics."; the label of a text is the one
whose hypothesis follows most from it (Yin et al. 2019, §5): `softmax over labels of z_entailment`,
as in the pipeline of `transformers`.
"""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from addnorm.errors import InputError
from addnorm.runs.inference.results import Classified, TextPair

HYPOTHESIS = "This example is {}."
"""The sentence that a label is put in."""


def check_labels(labels: Sequence[str], hypothesis: str) -> None:
    """Raise `InputError` for labels that are fewer than two, duplicate or empty."""
    if len(labels) < 2 or len(set(labels)) < len(labels):
        raise InputError(f"`labels = {[*labels]}`: give at least two, each once")
    if not all(label.strip() for label in labels):
        raise InputError(f"`labels = {[*labels]}`: one of them is empty")
    if "{}" not in hypothesis:
        raise InputError(f"`hypothesis = {hypothesis!r}`: it needs a {{}}, where the label stands")


def premises_and_hypotheses(
    texts: Sequence[str] | Sequence[TextPair], labels: Sequence[str], hypothesis: str
) -> list[TextPair]:
    """Pair each text with the hypothesis of each label, text by text.

    Raises `InputError` for pairs of texts, and as `check_labels` does.
    """
    check_labels(labels, hypothesis)
    pairs: list[TextPair] = []
    for text in texts:
        if not isinstance(text, str):
            raise InputError("a text is compared with `labels`: give no pairs")
        pairs += [(text, hypothesis.replace("{}", label)) for label in labels]
    return pairs


def entailment_of(name: str, labels: Sequence[str]) -> int:
    """The index of the label "entailment". Raises `InputError` for a model without it."""
    columns = [i for i, label in enumerate(labels) if label.lower().startswith("entail")]
    if not columns:
        raise InputError(
            f"{name}: `labels` need an entailment model, which has a label 'entailment'; this "
            f"one has {', '.join(labels)}"
        )
    return columns[0]


def classified_by(entailment: Float[Tensor, " pairs"], labels: Sequence[str]) -> list[Classified]:
    """The label of each text, from the logits of entailment of each hypothesis."""
    rows = entailment.view(-1, len(labels)).softmax(-1).tolist()  # pyright: ignore[reportUnknownMemberType]
    return [Classified.of(labels, row) for row in rows]
