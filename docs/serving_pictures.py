"""The picture of pages in the documentation, drawn from the steps of an engine."""

from time import monotonic

import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from addnorm.generate import SampleConfig
from addnorm.models import DecoderConfig
from addnorm.serve.engine.choosing import Chooser
from addnorm.serve.engine.decoder import PagedDecoder
from addnorm.serve.engine.options import Options
from addnorm.serve.engine.paged import PagedLane
from addnorm.serve.engine.pages import PagePool
from addnorm.serve.engine.schedule import Limits
from addnorm.serve.engine.sequence import Request

PAGES = 16
PAGE_SIZE = 8
FREE, SHARED = 0, 4
"""The numbers of colours; those of the requests lie between."""


def pages() -> Figure:
    """Who holds which page at which step: three requests, and too little memory for all of them."""
    model = DecoderConfig(d_model=16, n_layers=2).build(50)
    decoder = PagedDecoder(model, PagePool(PAGES, PAGE_SIZE), "gathered")
    lane = PagedLane(decoder, Limits(rows=8, chunk=16, queue=8), monotonic)
    beginning = tuple(torch.randint(50, (32,)).tolist())
    requests = {
        0: Request(name="a", prompt=beginning, limit=40),
        6: Request(name="b", prompt=(*beginning, 3, 1, 4, 1, 5), limit=24, n=2),
        14: Request(name="c", prompt=tuple(torch.randint(50, (40,)).tolist()), limit=12),
    }
    rows = list[list[int]]()
    while lane or len(rows) < max(requests):
        if (request := requests.get(len(rows))) is not None:
            prompt, limit, n = request.prompt, request.limit, request.n
            own = Chooser.of(
                SampleConfig(seed=1), Options(), before=prompt, limit=limit, n=n, ends=()
            )
            lane.add(request, own)
        lane.step()
        rows.append(_holders(lane))
    return _drawn(np.array(rows).T)


def _holders(lane: PagedLane) -> list[int]:
    """Which request holds each page; `SHARED` for two sequences, `FREE` for none."""
    holders = [FREE] * PAGES
    for sequence in lane.schedule.running:
        for page in sequence.table.pages:
            if page is not None:
                mine = "abc".index(sequence.request.name) + 1
                holders[page] = SHARED if holders[page] else mine
    return holders


def _drawn(holders: np.ndarray) -> Figure:
    """A row for each page, a column for each step."""
    colours = ["#ffffff00", "#3b82c4", "#e08a2e", "#4f9d5d", "#8a5fb0"]
    names = ["free, or kept for the next equal beginning", "a", "b: two answers", "c", "shared"]
    figure, axis = plt.subplots(figsize=(9, 3.4), layout="constrained")
    axis.pcolormesh(
        holders, cmap=ListedColormap(colours), vmin=0, vmax=4, edgecolors="#9996", lw=0.3
    )
    axis.set(xlabel="step", ylabel="page")
    axis.invert_yaxis()
    patches = [Patch(fc=c, ec="#999", label=n) for c, n in zip(colours, names, strict=True)]
    figure.legend(handles=patches, ncols=5, loc="outside upper center", frameon=False, fontsize=9)
    return figure
