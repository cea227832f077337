"""Claim 3: post-norm needs warm-up, pre-norm does not, DeepNorm trains where post-norm fails."""

from collections.abc import Iterable, Sequence
from math import log10
from statistics import fmean

import torch

from addnorm.lab.claims.claim import Claim, Finding, Panel, Results, Row, Settings, Size
from addnorm.lab.claims.learning import Course, decoder, gradient_of, learn_text, loss_of
from addnorm.lab.claims.tasks import halfway, next_tokens, text_of

PLACEMENTS = ("post", "pre", "sandwich", "deepnorm")
QUICK = [("post", True), ("post", False), ("pre", True), ("pre", False), ("deepnorm", False)]
NIGHTLY = ("sandwich", 50)  # decides nothing, and costs a minute and a half a cell
WORST = 10.0
DEPTHS = {"quick": (12,), "full": (6, 18, 50), "night": (6, 18, 50, 100, 200)}
UNTRAINED = {"quick": (12, 100), "full": (6, 50, 200, 1000), "night": (6, 50, 200, 1000)}
STEPS = {"quick": 400, "full": 400, "night": 400}
LENGTH, SEQUENCES, LR, LIMIT = 32, 16, 1e-3, 0.2


def cells(size: Size, task: str) -> Sequence[Settings]:
    """Return cells for each placement and depth: trained with and without warm-up, and untrained.

    Warm-up takes a third of the steps.
    """
    base = {"task": task}
    untrained = [{**base, "placement": k, "depth": n} for n in UNTRAINED[size] for k in PLACEMENTS]
    return untrained + [
        {**base, "placement": kind, "depth": n, "warmup": warm, "steps": STEPS[size]}
        for n in DEPTHS[size]
        for kind in PLACEMENTS
        for warm in (True, False)
        if (kind, warm) in QUICK or size == "night" or (size == "full" and (kind, n) != NIGHTLY)
    ]


def measure(settings: Settings, seed: int) -> Iterable[Row]:
    """Yield the gradients before training, or the last loss and whether training failed.

    It failed if the model learned little more than how frequent each token is.
    """
    text = text_of(settings["task"])
    model = decoder(
        text.vocab,
        seed,
        d_model=32,
        n_layers=settings["depth"],
        attention={"kind": "attention", "n_heads": 2},
        feedforward={"kind": "mlp", "d_ff": 64},
        residual={"kind": settings["placement"]},
    )
    if "steps" not in settings:
        drawn = text.draw(torch.Generator().manual_seed(seed), SEQUENCES, LENGTH + 1)
        loss_of(model, next_tokens(drawn)).backward()
        first, last = (gradient_of(model.stack.blocks[i]) for i in (0, -1))
        yield Row("gradient", settings["placement"], settings["depth"], log10(first / last))
        return
    steps = settings["steps"]
    course = Course(steps, LR, warmup=steps // 3 if settings["warmup"] else 0, falls=False)
    losses = learn_text(model, settings["task"], LENGTH, course, seed, SEQUENCES)
    last = min(fmean(losses[-10:]), WORST) if len(losses) == steps else WORST
    series = settings["placement"] + (", warm-up" if settings["warmup"] else "")
    yield Row("failed", series, settings["depth"], float(last > halfway(settings["task"])))
    yield Row("loss", series, settings["depth"], last)


def judge(results: Results) -> Sequence[Finding]:
    """Return the verdict by the claim's rule, at the greatest depth."""
    deepest = results.xs("loss")[-1]
    post, warm, pre, pre_warm, deep = (
        ("loss", name, deepest)
        for name in ("post", "post, warm-up", "pre", "pre, warm-up", "deepnorm")
    )
    return [
        Finding.at_least(results.difference(post, warm), LIMIT, POST, depth=deepest),
        Finding.at_most(results.difference(pre, pre_warm), LIMIT, PRE, depth=deepest),
        Finding.at_least(results.difference(post, deep), LIMIT, DEEPNORM, depth=deepest),
    ]


POST = (
    "{depth} layers: without warm-up post-norm loses {mean} nats ({low} to {high}; the limit is "
    "{limit}).",
    "{depth} 层：没有预热时，后置归一化差 {mean} 纳特（{low} 至 {high}；界限 {limit}）。",
)
PRE = (
    "{depth} layers: without warm-up pre-norm loses {mean} nats ({low} to {high}; the limit is "
    "{limit}).",
    "{depth} 层：没有预热时，前置归一化差 {mean} 纳特（{low} 至 {high}；界限 {limit}）。",
)
DEEPNORM = (
    "{depth} layers: without warm-up, DeepNorm is better than post-norm by {mean} nats ({low} to "
    "{high}; the limit is {limit}).",
    "{depth} 层：没有预热时，DeepNorm 优于后置归一化 {mean} 纳特（{low} 至 {high}；"
    "界限 {limit}）。",
)
CLAIM = Claim(
    title=("Warm-up and where the norm stands", "学习率预热与归一化的位置"),
    statement=(
        "Post-norm Transformers diverge without a warm-up of the learning rate, pre-norm ones need "
        "none (Xiong et al. 2020); DeepNorm trains where post-norm diverges (Wang et al. 2022).",
        "后置归一化的 Transformer 没有学习率预热就会发散，前置归一化则不需要（Xiong 等 2020）；"
        "DeepNorm 能在后置归一化发散之处训练（Wang 等 2022）。",
    ),
    literature=(
        "Xiong et al. (2020) train 6 + 6 layers with and without; Wang et al. (2022) train up to "
        "1,000 layers with DeepNorm, far beyond where post-norm diverges.",
        "Xiong 等（2020）比较了 6 + 6 层有无预热；Wang 等（2022）用 DeepNorm 训练到 1,000 层，"
        "远超后置归一化发散之处。",
    ),
    literature_finds="supported",
    predicted=(
        "Deep post-norm fails without warm-up and mostly also with it; pre-norm and DeepNorm hold.",
        "深层后置归一化无预热必失败，有预热也多半失败；前置归一化与 DeepNorm 稳定。",
    ),
    rule=(
        "Learning rate 1e-3, chosen by a trial: at 3e-3 DeepNorm fails as well. At the greatest "
        f"depth, without warm-up, the claim holds if the last training loss of post-norm is "
        f"{LIMIT} nats above that with warm-up, that of pre-norm is not, and that of DeepNorm is "
        "that much below post-norm's. A seed counts as failed if its loss is nearer to that of a "
        "unigram model than to that of a bigram model.",
        "学习率 1e-3，由试验选定：3e-3 时 DeepNorm 也会失败。在最大深度且没有预热时，若后置归一化的"
        f"最后训练损失比有预热时高 {LIMIT} 纳特以上，前置归一化则不然，而 DeepNorm "
        f"比后置归一化低同样多，"
        "则论断成立。若一个种子的损失更接近一元模型而非二元模型，则计为失败。",
    ),
    panels={
        "failed": Panel(("layers", "层数"), ("share of failed seeds", "失败种子的比例")),
        "loss": Panel(("layers", "层数"), ("last training loss, nats", "最后的训练损失（纳特）")),
        "gradient": Panel(
            ("layers", "层数"),
            (
                "untrained: log₁₀ of first layer's gradient over last's",
                "未训练：首末层梯度之比的 log₁₀",
            ),
            log_x=True,
        ),
    },
    cells=cells,
    measure=measure,
    judge=judge,
    natural=True,
)
