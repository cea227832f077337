"""The report of the claims: a page each in two languages, with verdict, tables and picture."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import fill

from addnorm.atomic import atomic_write
from addnorm.inspect.curves import COLORS
from addnorm.inspect.pictures import FAINT, INK, Axes, Lettering, blank_figure, finished, log_scale
from addnorm.lab.claim_words import WORDS
from addnorm.lab.claims import CLAIMS, claim_called
from addnorm.lab.claims.claim import Both, Claim, Finding, Panel, Results, Word, verdict
from addnorm.lab.claims.tasks import MADE
from addnorm.lab.laboratory import Measured, measured
from addnorm.lab.markup import plain
from addnorm.lab.report import page, with_reach
from addnorm.lab.statistics import Interval
from addnorm.lab.words import Language

LINKS = re.compile(r"\[([^]]*)\]\([^)]*\.md\)")
"""Links to the other pages, which the page of all has within."""

MOST_TICKS = 8
"""More places than these are not all named below the axis."""

MOST_COLUMNS, FEW_COLUMNS = 13, 9
"""A table has a column for each place up to so many; of more, so many of them."""

LETTERS = 40
"""So many letters stand beside a panel in a line; longer words are broken."""

SUFFIX: Mapping[Language, str] = {"en": ".md", "zh": ".zh-CN.md"}


def write_claims_report(folder: Path) -> list[Path]:
    """Write a page for each claim that has figures, in both languages, and a page of all of them.

    Returns the files.
    """
    found = {name: several for name in CLAIMS if (several := measured(folder, name))}
    written: list[Path] = []
    for name, several in found.items():
        for one in several:
            claim_picture(claim_called(name), one.results, folder / picture_name(name, one.task))
        for language, suffix in SUFFIX.items():
            text = claim_page(name, several, language)
            written.append(folder / f"{name}{suffix}")
            atomic_write(written[-1], text)
    texts: dict[Language, str] = {language: overview(found, language) for language in SUFFIX}
    for language, text in texts.items():
        written.append(folder / f"README{SUFFIX[language]}")
        atomic_write(written[-1], text)
    whole: dict[Language, str] = {
        language: "\n".join(
            [
                LINKS.sub(r"\1", texts[language]),
                *(claim_page(one, found[one], language) for one in found),
            ]
        )
        for language in SUFFIX
    }
    written.append(folder / "report.html")
    atomic_write(written[-1], page(WORDS["en"]["title"], whole, folder))
    return written


def picture_name(name: str, task: str) -> str:
    """The file of a claim's picture, without its ending."""
    return name if task == MADE else f"{name}-{task}"


HEAD_RULE = "|---:|---|---|---|---:|---|"


def overview(found: Mapping[str, Sequence[Measured]], language: Language) -> str:
    """All claims in a table: what is said, and the verdict on each kind of data."""
    words = WORDS[language]
    lines = [f"# {words['title']}", "", words["intro"], "", words["head"], HEAD_RULE]
    for number, name in enumerate(CLAIMS, 1):
        claim = claim_called(name)
        title = _of(claim.title, language)
        if name not in found:
            lines.append(f"| {number} | {title} | – | – | – | {words['none']} |")
            continue
        for one in found[name]:
            findings = findings_of(claim, one)
            link = f"[{title}]({name}{SUFFIX[language]})"
            n = sum(finding.word == "supported" for finding in findings)
            parts = words["parts"].format(n=n, of=len(findings))
            word = words[verdict(findings)]
            cells = (link, data_name(one, words), words[one.size], str(one.n_seeds))
            lines.append(f"| {number} | {' | '.join(cells)} | **{word}** ({parts}) |")
    machines = _machines(one for several in found.values() for one in several)
    return "\n".join([*lines, "", machines, ""])


def data_name(one: Measured, words: Mapping[str, str]) -> str:
    """What the models learned."""
    return words["made"] if one.task == MADE else plain(one.task)


def findings_of(claim: Claim, one: Measured) -> Sequence[Finding]:
    """The parts of the verdict; a single one, undecided, while cells are missing."""
    if one.left:
        left = Both(*(WORDS[language]["left"].format(n=one.left) for language in SUFFIX))
        return [Finding("undecided", left)]
    return claim.judge(one.results)


def claim_page(name: str, several: Sequence[Measured], language: Language) -> str:
    """The page of one claim."""
    words, claim = WORDS[language], claim_called(name)
    lines = [
        f"# {_of(claim.title, language)}",
        "",
        f"**{words['said']}** {_of(claim.said, language)}",
        "",
        f"**{words['literature']}** {_of(claim.literature, language)}",
        "",
        f"**{words['predicted']}** {_of(claim.predicted, language)}",
        "",
        f"**{words['rule']}** {_of(claim.rule, language)}",
        "",
    ]
    for one in several:
        findings = findings_of(claim, one)
        seeds = words["seeds"].format(n=one.n_seeds, size=words[one.size])
        lines += [
            words["section"].format(data=data_name(one, words), verdict=words[verdict(findings)]),
            "",
            *(f"- **{words[one.word]}** {_of(one.text, language)}" for one in findings),
            "",
            agreement(claim.literature_finds, verdict(findings), words),
            "",
            f"![{_of(claim.title, language)}]({picture_name(name, one.task)}.svg)",
            "",
        ]
        for key, panel in claim.panels.items():
            if one.results.series(key):
                lines += [*table(one.results, key, panel, language), ""]
        lines += [seeds, ""]
    return "\n".join([*lines, f"`addnorm lab run {name}` · {_machines(several)}", ""])


def agreement(literature: Word, here: Word, words: Mapping[str, str]) -> str:
    """Whether the verdict is that which follows from what the literature says."""
    if literature == "undecided":
        return words["open"]
    form = words["same" if literature == here else "other"]
    return form.format(literature=words[literature], here=words[here])


def _machines(several: Iterable[Measured]) -> str:
    return " · ".join(dict.fromkeys(plain(machine) for one in several for machine in one.machines))


def _columns(xs: Sequence[float | str]) -> Sequence[float | str]:
    """All places, or, where a table would be too wide, some from the first to the last."""
    if len(xs) <= MOST_COLUMNS:
        return xs
    last = len(xs) - 1
    return [xs[round(i * last / (FEW_COLUMNS - 1))] for i in range(FEW_COLUMNS)]


def table(results: Results, key: str, panel: Panel, language: Language) -> list[str]:
    """A panel as a table: series down, places across; mean and half the 95 % interval."""
    xs = _columns(results.xs(key))
    lines = [
        f"*{_of(panel.y, language)}*",
        "",
        f"| {_of(panel.x, language)} | {' | '.join(_place(x) for x in xs)} |",
        "|---|" + "---:|" * len(xs),
    ]
    for series in results.series(key):
        here = results.xs(key, series)
        values = [with_reach(results.mean(key, series, x)) if x in here else "–" for x in xs]
        lines.append(f"| {plain(series)} | {' | '.join(values)} |")
    return lines


def _place(x: float | str) -> str:
    return plain(x) if isinstance(x, str) else f"{x:,.4g}" if x >= 0.01 or not x else f"{x:.2g}"


def _of(both: Both, language: Language) -> str:
    return getattr(both, language)


# The picture: a panel each, lines with bands, or bars where places are words.


def claim_picture(claim: Claim, results: Results, file: Path) -> None:
    """Draw all panels of a claim as SVG and PNG; bands and whiskers are 95 % intervals."""
    panels = {key: one for key, one in claim.panels.items() if results.series(key)}
    rows = math.ceil(len(panels) / 2)
    width = 5.2 * min(2, len(panels)) + 0.6
    figure = blank_figure(width, 3.6 * max(1, rows))
    named = dict.fromkeys(series for key in panels for series in results.series(key))
    colors = dict(zip(named, COLORS * 8, strict=False))
    for index, (key, panel) in enumerate(panels.items(), 1):
        ax = figure.add_subplot(max(1, rows), min(2, len(panels)), index)
        if any(isinstance(x, str) for x in results.xs(key)):
            _bars(ax, results, key)
            ax.set_xlabel(panel.y.en, color=INK, fontsize=9)
        else:
            _lines(ax, results, key, panel, colors)
            ax.set_xlabel(panel.x.en, color=INK, fontsize=9)
            ax.set_ylabel(fill(panel.y.en, LETTERS), color=INK, fontsize=9)
        ax.tick_params(colors=FAINT, labelsize=8, length=2)
        ax.spines[["top", "right"]].set_visible(False)
    lettering = Lettering.of([claim.title.en])
    for ending in (".svg", ".png"):
        finished(figure, claim.title.en, lettering, file.with_name(file.name + ending))


def _lines(ax: Axes, results: Results, key: str, panel: Panel, colors: Mapping[str, str]) -> None:
    for series in results.series(key):
        color = colors[series]
        xs = [float(x) for x in results.xs(key, series)]
        found = [results.mean(key, series, x) for x in xs]
        ax.plot(xs, [one.mean for one in found], "o-", color=color, lw=1.4, ms=3.5, label=series)
        if all(math.isfinite(one.low) for one in found):
            _draw_intervals(ax, xs, found, color)
    if panel.log_x:
        ax.set_xscale("log", base=2)
        ax.minorticks_off()
    if len(ticks := results.xs(key)) <= MOST_TICKS:
        ax.set_xticks([float(x) for x in ticks], [_place(x) for x in ticks])
    found = [results.mean(key, *point) for point in _points(results, key)]
    if panel.log_y and min(one.mean for one in found) > 0:
        log_scale(ax)
    ends = [end for one in found for end in (one.mean, one.low, one.high) if math.isfinite(end)]
    low, high = min(ends), max(ends)
    if not panel.log_y and high > low:
        ax.set_ylim(low - 0.12 * (high - low), high + 0.12 * (high - low))
    ax.grid(color="#e4e9ee", lw=0.6)
    if len(results.series(key)) > 1:
        ax.legend(frameon=False, fontsize=7)


def _draw_intervals(ax: Axes, xs: Sequence[float], found: Sequence[Interval], color: str) -> None:
    """A band; at a single place, where that would have no width, a whisker."""
    low, high = [one.low for one in found], [one.high for one in found]
    if len(xs) > 1:
        ax.fill_between(xs, low, high, color=color, alpha=0.13, lw=0)
    else:
        ax.errorbar(xs, found[0].mean, high[0] - found[0].mean, color=color, capsize=3, alpha=0.6)


def _points(results: Results, key: str) -> list[tuple[str, float | str]]:
    return [(series, x) for series in results.series(key) for x in results.xs(key, series)]


def _bars(ax: Axes, results: Results, key: str) -> None:
    [series] = results.series(key)
    xs = results.xs(key)
    found = [results.mean(key, series, x) for x in xs]
    reach = [one.high - one.mean if math.isfinite(one.high) else 0.0 for one in found]
    ax.barh(range(len(xs)), [one.mean for one in found], xerr=reach, color=COLORS[0], alpha=0.85)
    ax.set_yticks(range(len(xs)), [str(x) for x in xs])
    ax.invert_yaxis()
    for y, one in enumerate(found):
        ax.text(0, y, f" {one.mean:.4g}", va="center", color="white", fontsize=8)
