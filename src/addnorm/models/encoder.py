"""The encoder-only Transformer, with bidirectional attention (BERT, ViT)."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from jaxtyping import Bool, Float, Int, Shaped
from pydantic import Field, NonNegativeInt
from torch import Tensor
from torch.nn import Module, ModuleDict

from addnorm.config import config
from addnorm.models.inputs import (
    FULL,
    Input,
    InputConfig,
    TokenInputConfig,
    build_input,
    embedded,
    valid_positions,
)
from addnorm.models.transformer import MOST_LAYERS, StackModel, TransformerConfig
from addnorm.nn.blocks import Stack
from addnorm.nn.context import Context
from addnorm.nn.convolutional_embedding import ConvolutionalEmbeddingConfig
from addnorm.nn.crf import CRFHeadConfig
from addnorm.nn.embed import TokenEmbedding
from addnorm.nn.exits import check_exits, exit_logits, tie_exits
from addnorm.nn.forecast import ForecastHead, ForecastHeadConfig
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    HeadConfig,
    TaggingHeadConfig,
    TokenHead,
    TokenHeadConfig,
    build_head,
    predicts_tokens,
)
from addnorm.nn.hyper_connections import WITH_STREAMS
from addnorm.nn.init import initialise
from addnorm.nn.layer_convolution import LayerConvolutionConfig
from addnorm.nn.masks import Causal, Mask
from addnorm.nn.patches import PatchEmbeddingConfig, SeriesEmbeddingConfig
from addnorm.nn.residuals import Depth, ParallelConfig
from addnorm.nn.similarity import SimilarityHeadConfig
from addnorm.parts import check_conflicts, kind_of


class EncoderModel(StackModel):
    """`head(stack(embed(tokens)))` without a causal mask (Devlin et al. 2019, §3).

    With the `mask` of a decoder, it classifies as decoders do.
    """

    embed: Input

    def __init__(
        self,
        embed: Module,
        stack: Stack,
        head: Module,
        exits: ModuleDict | None = None,
        *,
        mask: Mask = FULL,
    ) -> None:
        super().__init__(embed, stack, head, exits)
        self.mask = mask

    @property
    def causal(self) -> bool:
        """Whether the encoder is causal: no token attends to later ones."""
        return isinstance(self.mask, Causal)

    def forward(
        self,
        inputs: Shaped[Tensor, "batch *input"],
        valid: Bool[Tensor, "batch input_seq"] | None = None,
        types: Int[Tensor, "batch seq"] | None = None,
    ) -> Float[Tensor, "rows *outputs"]:
        """The logits: `batch classes` from a classification head, else `batch seq outputs`.

        Of a similarity head, which compares each two rows, `batch/2 outputs`.

        `types` are the token type (segment) ids, if the embedding has any.
        """
        return self.head(*self.hidden(inputs, valid, types))

    def hidden(
        self,
        inputs: Shaped[Tensor, "batch *input"],
        valid: Bool[Tensor, "batch input_seq"] | None = None,
        types: Int[Tensor, "batch seq"] | None = None,
    ) -> tuple[Float[Tensor, "rows seq d_model"], Context]:
        """The final hidden states and their context: the inputs of the head."""
        x, ctx = embedded(self.embed, inputs, valid, types, self.mask)
        return self.stack(x, ctx), ctx

    def exit_logits(
        self,
        inputs: Shaped[Tensor, "batch *input"],
        valid: Bool[Tensor, "batch input_seq"] | None = None,
        types: Int[Tensor, "batch seq"] | None = None,
    ) -> Iterator[Float[Tensor, "batch *outputs"]]:
        """Yield the logits of each early exit, then of the last layer; layers are run lazily."""
        x, ctx = embedded(self.embed, inputs, valid, types, self.mask)
        return exit_logits(self.stack, self.exits, self.head, x, ctx)


def valid_outputs(
    model: Module, inputs: Mapping[str, Tensor]
) -> Bool[Tensor, "rows positions"] | None:
    """The mask of the real output positions of a model for these inputs; None if all are real.

    A convolution before the stack has fewer positions than the input. Only an encoder's are told.
    """
    if not isinstance(model, EncoderModel):
        return None
    return valid_positions(model.embed, inputs.get("valid"))


@config
class EncoderConfig(TransformerConfig):
    """An encoder-only model for the inputs that `input` describes, with the head of its task."""

    kind: Literal["encoder"] = "encoder"
    input: InputConfig = TokenInputConfig()
    """The input of the encoder: tokens, images, audio or time series."""
    n_layers: Annotated[NonNegativeInt, Field(le=MOST_LAYERS)] = 6
    """Blocks in the stack; with none the head reads the embedding."""
    head: HeadConfig = TokenHeadConfig()
    """The head, which decides the task of the model."""
    exits: tuple[int, ...] = ()
    """Layers, counted from one, that get a head of their own for early exits."""
    first_convolution: LayerConvolutionConfig | None = None
    """A convolution of the first layer's input, added to that layer's output, as in the largest
    DeBERTa v2; by default none.
    """
    causal: bool = False
    """Whether a token attends to itself and earlier ones alone, as in decoders that classify."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_conflicts([self.head], self)
        check_exits(self.exits, self.n_layers)
        if self.tied and not isinstance(self.input, TokenInputConfig):
            raise ValueError(
                f"a tied head shares the table of tokens, and {self.input.kind} have none: "
                "give model.head another kind, or tied = false"
            )
        if self.causal and not isinstance(self.input, TokenInputConfig):
            raise ValueError(f"causal = true is for tokens, not for {self.input.kind}")
        if self.first_convolution is not None:
            self._check_convolution()
        alone = isinstance(self.input, SeriesEmbeddingConfig) and self.input.variables != "mixed"
        if alone and not isinstance(self.head, ForecastHeadConfig):
            raise ValueError(
                f"input.variables = 'independent' is for a forecast of each variable: a "
                f"{kind_of(self.head)} head reads them 'mixed'"
            )

    def _check_convolution(self) -> None:
        """Raise `ValueError` where the first layer cannot have a convolution next to it."""
        for name, given in (
            ("causal", self.causal),
            ("n_distinct_layers", self.n_distinct_layers is not None),
            ("embedding.per_layer", self.per_layer is not None),
        ):
            if given:
                raise ValueError(f"first_convolution and {name} do not go together: give one")
        if self.n_layers == 0:
            raise ValueError("first_convolution stands next to the first layer, and n_layers = 0")
        if isinstance(self.residual, (ParallelConfig, *WITH_STREAMS)):
            raise ValueError(
                "first_convolution joins the output of a layer of one stream, whose sublayers "
                f"follow each other, which those of residual = {kind_of(self.residual)!r} do not: "
                "use 'pre' or 'post'"
            )

    @property
    def convolution(self) -> LayerConvolutionConfig | None:
        """The convolution next to the first layer."""
        return self.first_convolution

    @property
    def looks_back(self) -> bool:
        return self.causal

    @property
    def reads_pictures(self) -> bool:
        """Whether the tokens are patches of pictures."""
        return isinstance(self.input, PatchEmbeddingConfig | ConvolutionalEmbeddingConfig)

    @property
    def tied(self) -> bool:
        """Whether the head shares the embedding table."""
        return isinstance(self.head, TokenHeadConfig) and self.head.tied

    def build(self, vocab_size: int = 0, n_labels: int | None = None) -> EncoderModel:
        """Build the model; `n_labels` is the number of classes or tags, unused by a token head."""
        position = self.build_position(causal=self.causal)
        embed = build_input(self.input, self, position, vocab_size)
        tokens = predicts_tokens(self.head)
        named = ClassificationHeadConfig | TaggingHeadConfig | CRFHeadConfig
        labels = isinstance(self.head, named) or (
            isinstance(self.head, SimilarityHeadConfig) and self.head.problem == "single_label"
        )
        if labels and n_labels is None:
            raise ValueError(f"a {kind_of(self.head)} head needs n_labels")
        n_outputs = vocab_size if tokens else n_labels or 0
        head = self._forecast_head() or build_head(self.head, self.d_model, n_outputs)
        depth = Depth(encoder=self.n_layers)
        if self.causal:
            depth = Depth(decoder=self.n_layers, causal=True)
        stack = self.build_stack(position, depth)
        exits = self.build_exits(self.exits, self.head, n_outputs)
        mask = Causal() if self.causal else FULL
        model = EncoderModel(embed, stack, head, exits, mask=mask)
        initialise(model, self.init)
        if self.tied:
            assert isinstance(head, TokenHead)
            assert isinstance(embed, TokenEmbedding)
            head.tie(embed.tokens)
            tie_exits(exits, embed.tokens)
        return model

    def _forecast_head(self) -> ForecastHead | None:
        """The forecast head for the variables of a row and the patches; None for other heads."""
        if not isinstance(self.head, ForecastHeadConfig):
            return None
        assert isinstance(self.input, SeriesEmbeddingConfig)
        n = self.input.channels if self.input.variables == "mixed" else 1
        return self.head.build(self.d_model, n, self.input.n_patches)
