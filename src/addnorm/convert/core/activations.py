"""Names of activation functions in Hugging Face configurations."""

from addnorm.convert.core.settings import Settings
from addnorm.errors import InputError
from addnorm.nn.feedforward import Activation
from addnorm.nn.heads import HeadActivation

NAMES: dict[str, Activation] = {
    "relu": "relu",
    "relu2": "squared_relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
    "mish": "mish",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
}
"""Theirs to ours; of several names for one, the first that is not older is written."""

WRITTEN: dict[Activation, str] = {
    "relu": "relu",
    "squared_relu": "relu2",
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "mish": "mish",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
}


def activation_of(settings: Settings, key: str, default: str) -> Activation:
    """Our activation for the name under a key. Raises `InputError` where there is none."""
    return settings.choose(key, NAMES, default)


def activation_name(activation: HeadActivation) -> str:
    """Their name for an activation of ours. Raises `InputError` for the identity, which is none."""
    if activation == "identity":
        raise InputError("no family has the identity where an activation function stands")
    return WRITTEN[activation]
