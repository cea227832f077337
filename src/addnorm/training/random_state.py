"""The state of the random generators of training, which resuming and pausing restore."""

from collections.abc import Mapping

import torch
from torch import Tensor


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The state of torch's random generators, which dropout uses."""
    state = {"cpu": torch.get_rng_state()}
    return state | {"cuda": torch.cuda.get_rng_state()} if device.type == "cuda" else state


def restore_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore a state from `random_state`."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"])
