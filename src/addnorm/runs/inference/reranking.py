"""Reranking: a language model judges a query and a document by its logits of "yes" and "no".

`z = z_yes - z_no` after the prompt that the folder's chat template writes of both, whose roles are
"query" and "document"; `σ(z)` is the probability of "yes" (Zhang et al. 2025, Qwen3 Embedding,
§2.2). The tokens are those of the module `LogitScore` of sentence-transformers where there is one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from addnorm.convert.core.modules import FILE, find_file, modules_of
from addnorm.convert.core.settings import Settings
from addnorm.data.conversation import Message, render
from addnorm.data.ids.answers import prompt_ids, template_names
from addnorm.data.ids.framing import Read, encode_pairs
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError
from addnorm.models import DecoderModel, EncoderModel
from addnorm.nn.functional import at_least_float32
from addnorm.nn.pooling import last_token
from addnorm.runs.inference.results import TextPair
from addnorm.runs.recipes.chat_template import chat_template
from addnorm.runs.trained_model import TrainedModel

PROMPTS = "config_sentence_transformers.json"
ROLES = ("query", "document")
MARKS = ("ADDNORM QUERY", "ADDNORM DOCUMENT")
"""Texts by which a template shows that it writes both roles."""


@dataclass(frozen=True)
class PairTemplate:
    """How a folder's chat template writes a query and a document as one text."""

    template: str
    instruction: str | None
    """The message of the system before each pair."""

    @classmethod
    def of(cls, run: TrainedModel) -> "PairTemplate | None":
        """The pair template of a decoder's folder; None if its chat template takes no pair."""
        reads_back = isinstance(run.model, DecoderModel) or (
            isinstance(run.model, EncoderModel) and run.model.causal
        )
        if not reads_back or run.chats or run.text is None:
            return None
        template = chat_template(*run.places)
        if template is None or not _writes_pairs(template, run.tokenizers.source):
            return None
        return cls(template, _instruction(run))

    def encode(self, tokenizer: Tokenizer, pairs: Sequence[TextPair]) -> list[list[int]]:
        """The ids of the text of each pair."""
        return [
            prompt_ids(tokenizer, self._messages(pair), self.template, dated=True) for pair in pairs
        ]

    def _messages(self, pair: TextPair) -> list[Message]:
        system = [] if self.instruction is None else [("system", self.instruction)]
        given = [*system, *zip(ROLES, pair, strict=True)]
        return [{"role": role, "content": text} for role, text in given]


def read_pairs(run: TrainedModel, pairs: Sequence[TextPair]) -> list[Read]:
    """The ids of pairs to classify: by the folder's template, or else by its tokenizer."""
    tokenizer = run.tokenizers.source
    template = PairTemplate.of(run) if pairs else None
    if template is None:
        return encode_pairs(tokenizer, pairs)
    return [*map(Read, template.encode(tokenizer, pairs))]


@dataclass(frozen=True)
class Judge:
    """How a language model judges pairs: the template of a pair, and the tokens of its answers."""

    pairs: PairTemplate
    yes: int
    """The token whose logit is the score."""
    no: int | None
    """The token whose logit is taken from it."""

    @classmethod
    def of(cls, run: TrainedModel) -> "Judge | None":
        """The judge of a run; None unless it is a language model with a pair template."""
        pairs = PairTemplate.of(run) if isinstance(run.model, DecoderModel) else None
        return None if pairs is None else cls(pairs, *_tokens(run))

    def checked(self, name: str, texts: Sequence[str] | Sequence[TextPair]) -> list[TextPair]:
        """Return the inputs as pairs. Raises `InputError` for a single text."""
        pairs = [pair for pair in texts if not isinstance(pair, str)]
        if len(pairs) < len(texts):
            raise InputError(f"{name}: this model judges a document by a query: give pairs of them")
        return pairs

    def scores(
        self, model: DecoderModel, tokens: Int[Tensor, "rows seq"], valid: Bool[Tensor, "rows seq"]
    ) -> Float[Tensor, "rows 1"]:
        """`z_yes - z_no` of each prompt."""
        x, ctx = model.hidden(tokens, valid)
        last = last_token(x, valid[..., None])[:, None]
        logits = at_least_float32(model.head(last, ctx)[:, 0])
        yes = logits[:, self.yes, None]
        return yes if self.no is None else yes - logits[:, self.no, None]


def _writes_pairs(template: str, tokenizer: Tokenizer) -> bool:
    messages = [{"role": r, "content": mark} for r, mark in zip(ROLES, MARKS, strict=True)]
    try:
        text = render(messages, template, "chat", template_names(tokenizer), prompt=True)
    except InputError:  # a template that knows no other roles than those of a chat
        return False
    return all(mark in text for mark in MARKS)


def _tokens(run: TrainedModel) -> tuple[int, int | None]:
    """The tokens of "yes" and "no", or those that the folder's modules name instead."""
    if (file := find_file(run.places, FILE)) is not None:
        for module in modules_of(file.parent):
            if module.kind == "LogitScore":
                settings = Settings.of(module.path)
                no = settings.tree.get("false_token_id")
                return settings.get("true_token_id", -1), None if no is None else int(no)
    tokenizer = run.tokenizers.source
    ids = {word: tokenizer.encode(word) for word in ("yes", "no")}
    for word, encoded in ids.items():
        if len(encoded) != 1:
            raise InputError(
                f"{run.name}: a pair is judged by the logits of 'yes' and 'no', and {word!r} is "
                f"{len(encoded)} tokens of its tokenizer"
            )
    return ids["yes"][0], ids["no"][0]


def _instruction(run: TrainedModel) -> str | None:
    """The folder's default prompt, which is put before each pair."""
    if (file := find_file(run.places, PROMPTS)) is None:
        return None
    settings = Settings.of(file.parent, file.name)
    prompts, name = settings.table("prompts"), settings.tree.get("default_prompt_name")
    text = None if prompts is None or name is None else prompts.tree.get(name)
    return text if isinstance(text, str) and text else None
