"""The decoder-only Transformer: each token predicts the next (GPT, LLaMA)."""

from collections.abc import Iterator
from typing import Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor

from addnorm.config import config
from addnorm.models.transformer import StackModel, TransformerConfig
from addnorm.nn.cache import KVCache
from addnorm.nn.context import Context
from addnorm.nn.embed import TokenEmbedding
from addnorm.nn.exits import check_exits, exit_logits, tie_exits
from addnorm.nn.heads import DecoderHeadConfig, TokenHeadConfig, build_head, tie_head
from addnorm.nn.init import initialise
from addnorm.nn.masks import Causal, Prefix
from addnorm.nn.residuals import Depth
from addnorm.parts import check_conflicts


class DecoderModel(StackModel):
    """`head(stack(embed(tokens)))` under the causal mask (Radford et al. 2018, eq. 2)."""

    embed: TokenEmbedding

    def forward(
        self,
        tokens: Int[Tensor, "batch seq"],
        valid: Bool[Tensor, "batch kv_seq"] | None = None,
        segments: Int[Tensor, "batch kv_seq"] | None = None,
        cache: KVCache | None = None,
        prefix: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch seq vocab"]:
        """Next-token logits.

        With a `cache`, `tokens` holds only the new tokens; `valid` and `segments` cover the cached
        ones too. All tokens of a row may attend to its first `prefix` tokens (prefix-LM).
        """
        return self.head(*self.hidden(tokens, valid, segments, cache, prefix))

    def hidden(
        self,
        tokens: Int[Tensor, "batch seq"],
        valid: Bool[Tensor, "batch kv_seq"] | None = None,
        segments: Int[Tensor, "batch kv_seq"] | None = None,
        cache: KVCache | None = None,
        prefix: Int[Tensor, " batch"] | None = None,
    ) -> tuple[Float[Tensor, "batch seq d_model"], Context]:
        """The final hidden states and their context: the inputs of the head."""
        past = 0 if cache is None else cache.length
        mask = Causal() if prefix is None else Prefix(prefix)
        ctx = Context.over(tokens, mask, valid=valid, segments=segments, past=past)
        x = self.embed(tokens, ctx)
        return self.stack(x, ctx, cache), ctx

    def logits_of(
        self,
        positions: slice,
        tokens: Int[Tensor, "batch seq"],
        valid: Bool[Tensor, "batch kv_seq"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "batch chosen vocab"]:
        """The logits at some of the new positions only, which saves memory for long prompts."""
        x, ctx = self.hidden(tokens, valid, cache=cache)
        return self.head(x[:, positions], ctx)

    def next_token_logits(
        self,
        tokens: Int[Tensor, "batch seq"],
        valid: Bool[Tensor, "batch kv_seq"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        """The logits of the next token only."""
        return self.logits_of(slice(-1, None), tokens, valid, cache)[:, -1]

    def exit_logits(
        self,
        tokens: Int[Tensor, "batch seq"],
        valid: Bool[Tensor, "batch seq"] | None = None,
        segments: Int[Tensor, "batch seq"] | None = None,
    ) -> Iterator[Float[Tensor, "batch seq vocab"]]:
        """Yield the logits of each early exit, then of the last layer; layers are run lazily."""
        ctx = Context.over(tokens, Causal(), valid=valid, segments=segments)
        return exit_logits(self.stack, self.exits, self.head, self.embed(tokens, ctx), ctx)

    def new_cache(self) -> KVCache:
        """An empty cache for this model."""
        return self.stack.new_cache()

    def new_memory(self, size: int) -> KVCache:
        """An empty Transformer-XL memory of the last `size` tokens."""
        return self.stack.new_memory(size)


@config
class DecoderConfig(TransformerConfig):
    """A decoder-only model; `head.tied` shares the embedding table."""

    kind: Literal["decoder"] = "decoder"
    head: DecoderHeadConfig = TokenHeadConfig()
    """The head, from hidden states to logits over the vocabulary; `hidden` leaves them as vectors.
    """
    exits: tuple[int, ...] = ()
    """Layers, counted from one, that get a head of their own for early exits."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_conflicts([self.head], self)
        check_exits(self.exits, self.n_layers)

    def build(self, vocab_size: int) -> DecoderModel:
        position = self.build_position(causal=True)
        embed = self.build_embedding(vocab_size, position)
        head = build_head(self.head, self.d_model, vocab_size)
        depth = Depth(decoder=self.n_layers, causal=True)
        exits = self.build_exits(self.exits, self.head, vocab_size)
        model = DecoderModel(embed, self.build_stack(position, depth), head, exits)
        initialise(model, self.init)
        if isinstance(self.head, TokenHeadConfig) and self.head.tied:
            tie_head(head, embed.tokens)
            tie_exits(exits, embed.tokens)
        return model
