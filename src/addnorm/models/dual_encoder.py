"""Two encoders, one of texts and one of pictures, whose vectors lie in one space (CLIP, SigLIP)."""

from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, NonNegativeInt
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import WORD, config
from addnorm.errors import InputError
from addnorm.models.encoder import EncoderConfig, EncoderModel
from addnorm.models.inputs import FULL, InputConfig
from addnorm.models.transformer import MOST_LAYERS, StackModel, TransformerConfig
from addnorm.nn.blocks import Stack
from addnorm.nn.context import Context
from addnorm.nn.contrastive import ContrastiveHead, ContrastiveHeadConfig, unit
from addnorm.nn.embed import TokenEmbedding
from addnorm.nn.init import initialise
from addnorm.nn.masks import Causal, Mask
from addnorm.nn.patches import PatchEmbeddingConfig
from addnorm.nn.residuals import Depth
from addnorm.nn.vectors import VectorHeadConfig
from addnorm.parts import kind_of


class DualEncoderModel(StackModel):
    """`z_ij = s · u(picture_i)ᵀ v(text_j) + b`, with vectors `u` and `v` of length one.

    Radford et al. 2021 (CLIP), §2.3; Zhai et al. 2023 (SigLIP), §3. `embed`, `stack` and
    `head.text` are the encoder of texts, `image` is that of pictures. With a `fill`, every text is
    filled up to `length` tokens with this one, which is read like any other, as in SigLIP.
    """

    embed: TokenEmbedding
    head: ContrastiveHead

    def __init__(
        self,
        embed: TokenEmbedding,
        stack: Stack,
        head: ContrastiveHead,
        image: EncoderModel,
        *,
        mask: Mask = FULL,
        fill: int | None = None,
        length: int = 0,
    ) -> None:
        super().__init__(embed, stack, head)
        self.image = image
        self.mask = mask
        self.fill = fill
        self.length = length

    @property
    def causal(self) -> bool:
        """Whether the text encoder is causal: no token attends to later ones."""
        return isinstance(self.mask, Causal)

    def forward(
        self,
        images: Float[Tensor, "pictures channels height width"],
        tokens: Int[Tensor, "texts seq"],
        valid: Bool[Tensor, "texts seq"] | None = None,
    ) -> Float[Tensor, "pictures texts"]:
        """A score for each picture and each text; `valid` marks the real tokens."""
        return self.head(self.image(images), self.head.text(*self.hidden(tokens, valid)))

    def hidden(
        self, tokens: Int[Tensor, "texts seq"], valid: Bool[Tensor, "texts seq"] | None = None
    ) -> tuple[Float[Tensor, "texts read d_model"], Context]:
        """The final hidden states of texts, and their context."""
        if self.fill is not None:
            tokens, valid = filled(tokens, valid, self.fill, self.length), None
        ctx = Context.over(tokens, self.mask, valid=valid)
        return self.stack(self.embed(tokens, ctx), ctx), ctx

    def text_vectors(
        self, tokens: Int[Tensor, "texts seq"], valid: Bool[Tensor, "texts seq"] | None = None
    ) -> Float[Tensor, "texts numbers"]:
        """The vectors of texts, of length one."""
        return unit(self.head.text(*self.hidden(tokens, valid)))

    def image_vectors(
        self, images: Float[Tensor, "pictures channels height width"]
    ) -> Float[Tensor, "pictures numbers"]:
        """The vectors of pictures, of length one."""
        return unit(self.image(images))


def filled(
    tokens: Int[Tensor, "texts seq"],
    valid: Bool[Tensor, "texts seq"] | None,
    fill: int,
    length: int,
) -> Int[Tensor, "texts length"]:
    """The real tokens of each text, and `fill` behind them up to `length` tokens."""
    if valid is not None:
        order = (~valid).int().argsort(dim=1, stable=True)
        tokens = torch.where(valid, tokens, fill).gather(1, order)
    return F.pad(tokens, (0, max(0, length - tokens.shape[1])), value=fill)


def refuse_dual(model: object, done: str) -> None:
    """Raise `InputError` for a dual encoder, or its configuration, which cannot be `done`."""
    if isinstance(model, DualEncoderModel | DualEncoderConfig):
        raise InputError(
            f"a dual encoder is not {done}: it has two stacks, of texts and of pictures, and only "
            "models of one kind of input are"
        )


OF_PICTURES = EncoderConfig(
    input=PatchEmbeddingConfig(), head=VectorHeadConfig(pooling="first", width=512)
)


@config
class DualEncoderConfig(TransformerConfig):
    """A text encoder, with the fields of any model, and a picture encoder in `image`.

    Both map to vectors of one width (Radford et al. 2021, CLIP; Zhai et al. 2023, SigLIP).
    """

    exits: ClassVar[tuple[int, ...]] = ()

    kind: Literal["dual_encoder"] = "dual_encoder"
    n_layers: Annotated[NonNegativeInt, Field(le=MOST_LAYERS)] = 6
    """Blocks in the stack of texts; with none the head reads the embedding."""
    causal: bool = False
    """Whether a token attends to itself and earlier ones alone, as in CLIP."""
    fill: NonNegativeInt | None = None
    """The number of the token with which every text is filled up to `max_len` tokens, and which is
    read like any other, as in SigLIP; by default none.
    """
    image: EncoderConfig = OF_PICTURES
    """The encoder of pictures: its head is a vector."""
    head: Annotated[ContrastiveHeadConfig, WORD] = ContrastiveHeadConfig()
    """How texts become vectors, and how these are compared with those of pictures."""

    def __post_init__(self) -> None:
        super().__post_init__()
        of_pictures = self.image.head
        if not self.image.reads_pictures or not isinstance(of_pictures, VectorHeadConfig):
            raise ValueError(
                f"image reads {self.image.input.kind} with a {kind_of(of_pictures)} head: it needs "
                "input.kind = 'patches' or 'convolutions' and head.kind = 'vector'"
            )
        texts = self.head.text.width_of(self.d_model)
        pictures = of_pictures.width_of(self.image.d_model)
        if texts != pictures:
            raise ValueError(
                f"texts become vectors of {texts} numbers and pictures of {pictures}: give "
                f"head.text.width = {pictures}, or image.head.width = {texts}"
            )

    @property
    def looks_back(self) -> bool:
        return self.causal

    @property
    def input(self) -> InputConfig:
        """The kind of picture input."""
        return self.image.input

    def build(self, vocab_size: int) -> DualEncoderModel:
        """Build the model. Raises `InputError` for a `fill` that is not in the vocabulary."""
        if self.fill is not None and self.fill >= vocab_size:
            raise InputError(
                f"model.fill = {self.fill} is not one of the {vocab_size} tokens: at most "
                f"{vocab_size - 1}"
            )
        position = self.build_position(causal=self.causal)
        depth = Depth(encoder=self.n_layers)
        if self.causal:
            depth = Depth(decoder=self.n_layers, causal=True)
        text = nn.ModuleDict(
            {
                "embed": self.build_embedding(vocab_size, position),
                "stack": self.build_stack(position, depth),
                "head": self.head.build(self.d_model),
            }
        )
        initialise(text, self.init)
        return DualEncoderModel(
            **text,  # pyright: ignore[reportArgumentType]
            image=self.image.build(),
            mask=Causal() if self.causal else FULL,
            fill=self.fill,
            length=self.max_len,
        )
