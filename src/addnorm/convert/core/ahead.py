"""Layers that predict tokens further ahead, where a file has them as we do (DeepSeek-V3, §2.2).

Behind the names of its own parts, such a layer has those of the model's last layer.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from addnorm.convert.core.maps import Moved, Renamed, SwappedHalves, TensorMap
from addnorm.models import DecoderConfig, ModelConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.token_ahead import MOST_AHEAD, MultiTokenConfig


@dataclass(frozen=True, kw_only=True)
class AheadNames:
    """Their names of the layers that predict further ahead."""

    layers: str
    """The modules of a layer like the model's, with `*` for its number."""
    hidden_norm: str
    token_norm: str
    proj: str
    norm: str
    """The final norm of a layer."""
    from_last: bool
    """Whether the numbers follow that of the model's last layer, or begin at zero."""
    copies: tuple[tuple[str, str], ...] = ()
    """Tensors of a layer that repeat one of the model, and the name of that."""

    def of(self, k: int, n_layers: int) -> "AheadNames":
        """The names of layer `k` of these, from 0, of a model of `n_layers`."""
        number = str(k + n_layers if self.from_last else k)
        names = {key: value.replace("*", number) for key, value in self._names.items()}
        copies = tuple((name.replace("*", number), other) for name, other in self.copies)
        return replace(self, **names, copies=copies)

    @property
    def _names(self) -> Mapping[str, str]:
        return {key: value for key, value in vars(self).items() if isinstance(value, str)}

    @property
    def own(self) -> Mapping[str, str]:
        """Their names of the tensors that only these layers have, by ours."""
        return {
            "hidden_norm.weight": f"{self.hidden_norm}.weight",
            "token_norm.weight": f"{self.token_norm}.weight",
            "proj.weight": f"{self.proj}.weight",
            "stack.norm.weight": f"{self.norm}.weight",
        }

    def refine(self, model: ModelConfig, stored: Collection[str]) -> ModelConfig:
        """The configuration with as many of these layers as a file has, if they are like ours."""
        if not isinstance(model, DecoderConfig) or not isinstance(model.head, TokenHeadConfig):
            return model
        depth = 0
        while depth < MOST_AHEAD and self._alike(depth, model.n_layers, stored):
            depth += 1
        if depth == 0 or (depth > 1 and "*" not in self.proj):  # ours share nothing
            return model
        return replace(model, mtp=MultiTokenConfig(depth=depth))

    def _alike(self, k: int, n_layers: int, stored: Collection[str]) -> bool:
        """Whether a file has this layer, of the same tensors as the last of the model."""
        names, last = self.of(k, n_layers), f"model.layers.{n_layers - 1}."
        more = {*names.own.values(), *(name for name, _ in names.copies)}
        block = f"{names.layers}."
        its = {name.removeprefix(block) for name in stored if name.startswith(block)} - {
            name.removeprefix(block) for name in more
        }
        same = its == {name.removeprefix(last) for name in stored if name.startswith(last)}
        return same and {*names.own.values()} <= {*stored}

    def maps(self, model: DecoderConfig, maps: Sequence[TensorMap]) -> Iterator[TensorMap]:
        """The maps of all these layers, by those of the last layer of the model."""
        number = model.n_layers - 1
        last, its_last = f"stack.blocks.{number}.", f"model.layers.{number}."
        of_last = [entry for entry in maps if all(name.startswith(last) for name in entry.ours)]
        for k in range(0 if model.mtp is None else model.mtp.depth):
            names = self.of(k, model.n_layers)
            for ours, theirs in names.own.items():
                kind = SwappedHalves if ours == "proj.weight" else Renamed
                yield kind(f"ahead.{k}.{ours}", theirs)
            for entry in of_last:
                yield Moved(
                    entry,
                    tuple(n.replace(last, f"ahead.{k}.stack.blocks.0.", 1) for n in entry.ours),
                    tuple(n.replace(its_last, f"{names.layers}.", 1) for n in entry.theirs),
                )

    def ties(self, model: DecoderConfig) -> Iterator[tuple[str, str]]:
        """The tensors that repeat one of the model."""
        for k in range(0 if model.mtp is None else model.mtp.depth):
            yield from self.of(k, model.n_layers).copies


AHEAD_OF_DEEPSEEK = AheadNames(
    layers="model.layers.*",
    hidden_norm="model.layers.*.hnorm",
    token_norm="model.layers.*.enorm",
    proj="model.layers.*.eh_proj",
    norm="model.layers.*.shared_head.norm",
    from_last=True,
    copies=(
        ("model.layers.*.embed_tokens.weight", "model.embed_tokens.weight"),
        ("model.layers.*.shared_head.head.weight", "lm_head.weight"),
    ),
)
"""DeepSeek-V3 and GLM 4.5: numbered like layers of the model, behind its last."""

AHEAD_OF_QWEN = AheadNames(
    layers="mtp.layers.*",
    hidden_norm="mtp.pre_fc_norm_hidden",
    token_norm="mtp.pre_fc_norm_embedding",
    proj="mtp.fc",
    norm="mtp.norm",
    from_last=False,
)
"""Qwen3-Next and Qwen3.5, which have one."""
