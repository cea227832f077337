"""The Chinese pages: nothing is left in English; code, links and formulas are the original's."""

import re
from pathlib import Path

import pytest
from babel.messages import Catalog, Message
from babel.messages.pofile import write_po
from docs import chinese, translations

LINKED = "See [masks](masks.md), `eps = 1e-5`, $x^2$ and **all 3** of them."


@pytest.mark.long
def test_every_string_of_the_pages_is_in_chinese(tmp_path: Path) -> None:
    """`make translations` takes new strings into the catalogues and lists those to translate."""
    templates = translations.write_templates(tmp_path, "gettext_location=1")
    assert {"index", "commands", "recipe_train", "norms", "howto/ablate"} <= {*templates}
    assert all(len(template) > 4 for template in templates.values())
    here = translations.CATALOGUES
    catalogues = {str(file.relative_to(here).with_suffix("")) for file in here.rglob("*.po")}
    assert catalogues == {*templates, "sphinx"}  # the words of the theme, written by hand
    found = (line for page in templates for line in translations.faults(page, templates[page]))
    assert not "\n".join(found)


@pytest.mark.parametrize(
    ("after", "fault"),
    [
        ("见[掩码](masks.md)、`eps = 1e-5`、$x^2$，**全部 3** 个。", None),
        ("1. 见[掩码](masks.md)、`eps = 1e-5`、$x^2$，**全部 3** 个。", "begins as a list"),
        ("见专家混合。", "has 专家混合 for 混合专家"),
        ("", "untranslated"),
        (LINKED, "untranslated"),
        ("见[掩码](norms.md)、`eps = 1e-5`、$x^2$，**全部 3** 个。", "](masks.md)"),
        ("见[掩码](masks.md)、`eps = 1e-6`、$x^2$，**全部 3** 个。", "`eps = 1e-5`"),
        ("见[掩码](masks.md)、`eps = 1e-5`、$x^3$，**全部 3** 个。", "$x^2$"),
        ("见[掩码](masks.md)、`eps = 1e-5`、$x^2$，**全部 4** 个。", "× 3"),
        ("见[掩码](masks.md)、`eps = 1e-5`、$x^2$，全部 3 个。", "2 × **"),
        ("见[掩码](masks.md)、`eps = 1e-5`、`eps = 1e-5`、$x^2$，**全部 3** 个。", "2 × `eps"),
    ],
)
def test_a_fault_of_a_translation_is_named(after: str, fault: str | None) -> None:
    found = translations.fault_of(Message(LINKED, after))
    assert found == fault or (fault and found and fault in found)


def test_the_readme_has_one_word_for_a_term() -> None:
    readme = (translations.HERE.parent / "README.zh-CN.md").read_text("utf-8")
    assert not [word for word in translations.OTHER_WORDS if word in readme]


@pytest.mark.parametrize(
    "text", ["`x`", "$x_i$, `y`", "Su et al. 2021", "addnorm train", "109,482"]
)
def test_texts_that_are_equal_in_every_language_need_no_chinese(text: str) -> None:
    assert translations.fault_of(Message(text, text)) is None
    assert translations.fault_of(Message(f"{text} or not", text)) is not None


def write(file: Path, strings: dict[str, str], *, fuzzy: str = "", gone: str = "") -> None:
    catalog = Catalog("zh_CN")
    for before, after in strings.items():
        catalog.add(before, after, flags=["fuzzy"] if before == fuzzy else [])
    if gone:
        catalog.obsolete[gone] = Message(gone, "旧句。")
    with file.open("wb") as opened:
        write_po(opened, catalog)


def test_every_fault_of_a_page_has_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translations, "CATALOGUES", tmp_path)
    template = Catalog()
    for line, text in enumerate(["Right.", "Missing.", "Empty.", "Guessed."], start=1):
        template.add(text, locations=[("../docs/norms.md", line)])
    strings = {"Right.": "对。", "Empty.": "", "Guessed.": "猜的。", "Left over.": "多余。"}
    write(tmp_path / "norms.po", strings, fuzzy="Guessed.", gone="Old.")
    lines = (tmp_path / "norms.po").read_text(encoding="utf-8").splitlines()
    numbers = {text: lines.index(f'msgid "{text}"') + 1 for text in strings}
    assert [*translations.faults("norms", template)] == [
        "norms.md:2: not in norms.po: Missing.",
        f"norms.po:{numbers['Empty.']}: untranslated: Empty.",
        f"norms.po:{numbers['Guessed.']}: fuzzy: Guessed.",
        f"norms.po:{numbers['Left over.']}: no longer on the page: Left over.",
        "norms.po: obsolete: Old.",
    ]
    missing = [*translations.faults("masks", template)]
    assert missing[0] == "norms.md:1: not in masks.po: Right."


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "Number above 0, up to 1. Default: `x = 0.1`.",
            "大于 0、不大于 1 的数。默认：`x = 0.1`。",
        ),
        ("Pair of numbers from 0, below 1. Required.", "两个不小于 0、小于 1 的数。必填。"),
        (
            "Integer above 0 or list of integers above 0. May be left out.",
            "大于 0 的整数，或由大于 0 的整数组成的列表。可以省略。",
        ),
        ("One of `a`, `b`. Default: `a`. Example: `b`.", "`a`、`b` 之一。默认：`a`。例：`b`。"),
        ("Any [norm](#recipe-norm). May be left out.", "任意一种 [norm](#recipe-norm)。可以省略。"),
        ("Table, see [rules](#recipe-rules). Required.", "表，见 [rules](#recipe-rules)。必填。"),
        ("Usage: `addnorm demo [OPTIONS]`", "用法：`addnorm demo [OPTIONS]`"),
        ("What `a`, `b` may be.", "`a`、`b` 可取的值。"),
        ("Text files, a line an input.", None),
        ("Number of heads.", None),
    ],
)
def test_types_and_defaults_are_translated_by_rule(before: str, after: str | None) -> None:
    assert translations.by_rule(before) == after


def test_catalogues_are_filled_by_rules_and_by_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translations, "CATALOGUES", tmp_path)
    write(tmp_path / "a.po", {"The width.": "宽度。", "Text.": "文字。"})
    write(tmp_path / "b.po", {"The width.": "", "Text.": "", "Else.": ""})
    translations.fill()
    [one, two] = (translations.read(tmp_path / name) for name in ("a.po", "b.po"))
    assert {m.id: m.string for m in translations.messages(two)} == {
        "The width.": "宽度。",
        "Text.": "文本。",
        "Else.": "",
    }
    assert one["Text."].string == "文字。"  # what a person wrote stays


OTHER_WORDS = {
    "槽(?!位)": "槽位",
    "下标": "索引",
    "平均值": "均值",
    "纳特": "奈特",
    "引发 `": "抛出 `",
    "您": "你",
}
"""Words for things that have another name in the Chinese pages: one word a term."""


def test_a_term_has_one_word() -> None:
    files = [*translations.CATALOGUES.rglob("*.po"), translations.HERE.parent / "README.zh-CN.md"]
    places = [
        f"{file.name}: {word}: write {right}"
        for file in files
        for word, right in OTHER_WORDS.items()
        if re.search(word, file.read_text("utf-8"))
    ]
    assert not places


def test_chinese_is_searched_by_pairs() -> None:
    """Every pair of a word that a reader may look for is in the index of a text that has it."""
    search = chinese.SearchChinese({})
    found = search.split("多头注意力，softmax 的梯度")
    assert {"注意", "意力", "梯度", "softmax", "头"} <= {*found}
    assert "力的" not in found
    assert all(search.word_filter(search.stem(word)) for word in ("头", "注意"))
    assert search.stem("gradients") == search.stem("gradient")
