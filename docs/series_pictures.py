"""The pictures of time series in the documentation, each drawn by the code that it shows."""

import math
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

import addnorm
from addnorm.data.batches.buckets import SeriesBatchesConfig
from addnorm.data.readers.series import SeriesConfig
from addnorm.inspect.predictions import forecast_picture
from addnorm.models import EncoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.forecast import ForecastHeadConfig
from addnorm.nn.instance_norm import InstanceNorm
from addnorm.nn.patches import SeriesEmbeddingConfig
from addnorm.nn.positions import LearnedConfig
from addnorm.nn.residuals import PreNormConfig


def patches() -> plt.Figure:
    """Two windows of a series on other levels, and what a model reads of them: patches."""
    steps = torch.arange(96)
    windows = torch.stack(
        [
            scale * (steps / 24 * 2 * math.pi).sin() + level + slope * steps
            for scale, level, slope in ((1.0, 3.0, 0.0), (3.0, 12.0, 0.08))
        ]
    )
    norm = InstanceNorm(1, "instance")
    read, _ = norm(windows[:, None], torch.ones(2, 1, len(steps), dtype=torch.bool))
    figure, axes = plt.subplots(1, 2, figsize=(9, 2.6), layout="constrained")
    for axis, lines, title in (
        (axes[0], windows, "two windows, in units"),
        (axes[1], read[:, 0], "as they are read: norm = instance, patch = 24"),
    ):
        axis.plot(steps, lines.T)
        axis.set(title=title, xlabel="step")
    for start in range(0, len(steps) + 1, 24):
        axes[1].axvline(start, color="#b9c2cb", lw=0.8)
    return figure


def forecast() -> Figure:
    """Two made series of six weeks, of which a small model forecasts four days."""
    generator = torch.Generator().manual_seed(0)
    angle = torch.arange(24 * 42) / 24 * 2 * math.pi
    noise = torch.randn(2, len(angle), generator=generator)
    load = 10 + 3 * angle.sin() + (angle / 7).sin() + 0.3 * noise[0]
    warmth = 15 + 5 * (angle - 0.8).sin() + 0.02 * torch.arange(len(angle)) + 0.5 * noise[1]
    start = datetime(2023, 1, 1)
    rows = [
        f"{start + timedelta(hours=i)},{a:.4f},{b:.4f}"
        for i, (a, b) in enumerate(zip(load.tolist(), warmth.tolist(), strict=True))
    ]
    series = SeriesEmbeddingConfig(
        channels=2, patch=24, norm="instance", variables="independent", look_back=168
    )
    config = EncoderConfig(
        d_model=32,
        n_layers=1,
        input=series,
        position=LearnedConfig(),
        attention=AttentionConfig(n_heads=4),
        residual=PreNormConfig(),
        head=ForecastHeadConfig(horizon=96),
        max_len=16,
        init="zero_output",
    )
    with TemporaryDirectory() as name:
        file = Path(name) / "load.csv"
        file.write_text("\n".join(["date,load,temperature", *rows]) + "\n")
        data = SeriesConfig(file=file, valid_from=0.75, test_from=0.85)
        run = addnorm.train(
            config,
            data,
            folder=Path(name) / "load",
            epochs=4,
            batching=SeriesBatchesConfig(size=32),
            lr=2e-3,
            progress=False,
        )
        return forecast_picture(run.forecast(file, until="2023-02-07"))
