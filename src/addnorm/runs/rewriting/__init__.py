"""Rewriting a run: swapped parts, pruned or quantised weights, and their costs."""

from addnorm.runs.options import PruneOptions, QuantizeOptions, SwapOptions
from addnorm.runs.rewriting.prune import PruneReport, prune_run
from addnorm.runs.rewriting.quantize import QuantizationReport, quantize_run, sweep_run
from addnorm.runs.rewriting.swap import SwapReport, swap_run

__all__ = [
    "PruneOptions",
    "PruneReport",
    "QuantizationReport",
    "QuantizeOptions",
    "SwapOptions",
    "SwapReport",
    "prune_run",
    "quantize_run",
    "swap_run",
    "sweep_run",
]
