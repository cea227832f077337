"""Names of devices and dtypes: valid ones, and suggestions for others."""

import pytest
import torch

from addnorm.errors import InputError
from addnorm.runs.devices import DTYPES, device_named, dtype_named


@pytest.mark.parametrize("name", DTYPES)
def test_a_type_by_its_name_and_by_itself(name: str) -> None:
    assert dtype_named(name) == dtype_named(DTYPES[name]) == getattr(torch, name)


@pytest.mark.parametrize("name", ["flaot32", "int8", torch.int64])
def test_types_that_weights_do_not_have(name: str | torch.dtype) -> None:
    with pytest.raises(InputError, match=r"is none of weights.* Valid: float32, float16"):
        dtype_named(name)


def test_devices() -> None:
    assert device_named("cpu") == device_named(torch.device("cpu")) == torch.device("cpu")
    with pytest.raises(InputError, match=r"'cpuu'` is not here\. Did you mean 'cpu'"):
        device_named("cpuu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match=r"'cuda'` is not here\. torch sees: cpu\."):
            device_named("cuda")
