"""The options of one request: how tokens are chosen, when it ends, which scores it gets."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from addnorm.errors import InputError, check_choice

DECODINGS = ("greedy", "sample", "beam")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a request's tokens are chosen; None stands for the model's own decoding.

    Raises `InputError` for a number out of range; those of `SampleConfig` and `BeamConfig` are
    checked there.
    """

    decoding: Literal["greedy", "sample", "beam"] | None = None
    """The most probable token, a random one, or beam search."""
    temperature: float | None = None
    """Divides the logits before a token is drawn."""
    top_k: int | None = None
    """Draw from this number of most likely tokens."""
    top_p: float | None = None
    """Draw from the most likely tokens that together have this probability."""
    min_p: float | None = None
    """Draw from the tokens at least this share as likely as the likeliest."""
    seed: int | None = None
    """The seed of the random numbers; None draws one."""
    beams: int | None = None
    """The number of hypotheses of beam search."""
    n_best: int = 1
    """How many results of a beam search are returned, best first."""
    length_penalty: float | None = None
    """The exponent of the length penalty of beam search."""
    early_stopping: bool | Literal["never"] | None = None
    """When a beam search ends (see `BeamConfig`)."""
    no_repeat_ngram: int | None = None
    """No sequence of so many tokens is generated twice."""
    forced_bos: int | None = None
    """The token with which a translation begins."""
    repetition_penalty: float | None = None
    """Divides positive logits of tokens that are there already, and multiplies negative ones."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of the tokens that were generated."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of a token once for each time it was generated."""
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    """Added to the logits of these tokens."""
    min_tokens: int = 0
    """The fewest new tokens before an end."""
    ignore_eos: bool = False
    """Whether the model's own end tokens end nothing."""
    ends: tuple[int, ...] = ()
    """End tokens besides the model's own."""
    log_probs: int | None = None
    """Report the log-probability of each token, and this number of most probable ones."""
    grammar: str | None = None
    """What the answer must be, as llguidance has it in JSON."""
    grammar_field: str = "response_format"
    """The field of the request that asks for the grammar, which errors begin with."""
    prompt_log_probs: bool = False
    """Report the log-probabilities of the prompt's tokens too."""

    def __post_init__(self) -> None:
        if self.decoding is not None:
            check_choice("decoding", self.decoding, DECODINGS)
        for name, least, most in _RANGES:
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise InputError(
                    f"`{name} = {value}`: must be at least {least:g} and at most {most:g}"
                )
        for token, bias in self.logit_bias.items():
            if not -100 <= bias <= 100:
                raise InputError(
                    f"`logit_bias`: {bias} for token {token}: must be at least -100 and at most 100"
                )

    @property
    def unknown_to_search(self) -> list[str]:
        """The given options that beam search does not support."""
        return [name for name in _NOT_OF_SEARCH if getattr(self, name)]


_RANGES = (
    ("seed", 0, 2**63 - 1),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("min_tokens", 0, 2**31),
    ("log_probs", 0, 1024),
)
"""The options with a range that no configuration checks."""

_NOT_OF_SEARCH = (
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "log_probs",
    "prompt_log_probs",
    "grammar",
)
"""What only the choice of one token after another has."""
