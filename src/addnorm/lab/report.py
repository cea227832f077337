"""The report of a study: Markdown in two languages, one page of HTML, JSON, and pictures."""

import base64
import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from markdown_it import MarkdownIt

from addnorm.atomic import atomic_write
from addnorm.lab.grid import short_names
from addnorm.lab.markup import code, finite, plain
from addnorm.lab.pictures import curves_picture, forest_picture
from addnorm.lab.statistics import Interval, p_value
from addnorm.lab.studies import Study
from addnorm.lab.summary import Row, Summary
from addnorm.lab.words import WORDS, Language

MARKDOWN: Mapping[Language, str] = {"en": "report.md", "zh": "report.zh-CN.md"}
HTML = "report.html"
JSON = "report.json"


def write_report(study: Study, summary: Summary) -> list[Path]:
    """Write all files of the report into the study's folder; return their paths."""
    folder = study.folder
    pictures = [forest_picture(summary, folder), curves_picture(study, folder)]
    shown = [one for one in pictures if one]
    texts: dict[Language, str] = {one: markdown(study, summary, one, shown) for one in MARKDOWN}
    for language, name in MARKDOWN.items():
        atomic_write(folder / name, texts[language])
    atomic_write(folder / HTML, page(title_of(study, "en"), texts, folder))
    atomic_write(folder / JSON, json.dumps(finite(asdict(summary)), indent=1, ensure_ascii=False))
    return [folder / name for name in (MARKDOWN["en"], MARKDOWN["zh"], HTML, JSON)]


def title_of(study: Study, language: Language) -> str:
    """The question of a study: the one that it was given, or which of the values is best."""
    words = WORDS[language]
    fields = words["and"].join(short_names(list(study.settings.vary)))
    return study.settings.question or words["question"].format(fields=fields)


def markdown(study: Study, summary: Summary, language: Language, pictures: Sequence[str]) -> str:
    """The report as Markdown: design, verdicts, table, pictures, and how to read them."""
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
        lines += [f"![{titles['curves' in one]}]({one})\n" for one in pictures]
    return "\n".join([*lines, f"## {words['reading']}", "", words["notes"], ""])


def verdict_lines(row: Row, summary: Summary, language: Language) -> list[str]:
    """The sentences about a variant: what came out, and what was left out and why."""
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
    """The sentences about what variants have not in common besides what was to be compared."""
    words, lines = WORDS[language], list[str]()
    if fields := [name for name in study.settings.vary if name.startswith("data.")]:
        named = words["and"].join(code(name) for name in fields)
        lines.append(words["data_differ"].format(fields=named))
    tokens = [row.tokens for row in summary.rows if row.values]
    if tokens and min(tokens) < 0.99 * max(tokens):
        least, most = f"{min(tokens):,}", f"{max(tokens):,}"
        lines.append(words["tokens_differ"].format(least=least, most=most))
    return lines


def _verdict(row: Row, summary: Summary, words: Mapping[str, str]) -> str:
    found, name = row.difference, plain(row.name)
    if found is None:
        first = summary.rows[0]
        kind = "none_is" if first.values or not row.values else "first_none_is"
        return words[kind].format(name=name, first=plain(first.name))
    if found.verdict == "equal":
        return words["equal_is"].format(name=name)
    better = summary.better(row)
    kind = "undecided" if better is None else "better" if better else "worse"
    needed = words["needed"].format(needed=f"{found.needed:,}") if found.needed else ""
    line = words[f"{kind}_is"].format(
        name=name,
        metric=summary.metric,
        difference=signed(found.interval.mean),
        interval=_interval_words(found.interval, words),
        n=_seeds(found.interval.n, words),
        needed=needed,
    )
    return line + ("" if row.bleu_p is None else words["bleu"].format(p=f"{row.bleu_p:.3f}"))


def _seeds(n: int, words: Mapping[str, str]) -> str:
    return words["seed" if n == 1 else "seeds"].format(n=n)


def _interval_words(one: Interval, words: Mapping[str, str]) -> str:
    if math.isinf(one.low):
        return words["one_seed"]
    return words["interval"].format(low=signed(one.low), high=signed(one.high))


def table_line(row: Row) -> str:
    """A line of the table; a dash stands for what there is not."""
    found = row.difference
    cells = [
        plain(row.name),
        "–" if row.mean is None else with_reach(row.mean),
        "–" if found is None else signed(found.interval.mean),
        "–" if found is None else bounds(found.interval),
        "–" if row.examples is None else bounds(row.examples),
        "–" if found is None or math.isnan(found.effect) else signed(round(found.effect, 2)),
        "–" if found is None or found.interval.n < 2 else _p(found.adjusted),
        f"{row.parameters:,}",
        f"{row.tokens:,}",
        f"{row.seconds:,.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def _p(p: float) -> str:
    """A p-value in a table: `0.012`, or `< 0.001`."""
    return plain(p_value(p).removeprefix("= "))


def signed(value: float) -> str:
    """A number with its sign and four digits."""
    return f"{value:+.4g}".replace("-", "−")


def with_reach(one: Interval) -> str:
    """A mean with half the width of its interval: `1.62 ± 0.03`."""
    reach = one.high - one.mean
    return f"{one.mean:.5g}" + (f" ± {reach:.2g}" if math.isfinite(reach) else "")


def bounds(one: Interval) -> str:
    """The ends of an interval; a dash for an infinite one."""
    return "–" if math.isinf(one.low) else f"{signed(one.low)} … {signed(one.high)}"


# One page of HTML, readable without a network.

STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --paper: #fff; --line: #d9e0e6; --hint: #52606d; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e9ee; --paper: #171c21; --line: #3e4c59; --hint: #9aa5b1; }
}
body { font: 16px/1.55 system-ui, "Noto Sans CJK SC", sans-serif; color: var(--ink);
  background: var(--paper); max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-size: 0.86rem; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid var(--line); padding: 0.3rem 0.6rem; white-space: nowrap; }
th { color: var(--hint); font-weight: 600; text-align: left; }
p { overflow-wrap: break-word; overflow-x: auto; }
li, h1, h2 { overflow-wrap: break-word; }
img { max-width: 100%; background: #fff; }
@media (max-width: 40rem) {
  img { max-width: none; width: max(100%, 34rem); }
  th:not([style]), td:not([style]) { white-space: normal; overflow-wrap: break-word;
    min-width: 3.4rem; }
  th, td { padding: 0.3rem; }
}
code { font-size: 0.9em; }
nav { display: flex; gap: 0.8rem; justify-content: flex-end; }
nav label { cursor: pointer; color: var(--hint); }
input[name=language] { position: absolute; opacity: 0; }
main { display: none; }
#en:checked ~ main[lang=en], #zh:checked ~ main[lang=zh-CN] { display: block; }
#en:checked ~ nav label[for=en], #zh:checked ~ nav label[for=zh] { color: var(--ink);
  text-decoration: underline; }
input:focus-visible ~ nav { outline: 2px solid #0f6ba8; }
"""


def page(title: str, texts: Mapping[Language, str], folder: Path) -> str:
    """The report as one page of HTML, with both languages and the pictures inside."""
    render = MarkdownIt("commonmark", {"html": False}).enable("table")
    bodies = {
        language: _with_pictures(render.render(text), folder) for language, text in texts.items()
    }
    radios = "".join(
        f'<input type="radio" name="language" id="{one}"{" checked" if one == "en" else ""}>'
        for one in texts
    )
    labels = "".join(f'<label for="{one}">{WORDS[one]["language"]}</label>' for one in texts)
    mains = "".join(
        f'<main lang="{"zh-CN" if one == "zh" else one}">{body}</main>'
        for one, body in bodies.items()
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>"
        f"<body>{radios}<nav>{labels}</nav>{mains}</body></html>\n"
    )


def _with_pictures(body: str, folder: Path) -> str:
    for file in folder.glob("*.svg"):
        data = base64.b64encode(file.read_bytes()).decode()
        body = body.replace(f'src="{file.name}"', f'src="data:image/svg+xml;base64,{data}"')
    return body
