"""The decoder-only Transformer: each token predicts the next (GPT, LLaMA)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from addnorm.config import config
from addnorm.models.earlier_layers import reads_of
from addnorm.models.transformer import SharedPositions, StackModel, TransformerConfig
from addnorm.nn.blocks import AnyBlock, Block, Stack
from addnorm.nn.cache import KVCache
from addnorm.nn.canon import CanonConfig
from addnorm.nn.context import Context
from addnorm.nn.embed import TokenEmbedding
from addnorm.nn.exits import check_exits, exit_logits, tie_exits
from addnorm.nn.heads import DecoderHeadConfig, TokenHeadConfig, build_head, tie_head
from addnorm.nn.init import initialise
from addnorm.nn.masks import Causal, Prefix
from addnorm.nn.norms import build_norm
from addnorm.nn.positions import Position
from addnorm.nn.residuals import Depth
from addnorm.nn.token_ahead import MultiTokenConfig, TokenAhead
from addnorm.parts import check_conflicts


class DecoderModel(StackModel):
    """`head(stack(embed(tokens)))` under the causal mask (Radford et al. 2018, eq. 2)."""

    embed: TokenEmbedding

    def __init__(
        self,
        embed: nn.Module,
        stack: Stack,
        head: nn.Module,
        exits: nn.ModuleDict | None = None,
        ahead: nn.ModuleList | None = None,
    ) -> None:
        super().__init__(embed, stack, head, exits)
        self.ahead = ahead or nn.ModuleList()

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

    def hidden_ahead(
        self,
        hidden: Float[Tensor, "batch seq d_model"],
        tokens: Int[Tensor, "batch seq"],
        valid: Bool[Tensor, "batch seq"] | None = None,
        segments: Int[Tensor, "batch seq"] | None = None,
    ) -> Iterator[tuple[Float[Tensor, "batch rest d_model"], Context]]:
        """Yield the inputs of the head for 1, 2, … tokens further ahead, and their context.

        Depth `k` has `k` slots less, and slot `i` predicts token `i + k + 1` (DeepSeek-AI 2024
        (DeepSeek-V3), §2.2). `hidden` are the final hidden states, which are those of depth 0.
        """
        embedded = self.embed(
            tokens, Context.over(tokens, Causal(), valid=valid, segments=segments)
        )
        for k, module in enumerate(self.ahead, start=1):
            if tokens.shape[1] <= k:
                return
            ctx = Context.over(
                tokens[:, :-k],
                Causal(),
                valid=None if valid is None else valid[:, :-k] & valid[:, k:],
                segments=None if segments is None else segments[:, :-k],
            )
            hidden = module(hidden[:, : ctx.q_slots.shape[0]], embedded[:, k:], ctx)
            yield hidden, ctx

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
    mtp: MultiTokenConfig | None = None
    """Multi-token prediction, for training and for drafts of what comes next; by default none."""
    canon: CanonConfig | None = None
    """Canon layers: short convolutions of what the sublayers of each layer read; by default none.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        check_conflicts([self.head, self.mtp, self.canon], self)
        check_exits(self.exits, self.n_layers)
        last, reads = self.n_layers - 1, reads_of(self.layers(self.n_layers))
        if self.canon is not None and reads:
            raise ValueError(
                f"layer {min(reads)} reads the keys or values of layer {reads[min(reads)]}, which "
                "a layer with canon does not hand on: leave canon out"
            )
        if self.mtp is not None and last in reads:
            raise ValueError(
                "the modules of multi-token prediction are like the last layer, and layer "
                f"{last} reads the keys or values of layer {reads[last]}: leave mtp out"
            )

    def build(self, vocab_size: int) -> DecoderModel:
        position = self.build_position(causal=True)
        embed = self.build_embedding(vocab_size, position)
        head = build_head(self.head, self.d_model, vocab_size)
        depth = Depth(decoder=self.n_layers, causal=True)
        exits = self.build_exits(self.exits, self.head, vocab_size)
        stack, ahead = self.build_stack(position, depth), self._build_ahead(position, depth)
        model = DecoderModel(embed, stack, head, exits, ahead)
        initialise(model, self.init)
        if isinstance(self.head, TokenHeadConfig) and self.head.tied:
            tie_head(head, embed.tokens)
            tie_exits(exits, embed.tokens)
        return model

    def build_block(self, shared: SharedPositions, depth: Depth, *, cross: bool) -> AnyBlock:
        """Build layer `depth.layer`, with Canon layers before its sublayers if there are any."""
        block = super().build_block(shared, depth, cross=cross)
        if self.canon is None:
            return block
        assert isinstance(block, Block), "others are refused"
        return self.canon.around(block, self.d_model)

    def _build_ahead(self, position: Position, depth: Depth) -> nn.ModuleList:
        """Build the modules of multi-token prediction, each with a block like the last layer's."""
        if self.mtp is None:
            return nn.ModuleList()
        last = replace(depth, layer=self.n_layers - 1)
        modules = [
            TokenAhead(
                self.d_model,
                build_norm(self.norm, self.d_model),
                build_norm(self.norm, self.d_model),
                self.build_single(position, last),
                loss_weight=self.mtp.weight / self.mtp.depth,
            )
            for _ in range(self.mtp.depth)
        ]
        return nn.ModuleList(modules)
