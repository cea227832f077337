"""A check ends what a model computes before its next module, and leaves nothing behind."""

import pytest
import torch
from torch import nn

from addnorm.serve.engine.interruption import Interrupted, interruptible


def test_a_check_is_called_before_each_module_and_may_end_the_computation() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1
        if checks == 5:
            raise Interrupted

    x = torch.ones(1, 2)
    with interruptible(model, check):
        model(x)
        assert checks == 3
        with pytest.raises(Interrupted):
            model(x)
    model(x)
    assert checks == 5
