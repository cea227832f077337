"""Output heads: token logits, class logits, tag logits, pooled vectors or hidden states."""

from collections.abc import Callable
from inspect import signature
from math import inf
from typing import Annotated, Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import Probability, config
from addnorm.errors import InputError
from addnorm.nn.built import built_module
from addnorm.nn.context import Context
from addnorm.nn.crf import CRFHeadConfig
from addnorm.nn.ctc import CTCHeadConfig
from addnorm.nn.dropout import Dropout
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import ACTIVATIONS, Activation
from addnorm.nn.forecast import ForecastHeadConfig
from addnorm.nn.functional import at_least_float32, soft_capped
from addnorm.nn.linear import Linear, linear
from addnorm.nn.masks import Full
from addnorm.nn.norms import LayerNormConfig, NoNorm, NormConfig, build_norm
from addnorm.nn.pooling import (
    POOLINGS,
    ConvolutionPoolingConfig,
    Pooled,
    PoolingConfig,
    RealTokens,
    TokenPooling,
    build_pooling,
    first_token,
    real_tokens,
)
from addnorm.nn.similarity import SimilarityHeadConfig
from addnorm.nn.splits import OUTPUT, Split, Splits
from addnorm.nn.types import Hidden
from addnorm.nn.vectors import VectorHeadConfig
from addnorm.parts import Family, is_ours, kind_of

Problem = Literal["single_label", "multi_label", "regression"]
"""The meaning of a text's outputs: logits of one class, of independent labels, or real values."""


HeadActivation = Activation | Literal["identity"]

HEAD_ACTIVATIONS: dict[HeadActivation, Callable[[Tensor], Tensor]] = {
    **ACTIVATIONS,
    "identity": lambda x: x,
}


class Transform(nn.Module):
    """`norm(act(W x + b))`: a layer before the output projection (Devlin et al. 2019, code)."""

    splits: ClassVar[Splits] = {}

    def __init__(
        self, d_model: int, d_out: int, activation: HeadActivation, *, bias: bool, norm: nn.Module
    ) -> None:
        super().__init__()
        self.proj = Linear(d_model, d_out, bias=bias)
        self.activation = HEAD_ACTIVATIONS[activation]
        self.norm = norm

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_out"]:
        return self.norm(self.activation(self.proj(x)))


@config
class TransformConfig:
    """BERT's head of masked tokens has GELU and a LayerNorm, its classifier tanh and no norm.

    `activation = "identity"` with a `d_out` is a map to the width of a narrower table (Lan et al.
    2020, §3.1), as in OPT.
    """

    activation: HeadActivation = "gelu"
    """The nonlinearity after the map, or the identity for none."""
    bias: bool = True
    """Whether the map has a bias."""
    norm: NormConfig | None = None
    """A norm after the nonlinearity; by default none."""
    d_out: PositiveInt | None = None
    """The width that it maps to; by default d_model."""

    def build(self, d_model: int) -> Transform:
        width = self.d_out or d_model
        norm = NoNorm() if self.norm is None else build_norm(self.norm, width)
        return Transform(d_model, width, self.activation, bias=self.bias, norm=norm)


def width_after(transform: TransformConfig | None, d_model: int) -> int:
    """The width of the vectors that a head maps to its outputs."""
    return d_model if transform is None else transform.d_out or d_model


class TokenHead(nn.Module):
    """`x Wᵀ` for every token; `W` may be the embedding table itself (Press & Wolf 2017).

    `x` is first passed through `transform` and multiplied by `scale` (Raffel et al. 2020, code), a
    bias is added, and `softcap` keeps logits within ± itself (Gemma Team 2024, §2), where given.
    """

    splits: ClassVar[Splits] = {
        "weight": Split(0),
        "bias": Split(0),
        OUTPUT: Split(-1, "n_outputs"),
    }

    def __init__(
        self,
        width: int,
        n_outputs: int,
        *,
        bias: bool = False,
        transform: nn.Module | None = None,
        scale: float = 1.0,
        softcap: float | None = None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_outputs, width))
        self.bias = nn.Parameter(torch.zeros(n_outputs)) if bias else None
        self.transform = transform
        self.scale = scale
        self.softcap = softcap

    def forward(self, x: Hidden, ctx: Context) -> Float[Tensor, "batch seq vocab"]:
        x = x if self.transform is None else self.transform(x)
        x = x if self.scale == 1.0 else x * self.scale
        return soft_capped(linear(x, self.weight, self.bias), self.softcap)

    @property
    def n_outputs(self) -> int:
        """The number of logits of a token."""
        return self.weight.shape[0]

    def tie(self, table: nn.Embedding) -> None:
        """Tie the weight to the embedding table."""
        self.weight = nn.Parameter(table.weight)
        table.weight = self.weight


@config
class TokenHeadConfig:
    """`tied` shares the embedding table; `scale = "sqrt"` multiplies by 1/√d_model, as T5 does."""

    predicts_tokens: ClassVar[bool] = True

    kind: Literal["token"] = "token"
    tied: bool = True
    """Whether the head's matrix is the embedding table (Press & Wolf 2017)."""
    bias: bool = False
    """Whether every token has a bias."""
    transform: TransformConfig | None = None
    """A layer before the logits, as in BERT; by default none."""
    scale: Literal["one", "sqrt"] | PositiveFloat = "one"
    """The factor of hidden states: one, 1/√d_model as in T5, or a number."""
    softcap: PositiveFloat | None = None
    """Keep logits within ± this by c·tanh(logit/c) (Gemma Team 2024, §2); by default unbounded."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """Tied, untied, and with every option."""
        return {
            "token": cls(),
            "token_untied": cls(tied=False, scale=0.25),
            "token_narrow": cls(
                tied=False, transform=TransformConfig(activation="identity", bias=False, d_out=3)
            ),
            "token_transformed": cls(
                bias=True,
                transform=TransformConfig(norm=LayerNormConfig()),
                scale="sqrt",
                softcap=3.0,
            ),
        }

    def conflict(self, around: Any) -> str | None:
        """A tied head has the width of the table."""
        table = around.embedding
        if not self.tied or not isinstance(table, EmbeddingConfig):
            return None
        width, rows = width_after(self.transform, around.d_model), table.width(around.d_model)
        if width == rows:
            return None
        return (
            f"a tied head shares a table of width {rows}, and reads vectors of width {width}: set "
            f"head.transform.d_out = {rows}, or head.tied = false"
        )

    def factor(self, d_model: int) -> float:
        """The factor of hidden states."""
        match self.scale:
            case "one":
                return 1.0
            case "sqrt":
                return d_model**-0.5
            case number:
                return number

    def build(self, d_model: int, n_outputs: int) -> TokenHead:
        return TokenHead(
            width_after(self.transform, d_model),
            n_outputs,
            bias=self.bias,
            transform=None if self.transform is None else self.transform.build(d_model),
            scale=self.factor(d_model),
            softcap=self.softcap,
        )


def tie_head(head: nn.Module, table: nn.Embedding) -> None:
    """Tie a token head to the embedding table."""
    assert isinstance(head, TokenHead)
    head.tie(table)


class ClassificationHead(nn.Module):
    """`W drop(transform(pool(x))) + b` for the whole sequence (Devlin et al. 2019, §4.1).

    Padding takes no part in the pool. With `pooled = "transformed"` it is
    `W drop(pool(transform(x))) + b` (Boizard et al. 2025, EuroBERT's code).
    """

    def __init__(
        self,
        width: int,
        n_outputs: int,
        *,
        pooling: TokenPooling | Callable[[Hidden, RealTokens], Pooled] = "mean",
        transform: nn.Module | None = None,
        pooled: Literal["hidden", "transformed"] = "hidden",
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.pool = pooling if callable(pooling) else POOLINGS[pooling]
        self.transform = transform or nn.Identity()
        self.pooled = pooled
        self.dropout = Dropout(dropout)
        self.proj = Linear(width, n_outputs, bias=bias)

    def forward(self, x: Hidden, ctx: Context) -> Float[Tensor, "batch classes"]:
        real = real_tokens(x, ctx)
        if self.pooled == "hidden":
            return self.proj(self.dropout(self.transform(self.pool(x, real))))
        return self.proj(self.dropout(self.pool(self.transform(x), real)))


@config
class ClassificationHeadConfig:
    """One class for the whole text; or, by `problem`, several labels, or numbers.

    The outputs are the same products, read in three ways: for one class as the logits of a softmax,
    for several labels each as the logit of a sigmoid, for regression as the numbers themselves.
    """

    kind: Literal["classification"] = "classification"
    problem: Problem = "single_label"
    """The meaning of the outputs: one class of several, several labels, or numbers (regression)."""
    pooling: PoolingConfig = "mean"
    """How a text becomes one vector: the mean or maximum over tokens, the first or the last token,
    the mean by learned weights (SeqPool, Hassani et al. 2021, §3.3), `convolution`: what filters
    find, `joined`: the first tokens and the mean of the rest, or `attention`: what a learned
    query gathers.
    """
    transform: TransformConfig | None = None
    """A layer before the logits, as in BERT; by default none."""
    pooled: Literal["hidden", "transformed"] = "hidden"
    """Whether tokens are pooled before that layer, or after it, as in EuroBERT."""
    dropout: Probability = 0.0
    """The dropout rate before the logits."""
    out_bias: bool = True
    """Whether the logits have a bias."""

    @property
    def task(self) -> str:
        """The task of a model with this head."""
        return "classification" if self.problem == "single_label" else self.problem

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """One example for each pooling."""
        return {
            "classification": cls(),
            "classification_max": cls(pooling="max"),
            "classification_first": cls(
                pooling="first", transform=TransformConfig(activation="tanh", bias=False)
            ),
            "classification_transformed": cls(pooled="transformed", transform=TransformConfig()),
            "classification_last": cls(pooling="last", out_bias=False),
            "classification_seqpool": cls(pooling="seqpool"),
            "classification_convolution": cls(
                pooling=ConvolutionPoolingConfig(kernel_size=(2, 3), channels=5)
            ),
        }

    def build(self, d_model: int, n_outputs: int) -> ClassificationHead:
        transformed = width_after(self.transform, d_model)
        pooling, width = build_pooling(
            self.pooling, transformed if self.pooled == "transformed" else d_model
        )
        inner = d_model if self.pooled == "transformed" else width
        return ClassificationHead(
            width if self.pooled == "transformed" else width_after(self.transform, width),
            n_outputs,
            pooling=pooling,
            transform=None if self.transform is None else self.transform.build(inner),
            pooled=self.pooled,
            dropout=self.dropout,
            bias=self.out_bias,
        )


class TaggingHead(nn.Module):
    """`W drop(transform(x)) + b` for every token (Devlin et al. 2019, §5.3)."""

    def __init__(
        self,
        width: int,
        n_outputs: int,
        *,
        transform: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.transform = transform or nn.Identity()
        self.dropout = Dropout(dropout)
        self.proj = Linear(width, n_outputs)

    def forward(self, x: Hidden, ctx: Context) -> Float[Tensor, "batch seq tags"]:
        return self.proj(self.dropout(self.transform(x)))


@config
class TaggingHeadConfig:
    """One tag for every token."""

    task: ClassVar[str] = "tagging"

    kind: Literal["tagging"] = "tagging"
    transform: TransformConfig | None = None
    """A layer before the logits, as in ModernBERT; by default none."""
    dropout: Probability = 0.0
    """The dropout rate before the logits."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """With and without a transform."""
        return {
            "tagging": cls(),
            "tagging_transformed": cls(
                transform=TransformConfig(bias=False, norm=LayerNormConfig(bias=False))
            ),
        }

    def build(self, d_model: int, n_outputs: int) -> TaggingHead:
        transform = None if self.transform is None else self.transform.build(d_model)
        width = width_after(self.transform, d_model)
        return TaggingHead(width, n_outputs, transform=transform, dropout=self.dropout)


class SpanHead(nn.Module):
    """`z_t = W x_t + b`: two logits for every token, that an answer starts there and ends there.

    `p(start = t) = softmax_t(z_t,0)` over the real tokens of a text, and `p(end = t)` likewise
    (Devlin et al. 2019, §4.2). A `transform` of the tokens may stand before, as in ModernBERT.
    """

    def __init__(self, width: int, *, transform: nn.Module | None = None) -> None:
        super().__init__()
        self.transform = transform or nn.Identity()
        self.proj = Linear(width, 2)

    def forward(self, x: Hidden, ctx: Context) -> Float[Tensor, "batch seq 2"]:
        return self.proj(self.transform(x))

    def loss_sum(
        self,
        outputs: Float[Tensor, "batch seq 2"],
        targets: Int[Tensor, "batch 2"],
        valid: Bool[Tensor, "batch seq"] | None,
    ) -> Float[Tensor, ""]:
        """`-log p(start) - log p(end)`, summed over the texts with an answer, in nats."""
        logits = at_least_float32(outputs).transpose(1, 2)
        if valid is not None:
            logits = logits.masked_fill(~valid[:, None], -inf)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


@config
class SpanHeadConfig:
    """Scores of the first and the last token of an answer within a text."""

    task: ClassVar[str] = "span_extraction"
    joint_loss: ClassVar[bool] = True

    kind: Literal["span"] = "span"
    transform: TransformConfig | None = None
    """A layer before the logits, as in ModernBERT; by default none."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """With and without a transform."""
        return {"span": cls(), "span_transformed": cls(transform=TransformConfig(bias=False))}

    def build(self, d_model: int, n_outputs: int) -> SpanHead:
        transform = None if self.transform is None else self.transform.build(d_model)
        return SpanHead(width_after(self.transform, d_model), transform=transform)


class PoolerHead(nn.Module):
    """`tanh(W x_first + b)`: one vector for the whole sequence (Devlin et al. 2019, §3)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.proj = Linear(d_model, d_model)

    def forward(self, x: Hidden, ctx: Context) -> Float[Tensor, "batch d_model"]:
        return self.proj(first_token(x, real_tokens(x, ctx))).tanh()


@config
class PoolerHeadConfig:
    """A vector of the first token."""

    kind: Literal["pooler"] = "pooler"

    def build(self, d_model: int, n_outputs: int) -> PoolerHead:
        return PoolerHead(d_model)


class HiddenHead(nn.Module):
    """`x`: the hidden states as they are."""

    def forward(self, x: Hidden, ctx: Context) -> Hidden:
        return x


@config
class HiddenHeadConfig:
    """No head: a vector for every token."""

    kind: Literal["hidden"] = "hidden"

    def build(self, d_model: int, n_outputs: int) -> HiddenHead:
        return HiddenHead()


@runtime_checkable
class HasLoss(Protocol):
    """A head with a joint loss, such as that of all tags of a text or of both ends of a span."""

    def loss_sum(
        self, outputs: Tensor, targets: Tensor, valid: Bool[Tensor, "rows positions"] | None
    ) -> Float[Tensor, ""]:
        """The loss summed over the targets that are not -100.

        `valid` marks the real positions of the outputs; None for all.
        """
        ...


@runtime_checkable
class HeadPart(Protocol):
    """A configuration of a head.

    The module it builds is called as `head(x, ctx)`, `x` of shape `[batch, seq, d_model]`, and
    returns `[batch, seq, n_outputs]`, or `[batch, n_outputs]` if it classifies whole texts. Its
    attribute `task` is the name of a task, or a custom task. With `predicts_tokens = True` the
    outputs are those of the vocabulary, else of the labels. With `joint_loss = True` the module has
    its own loss, `head.loss_sum(outputs, targets, valid)`, of outputs that are learnt together.
    """

    def build(self, d_model: int, n_outputs: int) -> nn.Module: ...


AnyTokenHeadConfig = Annotated[
    TokenHeadConfig | HeadPart, Family("head", HeadPart, default="token")
]
"""Any head of a model that predicts tokens, built-in or custom."""

DecoderHeadConfig = Annotated[
    TokenHeadConfig | HiddenHeadConfig | HeadPart, Family("head", HeadPart, default="token")
]
"""Every head of a decoder: without one it gives vectors, and writes nothing."""

HeadConfig = Annotated[
    TokenHeadConfig
    | ClassificationHeadConfig
    | TaggingHeadConfig
    | CRFHeadConfig
    | SpanHeadConfig
    | CTCHeadConfig
    | SimilarityHeadConfig
    | ForecastHeadConfig
    | PoolerHeadConfig
    | VectorHeadConfig
    | HiddenHeadConfig
    | HeadPart,
    Family("head", HeadPart),
]
"""Any head, built-in or custom."""


def predicts_tokens(head: Any) -> bool:
    """Whether the outputs of a head correspond to the tokens of a vocabulary."""
    return getattr(head, "predicts_tokens", False)


def has_joint_loss(head: Any) -> bool:
    """Whether a head computes a joint loss of its outputs itself."""
    return getattr(head, "joint_loss", False)


def build_head(head: HeadConfig, d_model: int, n_outputs: int) -> nn.Module:
    """The head of these sizes. Raises `InputError` if a custom part builds none.

    Without labels or a vocabulary, and with a loss of its own, it may give any number of features.
    """
    x, made = torch.zeros(2, 3, d_model), head.build(d_model, n_outputs)
    shapes = [(2, 3, n_outputs), (2, n_outputs)]
    inputs = (x, Context.over(x, Full()))
    if not is_ours(type(head)):
        _check_loss(head, made)
    free = not n_outputs or has_joint_loss(head)
    try:
        return built_module(head, made, "head(x, ctx)", inputs, *([] if free else shapes))
    except InputError as error:
        if free or not isinstance(made, HasLoss):
            raise
        raise InputError(
            f"{error}; any shape with joint_loss = True in {kind_of(head)}, as it has loss_sum"
        ) from error


def _check_loss(head: Any, made: object) -> None:
    """Raise `InputError` if a head lacks the loss that it names, or its signature is wrong."""
    if isinstance(made, HasLoss):
        try:
            signature(made.loss_sum).bind("outputs", "targets", "valid")
        except TypeError as error:
            raise InputError(
                f"{type(made).__name__}.loss_sum: {error}: AddNorm calls "
                "loss_sum(outputs, targets, valid)"
            ) from error
    elif has_joint_loss(head) and isinstance(made, nn.Module):
        raise InputError(
            f"{kind_of(head)} has joint_loss = True, and {type(made).__name__} lacks "
            "loss_sum(outputs, targets, valid): define it, or leave joint_loss out"
        )
