"""The report of a study: Markdown in two languages, one page of HTML, JSON, and pictures."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from addnorm.atomic import atomic_write
from addnorm.errors import InputError
from addnorm.inspect.curves import COLORS, Curves, smoothed
from addnorm.inspect.pictures import FAINT, INK, Axes, Lettering, blank_figure, finished
from addnorm.lab import latex
from addnorm.lab.markup import Language, code, finite, page, plain
from addnorm.lab.statistics import Interval, barely_learnt, bounds, p_value, signed, with_reach
from addnorm.lab.studies.study import Study
from addnorm.lab.studies.summary import Row, Summary
from addnorm.lab.studies.variants import short_labels, short_names

MARKDOWN: Mapping[Language, str] = {"en": "report.md", "zh": "report.zh-CN.md"}
HTML = "report.html"
JSON = "report.json"
LATEX = "report.tex"


def write_report(study: Study, summary: Summary) -> list[Path]:
    """Write all files of the report to the study's folder; return their paths."""
    folder = study.folder
    pictures = [forest_picture(study, summary, folder), curves_picture(study, folder)]
    drawn = [picture for picture in pictures if picture]
    texts: dict[Language, str] = {
        language: markdown(study, summary, language, drawn) for language in MARKDOWN
    }
    for language, name in MARKDOWN.items():
        atomic_write(folder / name, texts[language])
    atomic_write(folder / HTML, page(title_of(study, "en"), texts, folder))
    atomic_write(folder / JSON, json.dumps(finite(asdict(summary)), indent=1, ensure_ascii=False))
    atomic_write(folder / LATEX, latex_table(study, summary))
    return [folder / name for name in (MARKDOWN["en"], MARKDOWN["zh"], HTML, JSON, LATEX)]


def title_of(study: Study, language: Language) -> str:
    """Return the study's question; by default, which of the values is best."""
    words = WORDS[language]
    fields = words["and"].join(short_names(list(study.settings.vary)))
    return study.settings.question or words["question"].format(fields=fields)


def markdown(study: Study, summary: Summary, language: Language, pictures: Sequence[str]) -> str:
    """The report as Markdown: design, verdicts, table, pictures, and how to read the table."""
    words = WORDS[language]
    rows = summary.rows
    lines = [
        f"# {plain(title_of(study, language))}",
        "",
        words["design"].format(
            variants=sum(not row.refused for row in rows),
            seeds=_seeds(summary.n_seeds, words),
            recipe=code(study.settings.recipe),
            metric=summary.metric,
            split=words["and"].join(words[split] for split in summary.splits),
            better=words["lower" if summary.lower_is_better else "higher"],
            first=plain(rows[0].name),
        ),
        "",
        f"## {words['verdicts']}",
        "",
        *(f"- {line}" for row in rows for line in verdict_lines(row, summary, language)),
        *(f"- {line}" for line in unequal_lines(study, summary, language)),
        *(f"- {line}" for line in barely_learnt_lines(study, language)),
        "",
        f"## {words['figures']}",
        "",
        words["head"].format(metric=summary.metric),
        "|---|" + "---:|" * 9,
        *(table_line(row) for row in rows if not row.refused),
        "",
    ]
    if pictures:
        titles = (words["forest"].format(first=plain(rows[0].name)), words["curves"])
        lines += [f"## {words['pictures']}", ""]
        lines += [f"![{titles['curves' in picture]}]({picture})\n" for picture in pictures]
    return "\n".join([*lines, f"## {words['reading']}", "", words["notes"], ""])


def verdict_lines(row: Row, summary: Summary, language: Language) -> list[str]:
    """Return the sentences about a variant: its verdict, and its missing cells."""
    words, name = WORDS[language], plain(row.name)
    if row.refused:
        return [words["refused_is"].format(name=name, reason=plain(row.refused))]
    lines: list[str] = []
    if row.dropped:
        lines.append(words["dropped_is"].format(name=name, reason=plain(row.dropped)))
    elif row is not summary.rows[0]:
        lines.append(_verdict(row, summary, words))
    if row.adjusted:
        fields = ", ".join(code(f"{field} = {value}") for field, value in row.adjusted.items())
        lines.append(f"**{name}** · {words['adjusted'].format(fields=fields)}")
    for kind, n in (("diverged", row.diverged), ("missing", row.missing)):
        if n and not row.dropped:
            line = words[f"{kind}_is"].format(name=name, n=n, seeds=_seeds(summary.n_seeds, words))
            lines.append(line)
    return lines


def unequal_lines(study: Study, summary: Summary, language: Language) -> list[str]:
    """Return warnings if the variants differ in data or numbers of tokens."""
    words, lines = WORDS[language], list[str]()
    if fields := [name for name in study.settings.vary if name.startswith("data.")]:
        named = words["and"].join(code(name) for name in fields)
        lines.append(words["data_differ"].format(fields=named))
    tokens = [row.tokens for row in summary.rows if row.values]
    if tokens and min(tokens) < 0.99 * max(tokens):
        least, most = f"{min(tokens):,}", f"{max(tokens):,}"
        lines.append(words["tokens_differ"].format(least=least, most=most))
    return lines


def barely_learnt_lines(study: Study, language: Language) -> list[str]:
    """Return a warning for each variant that has barely learnt with some seed."""
    falls: dict[str, tuple[float, float]] = {}
    for cell in study.cells:
        if (losses := barely_learnt(cell.folder)) is not None:
            falls.setdefault(study.variants[cell.variant].name, losses)
    line = WORDS[language]["barely_learnt"]
    return [
        line.format(name=plain(name), first=f"{first:.4g}", last=f"{last:.4g}")
        for name, (first, last) in falls.items()
    ]


def latex_table(study: Study, summary: Summary) -> str:
    """The figures as a LaTeX table, with short labels for the variants."""
    labels = short_labels(study.variants)
    head = ["variant", summary.metric, r"95\,\%", "difference", r"95\,\%", "$p$", "parameters"]
    rows: list[list[str]] = []
    for row in summary.rows:
        if row.refused:
            continue
        mean, difference = row.mean, row.difference
        tested = difference is not None and difference.interval.n > 1
        rows.append(
            [
                latex.escaped(labels[row.name]),
                latex.number(mean and mean.mean),
                latex.interval(mean, sign=False),
                latex.number(difference and difference.interval.mean, sign=True),
                latex.interval(difference and difference.interval, sign=True),
                latex.p(difference.adjusted) if difference and tested else latex.NONE,
                f"{row.parameters:,}",
            ]
        )
    seeds = _seeds(summary.n_seeds, WORDS["en"])
    comment = f"{seeds}; intervals over seeds, Student's t; p corrected by Holm"
    head[1] = latex.escaped(summary.metric)
    return latex.table(head, rows, comment)


def _verdict(row: Row, summary: Summary, words: Mapping[str, str]) -> str:
    difference, name = row.difference, plain(row.name)
    if difference is None:
        first = summary.rows[0]
        kind = "none_is" if first.values or not row.values else "first_none_is"
        return words[kind].format(name=name, first=plain(first.name))
    if difference.verdict == "equal":
        return words["equal_is"].format(name=name)
    better = summary.better(row)
    kind = "undecided" if better is None else "better" if better else "worse"
    needed = words["needed"].format(needed=f"{difference.needed:,}") if difference.needed else ""
    line = words[f"{kind}_is"].format(
        name=name,
        metric=summary.metric,
        difference=signed(difference.interval.mean),
        interval=_interval_words(difference.interval, words),
        n=_seeds(difference.interval.n, words),
        needed=needed,
    )
    return line + ("" if row.bleu_p is None else words["bleu"].format(p=f"{row.bleu_p:.3f}"))


def _seeds(n: int, words: Mapping[str, str]) -> str:
    return words["seed" if n == 1 else "seeds"].format(n=n)


def _interval_words(interval: Interval, words: Mapping[str, str]) -> str:
    if math.isinf(interval.low):
        return words["one_seed"]
    return words["interval"].format(low=signed(interval.low), high=signed(interval.high))


def table_line(row: Row) -> str:
    """A line of the table, with dashes for missing values."""
    difference = row.difference
    cells = [
        plain(row.name),
        "–" if row.mean is None else with_reach(row.mean),
        "–" if difference is None else signed(difference.interval.mean),
        "–" if difference is None else bounds(difference.interval),
        "–" if row.examples is None else bounds(row.examples),
        "–" if difference is None or math.isnan(difference.effect) else _effect(difference.effect),
        "–" if difference is None or difference.interval.n < 2 else _p(difference.adjusted),
        f"{row.parameters:,}",
        f"{row.tokens:,}",
        f"{row.seconds:,.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def _effect(effect: float) -> str:
    return signed(round(effect, 2))


def _p(p: float) -> str:
    """Return a p-value for a table: `0.012`, or `< 0.001`."""
    return plain(p_value(p).removeprefix("= "))


WORDS: Mapping[Language, Mapping[str, str]] = {
    "en": {
        "question": "Which {fields} is best?",
        "and": " and ",
        "valid": "validation",
        "test": "test",
        "design": "{variants} variants with {seeds} each, of {recipe}; the score is "
        "{metric} on the {split} split, {better} is better. All are compared with the first, "
        "**{first}**, seed by seed.",
        "higher": "higher",
        "lower": "lower",
        "verdicts": "Results",
        "better_is": "**{name}** is better: {metric} {difference} on average, {interval}.",
        "worse_is": "**{name}** is worse: {metric} {difference} on average, {interval}.",
        "equal_is": "**{name}** is equal with every seed.",
        "undecided_is": "**{name}** is undecided at {n}: {metric} {difference} on average, "
        "{interval}.{needed}",
        "needed": " If that is the true difference, {needed} seeds would decide it in 80 of 100 "
        "studies.",
        "interval": "95 % interval {low} to {high}",
        "one_seed": "no interval with a single seed",
        "none_is": "**{name}** has no figure to compare.",
        "first_none_is": "**{name}** cannot be compared: **{first}**, the first, has no figure.",
        "tokens_differ": "The variants did not see the same number of tokens: {least} to {most}. "
        "That may be the cause of a difference.",
        "barely_learnt": "**Warning:** **{name}** has barely learnt: the training loss fell from "
        "{first} at the first step, about chance, to {last}. Differences between such models prove "
        "little about trained ones: more steps, or a higher learning rate?",
        "data_differ": "{fields} changes the data: figures of different examples are compared.",
        "refused_is": "**{name}** was refused before anything ran: {reason}",
        "dropped_is": "**{name}** was dropped early: {reason}.",
        "diverged_is": "**{name}** met NaN or an infinite number with {n} of {seeds}; only the "
        "others are compared.",
        "missing_is": "**{name}** is not finished with {n} of {seeds}.",
        "seed": "1 seed",
        "seeds": "{n} seeds",
        "figures": "Figures",
        "head": "| variant | {metric} | difference | 95 % interval | over examples | effect | p | "
        "parameters | tokens | seconds |",
        "pictures": "Pictures",
        "forest": "Difference to {first}",
        "curves": "Learning curves",
        "reading": "How to read this",
        "notes": "The difference is the mean over seeds of a variant minus the first; the interval "
        "is that of Student's t, for means of percentages that of arcsin √p, which stays within 0 "
        "and 100. *Over examples* is the interval when test examples (batches for a "
        "loss, stretches of windows for a forecast) are drawn again (bootstrap): how sure the "
        "difference is for these weights on other data. The effect is the mean difference in units "
        "of its standard deviation. p is that of the paired t-test, corrected by Holm for all "
        "variants of this study; below 0.05 the variant is called better or worse. Seconds are "
        "those of training one cell (median). Where a score counts examples, such as accuracy, "
        "p and the interval take it to vary by one example at least.",
        "bleu": " For BLEU, sacrebleu's paired bootstrap of the first seed gives p = {p}.",
        "adjusted": "Made equal in cost: {fields}.",
    },
    "zh": {
        "question": "哪种 {fields} 最好？",
        "and": " 和 ",
        "valid": "验证",
        "test": "测试",
        "design": "{recipe} 的 {variants} 个变体，每个 {seeds}；指标是 {split} "
        "数据上的 {metric}，越{better}越好。全部按种子逐一与第一个变体 **{first}** 比较。",
        "higher": "高",
        "lower": "低",
        "verdicts": "结论",
        "better_is": "**{name}** 更好：{metric} 平均 {difference}，{interval}。",
        "worse_is": "**{name}** 更差：{metric} 平均 {difference}，{interval}。",
        "equal_is": "**{name}** 在每个种子下都相等。",
        "undecided_is": "**{name}** 在 {n}下未定：{metric} 平均 {difference}，{interval}。{needed}",
        "needed": "若真实差异如此，{needed} 个种子在 100 次研究中可有 80 次得出结论。",
        "interval": "95 % 区间 {low} 至 {high}",
        "one_seed": "只有一个种子，没有区间",
        "none_is": "**{name}** 没有可比较的数字。",
        "first_none_is": "**{name}** 无法比较：第一个变体 **{first}** 没有数字。",
        "tokens_differ": "各变体看到的词元数不同：{least} 至 {most}。差异可能来自所见数据的多少。",
        "barely_learnt": "**警告：**{name} 几乎没有学到东西：训练损失从第一步的 {first}"
        "（约为随机水平）只降到 {last}。这样的模型之间的差异说明不了训练好的模型："
        "增加步数，或提高学习率？",
        "data_differ": "{fields} 改变了数据：所比较的数字来自不同的样本。",
        "refused_is": "**{name}** 在开始之前被拒绝：{reason}",
        "dropped_is": "**{name}** 被提前淘汰：{reason}。",
        "diverged_is": "**{name}** 有 {n} 个种子（共 {seeds}）出现了非有限数；只比较其余的。",
        "missing_is": "**{name}** 有 {n} 个种子（共 {seeds}）尚未完成。",
        "seed": "1 个种子",
        "seeds": "{n} 个种子",
        "figures": "数字",
        "head": "| 变体 | {metric} | 差异 | 95 % 区间 | 按样本 | 效应 | p | 参数 | 词元 | 秒 |",
        "pictures": "图",
        "forest": "与 {first} 的差异",
        "curves": "学习曲线",
        "reading": "如何阅读",
        "notes": "差异是各种子下变体减去第一个变体的平均值；区间来自学生 t 分布，"
        "百分数的均值则取 arcsin √p 的区间再换算回来，因而不出 0 与 100。“按样本”是重新抽取"
        "测试样本（对损失则是批，对预测则是连续的若干窗口）的自助法区间：就这些权重而言，换一批数据时差异有多可靠。效应是平均差异"
        "除以其标准差。p 来自配对 t 检验，并按 Holm 方法对本研究的全部变体校正；小于 0.05 时称为"
        "更好或更差。秒数是训练一个格子所用时间的中位数。对于数样本的指标（如准确率），"
        "p 与区间假定其至少有一个样本的波动。",
        "bleu": "对 BLEU，sacrebleu 对第一个种子的配对自助法给出 p = {p}。",
        "adjusted": "为使代价相等而调整：{fields}。",
    },
}


GOOD, BAD = "#3a7d44", "#c8553d"


def forest_picture(study: Study, summary: Summary, folder: Path) -> str:
    """Draw each variant's difference to the first, with its 95 % interval.

    Writes `differences.svg` and `.png`. Returns the name of the first, or an empty text if no
    variant has a difference.
    """
    rows = [row for row in summary.rows if row.difference is not None][::-1]
    if not rows:
        return ""
    labels = short_labels(study.variants)
    title = f"{summary.metric}: difference to {labels[summary.rows[0].name]}"
    names = [labels[row.name] for row in rows]
    lettering = Lettering.of([title, *names])
    figure = blank_figure(7.2, 1.3 + 0.42 * len(rows))
    ax = figure.subplots()
    ax.axvline(0, color=FAINT, lw=0.8)
    for y, row in enumerate(rows):
        _draw_row(ax, y, row, summary)
    ax.set_yticks(range(len(rows)), [lettering.line(name) for name in names])
    for label in ax.get_yticklabels():
        label.set_fontproperties(lettering.font(9))
        label.set_parse_math(False)
    ax.set_ylim(-0.6, len(rows) - 0.4)
    side = "left" if summary.lower_is_better else "right"
    ax.set_xlabel(f"mean over seeds, 95 % interval; {side} of the line is better", fontsize=8)
    ax.tick_params(colors=INK, labelsize=8, length=2)
    ax.spines[["top", "right", "left"]].set_visible(False)
    for name in ("differences.png", "differences.svg"):
        finished(figure, title, lettering, folder / name)
    return "differences.svg"


def _draw_row(ax: Axes, y: int, row: Row, summary: Summary) -> None:
    assert row.difference is not None
    interval = row.difference.interval
    better = summary.better(row)
    color = FAINT if better is None else GOOD if better else BAD
    if math.isfinite(interval.low):
        ax.plot([interval.low, interval.high], [y, y], color=color, lw=2.2, solid_capstyle="round")
    ax.plot([interval.mean], [y], "o", color=color, ms=6)


def curves_picture(study: Study, folder: Path) -> str:
    """Draw each variant's learning curve: the mean over seeds in a band of their range.

    It is the validation loss if there is one, else the smoothed training loss. Writes `curves.svg`
    and `.png`. Returns the name of the first, or an empty text if no cell has steps.
    """
    lines = _lines(study)
    if not lines:
        return ""
    title = "validation loss" if all(line[3] for line in lines) else "training loss"
    lettering = Lettering.of([title, *(name for name, *_ in lines)])
    figure = blank_figure(7.2, 4.4)
    ax = figure.subplots()
    for (name, steps, values, _), color in zip(lines, COLORS * len(lines), strict=False):
        label = lettering.line(name)
        ax.plot(steps, values.mean(0), color=color, lw=1.5, label=label)
        if len(values) > 1:
            ax.fill_between(steps, values.min(0), values.max(0), color=color, alpha=0.15, lw=0)
    ax.set_xlabel("step", color=INK, fontsize=9)
    ax.set_ylabel(title, color=INK, fontsize=9)
    ax.tick_params(colors=FAINT, labelsize=8, length=2)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color="#e4e9ee", lw=0.6)
    legend = ax.legend(frameon=False, fontsize=8, prop=lettering.font(8))
    for text in legend.get_texts():
        text.set_parse_math(False)
    for name in ("curves.png", "curves.svg"):
        finished(figure, "", lettering, folder / name)
    return "curves.svg"


Line = tuple[str, Sequence[float], NDArray[np.float64], bool]
"""A variant's name, the steps, a row of losses for each seed, and whether they are validation's."""


def _lines(study: Study) -> list[Line]:
    by_variant: dict[int, list[Curves]] = {}
    for cell in study.cells:
        try:
            curves = Curves.of(cell.folder)
        except InputError:  # it has no steps, or its journal is lost
            continue
        by_variant.setdefault(cell.variant, []).append(curves)
    valid = all(len(seed.valid[0]) > 1 for seeds in by_variant.values() for seed in seeds)
    lines: list[Line] = []
    labels = short_labels(study.variants)
    for index, seeds in by_variant.items():
        points = [seed.valid if valid else seed.steps["loss"] for seed in seeds]
        shortest = min(points, key=lambda point: len(point[0]))[0]
        n = len(shortest)
        width = 1 if valid else max(1, n // 50)
        values = np.array([smoothed(losses, width)[:n] for _, losses in points])
        lines.append((labels[study.variants[index].name], shortest, values, valid))
    return lines
