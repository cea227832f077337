"""The report of the claims: a page in two languages for each, with verdict, tables and picture."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import fill

from addnorm.atomic import atomic_write
from addnorm.inspect.curves import COLORS
from addnorm.inspect.pictures import FAINT, INK, Axes, Lettering, blank_figure, finished, log_scale
from addnorm.lab.claims import CLAIMS, claim_called
from addnorm.lab.claims.claim import Both, Claim, Panel, Results, Word, verdict
from addnorm.lab.claims.laboratory import Measured, findings_of, measured
from addnorm.lab.claims.tasks import GENERATED
from addnorm.lab.markup import Language, page, plain
from addnorm.lab.statistics import Interval, with_reach

LINKS = re.compile(r"\[([^]]*)\]\([^)]*\.md\)")
"""Links to the pages of single claims, which the HTML page includes."""

MOST_TICKS = 8
"""An axis with more values than these has no tick at each of them."""

MOST_COLUMNS, FEW_COLUMNS = 13, 9
"""A table with more columns than the most shows only a few of them."""

LETTERS = 40
"""The length of a line of an axis label; longer labels are wrapped."""

SUFFIX: Mapping[Language, str] = {"en": ".md", "zh": ".zh-CN.md"}


def write_claims_report(folder: Path) -> list[Path]:
    """Write a page for each measured claim and an overview, in both languages.

    Returns the files.
    """
    claims = {name: figures for name in CLAIMS if (figures := measured(folder, name))}
    for name, figures in claims.items():
        for of_task in figures:
            picture = folder / picture_name(name, of_task.task)
            claim_picture(claim_called(name), of_task.results, picture)
    files: dict[Path, str] = {}
    whole: dict[Language, str] = {}
    for language, suffix in SUFFIX.items():
        first = overview(claims, language)
        pages = {name: claim_page(name, claims[name], language) for name in claims}
        files |= {folder / f"{name}{suffix}": text for name, text in pages.items()}
        files[folder / f"README{suffix}"] = first
        whole[language] = "\n".join([LINKS.sub(r"\1", first), *pages.values()])
    files[folder / "report.html"] = page(WORDS["en"]["title"], whole, folder)
    for file, text in files.items():
        atomic_write(file, text)
    return list(files)


def picture_name(name: str, task: str) -> str:
    """Return the file name of a claim's picture, without its suffix."""
    return name if task == GENERATED else f"{name}-{task}"


HEAD_RULE = "|---:|---|---|---|---:|---|"


def overview(claims: Mapping[str, Sequence[Measured]], language: Language) -> str:
    """Return a table of all claims, with the verdict for each kind of data."""
    words = WORDS[language]
    lines = [f"# {words['title']}", "", words["intro"], "", words["head"], HEAD_RULE]
    for number, name in enumerate(CLAIMS, 1):
        claim = claim_called(name)
        title = _of(claim.title, language)
        if name not in claims:
            lines.append(f"| {number} | {title} | – | – | – | {words['none']} |")
            continue
        for of_task in claims[name]:
            findings = findings_of(claim, of_task)
            link = f"[{title}]({name}{SUFFIX[language]})"
            n = sum(finding.word == "supported" for finding in findings)
            parts = words["parts"].format(n=n, of=len(findings))
            word = words[verdict(findings)]
            data, size = data_name(of_task, words), words[of_task.size]
            cells = (link, data, size, str(of_task.n_seeds))
            lines.append(f"| {number} | {' | '.join(cells)} | **{word}** ({parts}) |")
    machines = _machines(of_task for figures in claims.values() for of_task in figures)
    return "\n".join([*lines, "", machines, ""])


def data_name(figures: Measured, words: Mapping[str, str]) -> str:
    """Return the name of the data from which the models learned."""
    return words["generated"] if figures.task == GENERATED else plain(figures.task)


def claim_page(name: str, by_task: Sequence[Measured], language: Language) -> str:
    """Return the page for one claim."""
    words, claim = WORDS[language], claim_called(name)
    lines = [
        f"# {_of(claim.title, language)}",
        "",
        f"**{words['statement']}** {_of(claim.statement, language)}",
        "",
        f"**{words['literature']}** {_of(claim.literature, language)}",
        "",
        f"**{words['predicted']}** {_of(claim.predicted, language)}",
        "",
        f"**{words['rule']}** {_of(claim.rule, language)}",
        "",
    ]
    for figures in by_task:
        findings, data = findings_of(claim, figures), data_name(figures, words)
        lines += [
            words["section"].format(data=data, verdict=words[verdict(findings)]),
            "",
            *(f"- **{words[part.word]}** {_of(part.text, language)}" for part in findings),
            "",
            agreement(claim.literature_finds, verdict(findings), words),
            "",
            f"![{_of(claim.title, language)}]({picture_name(name, figures.task)}.svg)",
            "",
        ]
        for key, panel in claim.panels.items():
            if figures.results.series(key):
                lines += [*table(figures.results, key, panel, language), ""]
        lines += [words["seeds"].format(n=figures.n_seeds, size=words[figures.size]), ""]
    return "\n".join([*lines, f"`addnorm lab run {name}` · {_machines(by_task)}", ""])


def agreement(literature: Word, here: Word, words: Mapping[str, str]) -> str:
    """Return a sentence that compares the verdict with the literature's prediction."""
    if literature == "undecided":
        return words["open"]
    form = words["same" if literature == here else "other"]
    return form.format(literature=words[literature], here=words[here])


def _machines(figures: Iterable[Measured]) -> str:
    machines = dict.fromkeys(machine for of_task in figures for machine in of_task.machines)
    return " · ".join(map(plain, machines))


def _columns(xs: Sequence[float | str]) -> Sequence[float | str]:
    """Return the values that get a column: all, or a few if the table would be too wide."""
    if len(xs) <= MOST_COLUMNS:
        return xs
    last = len(xs) - 1
    return [xs[round(i * last / (FEW_COLUMNS - 1))] for i in range(FEW_COLUMNS)]


def table(results: Results, key: str, panel: Panel, language: Language) -> list[str]:
    """Return a panel as a table: one row per series, with means and half 95 % intervals."""
    xs = _columns(results.xs(key))
    lines = [
        f"*{_of(panel.y, language)}*",
        "",
        f"| {_of(panel.x, language)} | {' | '.join(_value(x) for x in xs)} |",
        "|---|" + "---:|" * len(xs),
    ]
    for series in results.series(key):
        here = results.xs(key, series)
        values = [with_reach(results.mean(key, series, x)) if x in here else "–" for x in xs]
        lines.append(f"| {plain(series)} | {' | '.join(values)} |")
    return lines


def _value(x: float | str) -> str:
    return plain(x) if isinstance(x, str) else f"{x:,.4g}" if x >= 0.01 or not x else f"{x:.2g}"


def _of(texts: Both, language: Language) -> str:
    return texts[language == "zh"]


def claim_picture(claim: Claim, results: Results, file: Path) -> None:
    """Draw all panels of a claim as SVG and PNG; bands and whiskers are 95 % intervals."""
    panels = {key: panel for key, panel in claim.panels.items() if results.series(key)}
    rows = math.ceil(len(panels) / 2)
    width = 5.2 * min(2, len(panels)) + 0.6
    figure = blank_figure(width, 3.6 * max(1, rows))
    named = dict.fromkeys(series for key in panels for series in results.series(key))
    colors = dict(zip(named, COLORS * 8, strict=False))
    for index, (key, panel) in enumerate(panels.items(), 1):
        ax = figure.add_subplot(max(1, rows), min(2, len(panels)), index)
        if any(isinstance(x, str) for x in results.xs(key)):
            _bars(ax, results, key)
            ax.set_xlabel(panel.y[0], color=INK, fontsize=9)
        else:
            _lines(ax, results, key, panel, colors)
            ax.set_xlabel(panel.x[0], color=INK, fontsize=9)
            ax.set_ylabel(fill(panel.y[0], LETTERS), color=INK, fontsize=9)
        ax.tick_params(colors=FAINT, labelsize=8, length=2)
        ax.spines[["top", "right"]].set_visible(False)
    lettering = Lettering.of([claim.title[0]])
    for suffix in (".svg", ".png"):
        finished(figure, claim.title[0], lettering, file.with_name(file.name + suffix))


def _lines(ax: Axes, results: Results, key: str, panel: Panel, colors: Mapping[str, str]) -> None:
    for series in results.series(key):
        color = colors[series]
        xs = [float(x) for x in results.xs(key, series)]
        means = [results.mean(key, series, x) for x in xs]
        ax.plot(xs, [m.mean for m in means], "o-", color=color, lw=1.4, ms=3.5, label=series)
        if all(math.isfinite(mean.low) for mean in means):
            _draw_intervals(ax, xs, means, color)
    if panel.log_x:
        ax.set_xscale("log", base=2)
        ax.minorticks_off()
    if len(ticks := results.xs(key)) <= MOST_TICKS:
        ax.set_xticks([float(x) for x in ticks], [_value(x) for x in ticks])
    means = [
        results.mean(key, series, x)
        for series in results.series(key)
        for x in results.xs(key, series)
    ]
    if panel.log_y and min(mean.mean for mean in means) > 0:
        log_scale(ax)
    ends = [y for mean in means for y in (mean.mean, mean.low, mean.high) if math.isfinite(y)]
    low, high = min(ends), max(ends)
    if not panel.log_y and high > low:
        ax.set_ylim(low - 0.12 * (high - low), high + 0.12 * (high - low))
    ax.grid(color="#e4e9ee", lw=0.6)
    if len(results.series(key)) > 1:
        ax.legend(frameon=False, fontsize=7)


def _draw_intervals(ax: Axes, xs: Sequence[float], means: Sequence[Interval], color: str) -> None:
    """Draw a band; for a single value, a whisker, since a band would have no width."""
    low, high = [mean.low for mean in means], [mean.high for mean in means]
    if len(xs) > 1:
        ax.fill_between(xs, low, high, color=color, alpha=0.13, lw=0)
    else:
        ax.errorbar(xs, means[0].mean, high[0] - means[0].mean, color=color, capsize=3, alpha=0.6)


def _bars(ax: Axes, results: Results, key: str) -> None:
    [series] = results.series(key)
    xs = results.xs(key)
    means = [results.mean(key, series, x) for x in xs]
    reach = [mean.high - mean.mean if math.isfinite(mean.high) else 0.0 for mean in means]
    ax.barh(range(len(xs)), [mean.mean for mean in means], xerr=reach, color=COLORS[0], alpha=0.85)
    ax.set_yticks(range(len(xs)), [str(x) for x in xs])
    ax.invert_yaxis()
    for y, mean in enumerate(means):
        ax.text(0, y, f" {mean.mean:.4g}", va="center", color="white", fontsize=8)


WORDS: Mapping[Language, Mapping[str, str]] = {
    "en": {
        "title": "Ten claims of the tutorials, measured",
        "intro": "Each claim was written down with a prediction and a rule for its verdict before "
        "it was measured, and every result is shown. A claim is refuted if one of its parts is, "
        "and undecided if the 95 % interval over seeds contains the limit.",
        "head": "| | claim | data | size | seeds | verdict |",
        "none": "not measured",
        "parts": "{n} of {of} parts hold",
        "generated": "Generated data",
        "section": "## {data}: {verdict}",
        "statement": "Claim.",
        "literature": "Literature.",
        "same": "By the literature the claim is {literature}: the verdict here is the same.",
        "other": "By the literature the claim is {literature}; here, at this size, it is {here}.",
        "open": "The literature does not settle the claim by this rule.",
        "predicted": "Our prediction.",
        "rule": "Rule.",
        "supported": "supported",
        "refuted": "refuted",
        "undecided": "undecided",
        "quick": "quick",
        "full": "full",
        "night": "night",
        "seeds": "{n} seeds ({size}); a mean with half of its 95 % interval over them.",
    },
    "zh": {
        "title": "教程中的十个论断，以实验衡量",
        "intro": "每个论断在测量之前就写下了预测与裁决规则；结果如何，便如何展示。"
        "任何一部分被否定，论断即被否定；若种子间的 95 % 区间包含界限，则为未定。",
        "head": "| | 论断 | 数据 | 规模 | 种子 | 裁决 |",
        "none": "尚未测量",
        "parts": "{of} 部分中 {n} 部分成立",
        "generated": "生成的数据",
        "section": "## {data}：{verdict}",
        "statement": "教程的说法。",
        "literature": "文献的说法。",
        "same": "按文献，此论断{literature}：与这里的裁决相同。",
        "other": "按文献，此论断{literature}；而在这里的规模下为{here}。",
        "open": "对于这里所裁决的论断，文献没有定论。",
        "predicted": "我们的预测。",
        "rule": "如何裁决。",
        "supported": "成立",
        "refuted": "被否定",
        "undecided": "未定",
        "quick": "快速",
        "full": "完整",
        "night": "整夜",
        "seeds": "{n} 个种子（{size}）；平均值及其种子间 95 % 区间的一半。",
    },
}
