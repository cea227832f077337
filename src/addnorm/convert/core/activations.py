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
"""From Hugging Face names (including older ones) to ours."""

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
    """The activation named by a key. Raises `InputError` if it is not supported."""
    return settings.choose(key, NAMES, default)


def activation_name(activation: HeadActivation) -> str:
    """Their name for an activation of ours. Raises `InputError` for the identity, which is none."""
    if activation == "identity":
        raise InputError("no family has the identity where an activation function stands")
    return WRITTEN[activation]
