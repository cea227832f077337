"""Counting the floating-point operations of a model."""

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from addnorm.data.batches.batch import Batch
from addnorm.nn.choices import KernelChoices, use_choices


def forward_flops(model: nn.Module, batch: Batch) -> int:
    """The FLOP of all matrix products in a forward pass; a multiply-add counts as two.

    torch counts them on one batch of real data, without norms, activations and softmax, as is usual
    (Kaplan et al. 2020, §2.1). Attention counts as its products over all pairs, masked or not. A
    training step has about three times as many.
    """
    training = model.training
    counter = FlopCounterMode(display=False)
    plain = KernelChoices(product="torch", bias="torch", few_queries=0)
    with _frozen(model), use_choices(plain), sdpa_kernel(SDPBackend.MATH), counter:
        model.eval()(**batch.inputs)
    model.train(training)
    return counter.get_total_flops()


@contextmanager
def _frozen(model: nn.Module) -> Generator[None]:
    """In this context, no parameter needs a gradient.

    The counter follows even a parameter that is returned, which has no gradient function.
    """
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in learned:
        parameter.requires_grad_(False)
    try:
        with torch.no_grad():
            yield
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)
