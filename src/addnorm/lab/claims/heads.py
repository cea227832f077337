"""Claim 6: several heads beat one at equal cost; sharing keys and values costs little quality."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from addnorm.lab.claims.claim import LOSS, Claim, Finding, Panel, Results, Row, Settings, Size
from addnorm.lab.claims.learning import (
    Course,
    cache_bytes,
    decoder,
    learn_text,
    loss_on_new,
    seconds_in_turn,
)
from addnorm.lab.claims.tasks import text_of

STEPS = {"quick": 200, "full": 1500, "night": 3000}
PAST = {"quick": 512, "full": 2048, "night": 2048}
HEADS, KV_HEADS, LENGTH, LIMIT = (1, 2, 4, 8), (8, 4, 2, 1), 32, 0.05


def cells(size: Size, task: str) -> Sequence[Settings]:
    """Return cells with one to eight heads, and with eight that share keys and values."""
    base = {"task": task, "steps": STEPS[size]}
    trained = [{**base, "heads": n, "kv": n} for n in HEADS]
    shared = [{**base, "heads": 8, "kv": n} for n in KV_HEADS[1:]]
    return [*trained, *shared, {"past": PAST[size], "alone": True}]


def measure(settings: Settings, seed: int) -> Iterable[Row]:
    """Yield the loss after training, or the size of the cache and the speed of decoding."""
    if "past" in settings:
        yield from _decoding(settings["past"], seed)
        return
    heads, kv, task = settings["heads"], settings["kv"], settings["task"]
    attention = {"kind": "attention", "n_heads": heads, "n_kv_heads": kv}
    model = decoder(text_of(task).vocab, seed, attention=attention)
    learn_text(model, task, LENGTH, Course(settings["steps"]), seed)
    loss = loss_on_new(model, task, 256, LENGTH)
    if heads == kv:
        yield Row("heads", "loss", heads, loss)
    if heads == 8:
        yield Row("kv heads", "loss", kv, loss)


@torch.no_grad()
def _decoding(past: int, seed: int) -> Iterable[Row]:
    tokens = torch.randint(100, (8, past), generator=torch.Generator().manual_seed(seed))
    works = dict[int, Callable[[], object]]()
    for kv in KV_HEADS:
        attention = {"kind": "attention", "n_heads": 8, "n_kv_heads": kv}
        model = decoder(100, seed, d_model=256, attention=attention).eval()
        cache = model.new_cache()
        model.next_token_logits(tokens, cache=cache)
        yield Row("memory", "cache", kv, cache_bytes(cache) / tokens.numel())
        works[kv] = partial(model.next_token_logits, tokens[:, :1], cache=cache)
    for kv, seconds in seconds_in_turn(works, 40).items():
        yield Row("speed", "decoding", kv, len(tokens) / seconds)


def judge(results: Results) -> Sequence[Finding]:
    """Return the verdict by the claim's rule."""
    single, eight = (("heads", "loss", n) for n in (1, 8))
    mqa, gqa, mha = (("kv heads", "loss", n) for n in (1, 2, 8))
    memory = results.ratio(("memory", "cache", 1), ("memory", "cache", 8))
    speed = results.ratio(("speed", "decoding", 1), ("speed", "decoding", 8))
    return [
        Finding.at_least(results.difference(single, eight), 0.0, ONE),
        Finding.at_most(results.difference(mqa, mha), LIMIT, SHARED),
        Finding.at_most(results.difference(gqa, mha), LIMIT, GROUPED),
        Finding.at_most(memory, 0.126, MEMORY),
        Finding.at_least(speed, 1.1, SPEED),
    ]


ONE = (
    "One head is {mean} nats worse than eight of the same total width ({low} to {high}).",
    "单头比总宽度相同的八头差 {mean} 纳特（{low} 至 {high}）。",
)
SHARED = (
    "MQA, one pair of keys and values, costs {mean} nats ({low} to {high}; limit {limit}).",
    "八头共用一组键值（MQA）损失 {mean} 纳特（{low} 至 {high}；不超过 {limit} 视为很少）。",
)
GROUPED = (
    "Two pairs (GQA) cost {mean} nats ({low} to {high}; little is up to {limit}).",
    "两组键值（GQA）损失 {mean} 纳特（{low} 至 {high}；不超过 {limit} 视为很少）。",
)
MEMORY = ("MQA's cache takes {mean} of the memory.", "MQA 的缓存占原来内存的 {mean}。")
SPEED = (
    "MQA writes {mean} times as fast at long contexts ({low} to {high}; the limit is {limit}).",
    "长上下文时 MQA 的生成速度为 {mean} 倍（{low} 至 {high}；界限为 {limit}）。",
)
CLAIM = Claim(
    title=("One head, several heads, shared heads", "单头、多头与共享键值"),
    statement=(
        "Several heads attend to different things and beat one of the same cost (Vaswani et al. "
        "2017, §3.2.2); MQA and GQA lose little and save memory and time (Shazeer 2019, Ainslie).",
        "多头能关注不同内容，优于同等代价的单头（Vaswani 等 2017，§3.2.2）；MQA 与 GQA 损失很少，"
        "却节省缓存内存与解码时间（Shazeer 2019，Ainslie 等 2023）。",
    ),
    literature=(
        "Ainslie et al. (2023) report GQA close to MHA at nearly MQA's speed; Michel et al. (2019) "
        "find that most heads can be removed after training.",
        "Ainslie 等（2023）报告 GQA 质量接近 MHA、速度接近 MQA；Michel 等"
        "（2019）发现训练后多数头可以去掉。",
    ),
    literature_finds="supported",
    predicted=("True.", "成立。"),
    rule=(
        f"Width 64 (256 for memory and speed), equal steps. The claim holds if one head is worse "
        f"than eight, MQA and GQA cost at most {LIMIT} nats, the cache shrinks to an eighth, and "
        "decoding is a tenth faster.",
        f"宽度 64（内存与速度为 256），步数相同。若单头差于八头，MQA 与 GQA 最多损失 {LIMIT} "
        "纳特，缓存缩至八分之一，且解码快一成，则论断成立。",
    ),
    panels={
        "heads": Panel(("heads", "头数"), LOSS, True),
        "kv heads": Panel(("pairs of keys and values for 8 heads", "8 个头的键值组数"), LOSS, True),
        "memory": Panel(
            ("pairs of keys and values", "键值组数"),
            ("cache, bytes a token", "缓存（字节/词元）"),
            True,
        ),
        "speed": Panel(
            ("pairs of keys and values", "键值组数"), ("tokens a second", "词元/秒"), True
        ),
    },
    cells=cells,
    measure=measure,
    judge=judge,
    natural=True,
)
