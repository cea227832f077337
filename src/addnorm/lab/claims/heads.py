"""Claim 6: several heads beat one at equal cost; sharing keys and values costs little quality."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from addnorm.lab.claims.claim import (
    LOSS,
    Both,
    Claim,
    Finding,
    Panel,
    Point,
    Results,
    Row,
    Settings,
    Size,
    at_least,
    at_most,
)
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
    """One to eight heads, and eight whose keys and values are shared by more and more."""
    base = {"task": task, "steps": STEPS[size]}
    trained = [{**base, "heads": n, "kv": n} for n in HEADS]
    shared = [{**base, "heads": 8, "kv": n} for n in KV_HEADS[1:]]
    return [*trained, *shared, {"past": PAST[size], "alone": True}]


def measure(settings: Settings, seed: int) -> Iterable[Row]:
    """The loss after training; or what the cache takes and how fast it writes."""
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
    """The verdict by the rule."""
    one, eight = (Point("heads", "loss", n) for n in (1, 8))
    mqa, gqa, mha = (Point("kv heads", "loss", n) for n in (1, 2, 8))
    memory, speed = Point("memory", "cache", 8), Point("speed", "decoding", 8)
    return [
        at_least(results.difference(one, eight), 0.0, ONE),
        at_most(results.difference(mqa, mha), LIMIT, SHARED),
        at_most(results.difference(gqa, mha), LIMIT, GROUPED),
        at_most(results.ratio(memory._replace(x=1), memory), 0.126, MEMORY),
        at_least(results.ratio(speed._replace(x=1), speed), 1.1, SPEED),
    ]


ONE = Both(
    "One head is {mean} nats worse than eight of the same total width ({low} to {high}).",
    "单头比总宽度相同的八头差 {mean} 纳特（{low} 至 {high}）。",
)
SHARED = Both(
    "MQA, one pair of keys and values, costs {mean} nats ({low} to {high}; limit {limit}).",
    "八头共用一组键值（MQA）损失 {mean} 纳特（{low} 至 {high}；不超过 {limit} 视为很少）。",
)
GROUPED = Both(
    "Two pairs (GQA) cost {mean} nats ({low} to {high}; little is up to {limit}).",
    "两组键值（GQA）损失 {mean} 纳特（{low} 至 {high}；不超过 {limit} 视为很少）。",
)
MEMORY = Both("MQA's cache takes {mean} of the memory.", "MQA 的缓存占原来内存的 {mean}。")
SPEED = Both(
    "MQA writes {mean} times as fast at long contexts ({low} to {high}; the limit is {limit}).",
    "长上下文时 MQA 的生成速度为 {mean} 倍（{low} 至 {high}；界限为 {limit}）。",
)
CLAIM = Claim(
    title=Both("One head, several heads, shared heads", "单头、多头与共享键值"),
    statement=Both(
        "Several heads attend to different things and beat one of the same cost (Vaswani et al. "
        "2017, §3.2.2); MQA and GQA lose little and save memory and time (Shazeer 2019, Ainslie).",
        "多头能关注不同内容，优于同等代价的单头（Vaswani 等 2017，§3.2.2）；MQA 与 GQA 损失很少，"
        "却节省缓存内存与解码时间（Shazeer 2019，Ainslie 等 2023）。",
    ),
    literature=Both(
        "Ainslie et al. (2023) report GQA close to MHA at nearly MQA's speed; Michel et al. (2019) "
        "find that most heads can be removed after training.",
        "Ainslie 等（2023）报告 GQA 质量接近 MHA、速度接近 MQA；Michel 等"
        "（2019）发现训练后多数头可以去掉。",
    ),
    literature_finds="supported",
    predicted=Both("True.", "成立。"),
    rule=Both(
        f"Width 64 (256 for memory and speed), equal steps. The claim holds if one head is worse "
        f"than eight, MQA and GQA cost at most {LIMIT} nats, the cache shrinks to an eighth, and "
        "decoding is a tenth faster.",
        f"宽度 64（内存与速度为 256），步数相同。若单头差于八头，MQA 与 GQA 最多损失 {LIMIT} "
        "纳特，缓存缩至八分之一，且解码快一成，则论断成立。",
    ),
    panels={
        "heads": Panel(Both("heads", "头数"), LOSS, True),
        "kv heads": Panel(
            Both("pairs of keys and values for 8 heads", "8 个头的键值组数"), LOSS, True
        ),
        "memory": Panel(
            Both("pairs of keys and values", "键值组数"),
            Both("cache, bytes a token", "缓存（字节/词元）"),
            True,
        ),
        "speed": Panel(
            Both("pairs of keys and values", "键值组数"), Both("tokens a second", "词元/秒"), True
        ),
    },
    cells=cells,
    measure=measure,
    judge=judge,
    natural=True,
)
