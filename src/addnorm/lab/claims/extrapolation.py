"""Claim 1: sinusoidal positions extrapolate past the training length, learned ones cannot."""

from collections.abc import Iterable, Sequence

from addnorm.errors import InputError
from addnorm.lab.claims.claim import Claim, Finding, Panel, Results, Row, Settings, Size
from addnorm.lab.claims.learning import Course, decoder, learn_text, loss_on_new
from addnorm.lab.claims.tasks import text_of

POSITIONS = ("sinusoidal", "learned", "rotary", "alibi", "t5", "transformer_xl", "none")
FACTORS = (1, 2, 4, 8, 16)
STEPS = {"quick": 400, "full": 2000, "night": 2000}
LENGTH = {"quick": 16, "full": 32, "night": 64}
LIMIT = 0.1


def cells(size: Size, task: str) -> Sequence[Settings]:
    """Return a cell of a decoder for each kind of positions."""
    return [
        {"task": task, "position": kind, "steps": STEPS[size], "length": LENGTH[size]}
        for kind in POSITIONS
    ]


def measure(settings: Settings, seed: int) -> Iterable[Row]:
    """Train at one length; yield the loss on the last tokens of longer texts."""
    length, kind = settings["length"], settings["position"]
    vocab = text_of(settings["task"]).vocab
    model = decoder(vocab, seed, position={"kind": kind}, max_len=length)
    learn_text(model, settings["task"], length, Course(settings["steps"], lr=5e-3), seed)
    for factor in FACTORS:
        try:
            loss = loss_on_new(
                model, settings["task"], 64, factor * length, last=length, seed=7000 + seed
            )
        except InputError:
            yield Row("refused", kind, factor, 1.0)
        else:
            yield Row("loss", kind, factor, loss)


def judge(results: Results) -> Sequence[Finding]:
    """Return the verdict by the claim's rule."""
    grown = results.difference(("loss", "sinusoidal", 4), ("loss", "sinusoidal", 1))
    gain = results.difference(("loss", "none", 1), ("loss", "sinusoidal", 1))
    refuses = ("refused", "learned", 2) in results.values
    return [
        Finding.at_least(gain, LIMIT, GAIN),
        Finding.at_most(grown, LIMIT, GROWN),
        Finding("supported" if refuses else "refuted", REFUSES if refuses else ANSWERS),
    ]


GAIN = (
    "At the training length, sinusoidal positions are worth {mean} nats ({low} to {high}; the "
    "limit is {limit}).",
    "在训练长度处，正弦位置带来 {mean} 纳特的改善（{low} 至 {high}；界限为 {limit}）。",
)
GROWN = (
    "With sinusoidal positions the loss at four times the training length is {mean} nats above "
    "that at the training length (95 % interval {low} to {high}; the limit is {limit}).",
    "使用正弦位置时，四倍训练长度处的损失比训练长度处高 {mean} 纳特"
    "（95 % 区间 {low} 至 {high}；界限为 {limit}）。",
)
REFUSES = (
    "Learned positions refuse every text that is longer than their table.",
    "学习式位置拒绝任何长于其位置表的文本。",
)
ANSWERS = ("Learned positions answered beyond their table.", "学习式位置在位置表之外仍给出了答案。")
CLAIM = Claim(
    title=("Positions beyond the training length", "超出训练长度的位置"),
    statement=(
        'Sinusoidal positions "may allow the model to extrapolate to sequence lengths longer than '
        'the ones encountered during training" (Vaswani et al. 2017, §3.5), and tutorials repeat '
        "that they do, while learned ones cannot.",
        "Vaswani 等（2017，§3.5）认为正弦位置“或许”能外推到训练中未见的长度；"
        "教程则说它们确实能，而学习式位置不能。",
    ),
    literature=(
        "Press et al. (2022) found that sinusoidal positions get worse soon after the training "
        "length, rotary ones somewhat later, T5's later still, and that ALiBi's hold.",
        "Press 等（2022）发现：正弦位置刚超过训练长度就变差，旋转位置稍晚，T5 更晚，"
        "而 ALiBi 保持稳定。",
    ),
    literature_finds="refuted",
    predicted=(
        "Sinusoidal positions fail within four times the length; ALiBi and T5's biases hold.",
        "正弦位置在四倍长度之内失效；ALiBi 与 T5 偏置保持稳定。",
    ),
    rule=(
        "Each model is trained at length L. The loss is that of the last L tokens of texts of "
        f"L to 16 L. The claim holds if sinusoidal positions are of use at L ({LIMIT} nats), "
        f"lose at "
        f"most {LIMIT} nats at 4 L, and learned ones refuse 2 L.",
        "每个模型在长度 L 上训练；损失取 L 至 16 L 文本的最后 L 个词元。若正弦位置在 L 处带来 "
        f"{LIMIT} 纳特以上的改善，在 4 L 处最多损失 {LIMIT} 纳特，且学习式位置拒绝 2 L，"
        f"则论断成立。",
    ),
    panels={
        "loss": Panel(
            ("length, in training lengths", "长度（训练长度的倍数）"),
            ("loss of the last L tokens, nats", "最后 L 个词元的损失（纳特）"),
            log_x=True,
        )
    },
    cells=cells,
    measure=measure,
    judge=judge,
    natural=True,
)
