"""The encoder-only Transformer: every token sees every other (BERT); three heads."""

from typing import Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from addnorm.config import config
from addnorm.models.shape import Shape
from addnorm.nn.blocks import Stack
from addnorm.nn.context import Context
from addnorm.nn.embed import Embedding
from addnorm.nn.heads import HeadConfig, TokenHead, TokenHeadConfig
from addnorm.nn.init import initialise
from addnorm.nn.masks import Full


class EncoderModel(nn.Module):
    """`head(stack(embed(tokens)))` without a causal mask (Devlin et al. 2019, §3)."""

    def __init__(self, embed: Embedding, stack: Stack, head: nn.Module) -> None:
        super().__init__()
        self.embed = embed
        self.stack = stack
        self.head = head

    def forward(
        self,
        tokens: Int[Tensor, "batch seq"],
        valid: Bool[Tensor, "batch seq"] | None = None,
    ) -> Float[Tensor, "batch *outputs"]:
        """Logits: `batch classes` from a classification head, else `batch seq outputs`."""
        ctx = Context.over(tokens, Full(), valid=valid)
        return self.head(self.stack(self.embed(tokens, ctx), ctx), ctx)


@config
class EncoderConfig(Shape):
    """An encoder-only model with the head of its task."""

    kind: Literal["encoder"] = "encoder"
    head: HeadConfig = TokenHeadConfig()

    def build(self, vocab_size: int, n_labels: int | None = None) -> EncoderModel:
        """The model; `n_labels` is the number of classes or tags, and unused by a token head."""
        position = self.build_position()
        embed = self.build_embedding(vocab_size, position)
        tokens = isinstance(self.head, TokenHeadConfig)
        if not tokens and n_labels is None:
            raise ValueError(f"a {self.head.kind} head needs n_labels")
        head = self.head.build(self.d_model, vocab_size if tokens else n_labels or 0)
        model = EncoderModel(embed, self.build_stack(position), head)
        initialise(model, self.init)
        if isinstance(head, TokenHead) and self.head == TokenHeadConfig(tied=True):
            head.tie(embed.tokens)
        return model
