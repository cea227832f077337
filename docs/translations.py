"""The Chinese catalogues: `make translations` takes in new sentences and lists what has no Chinese.

What the references say of types and defaults is in few words, and is translated here by rules.
"""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from babel.messages import Catalog, Message
from babel.messages.pofile import read_po, write_po

HERE = Path(__file__).parent
CATALOGUES = HERE / "locale" / "zh_CN" / "LC_MESSAGES"


def main() -> int:
    """Bring the catalogues up to date, and print what is left to translate."""
    with TemporaryDirectory() as folder:
        templates = write_templates(Path(folder))
        command = ["update", "-p", folder, "-d", HERE / "locale", "-l", "zh_CN"]
        options = ["--no-obsolete", "-w", "0"]
        subprocess.run([sys.executable, "-m", "sphinx_intl", *command, *options], check=True)
        fill()
        found = [line for page, template in templates.items() for line in faults(page, template)]
    print(*found, f"strings to translate: {len(found)}", sep="\n")
    return 1 if found else 0


ENGLISH = {
    "api",
    "api_data",
    "api_generation",
    "api_models",
    "api_parts",
    "api_training",
}
"""The pages that are in English alone."""


def translated_pages() -> list[str]:
    """All pages but those in English alone, and the laboratory's claims, which have their own."""
    pages = sorted(page.stem for page in HERE.glob("*.md") if page.stem not in ENGLISH)
    folders = ("howto", "tutorials")
    inner = [
        f"{name}/{page.stem}" for name in folders for page in sorted((HERE / name).glob("*.md"))
    ]
    return [*pages, *inner]


def write_templates(folder: Path, *settings: str) -> dict[str, Catalog]:
    """What there is to translate, by page, as Sphinx extracts it; `folder` then has it as files."""
    pages = translated_pages()
    others = [page.name for page in HERE.glob("*.md") if page.stem not in pages]
    excluded = ["_build", "_reference", "claims", "notebooks", *others]
    settings = (*settings, f"exclude_patterns={','.join(excluded)}")
    command = ["-q", "-b", "gettext", *(word for one in settings for word in ("-D", one))]
    quiet = ["-D", "suppress_warnings=toc,myst,ref"]  # of links to the pages that are left out
    options = [*command, *quiet, "-d", str(folder / ".doctrees")]
    subprocess.run([sys.executable, "-m", "sphinx", *options, HERE, folder], check=True)
    return {page: read(folder / f"{page}.pot") for page in pages}


def read(file: Path) -> Catalog:
    """A catalogue or a template."""
    with file.open("rb") as opened:
        return read_po(opened, locale="zh_CN", charset="utf-8")


def messages(catalog: Catalog) -> Iterator[Message]:
    """Its strings, without the header."""
    return (message for message in catalog if message.id)


# Translations that need nobody.


def fill() -> None:
    """Translate what the rules can, and what another page has already."""
    catalogs = {file: read(file) for file in sorted(CATALOGUES.rglob("*.po"))}
    known = {
        message.id: message.string
        for catalog in catalogs.values()
        for message in messages(catalog)
        if message.string and not message.fuzzy
    }
    for file, catalog in catalogs.items():
        changed = False
        for message in messages(catalog):
            if message.string and not message.fuzzy:
                continue
            if new := by_rule(str(message.id)) or known.get(message.id):
                message.string, changed = new, True
                message.flags.discard("fuzzy")
        if changed:
            catalog.header_comment, catalog.fuzzy = "", False
            catalog.last_translator = catalog.language_team = "AddNorm contributors"
            with file.open("wb") as opened:
                write_po(opened, catalog, width=0)


NAMES = (
    r"AddNorm|ViT|PatchTST|Whisper|MHA|GQA|Mamba|GPT-2|GPT-OSS|OPT|ELECTRA|MPNet|EuroBERT"
    r"|MFU|HFU|MiB|ms"
)
SILENT = re.compile(
    rf"`[^`]*`|\$[^$]*\$|\w+ et al\. \d+|^addnorm (?:lab )?\w+$|^\\.*"
    rf"|^(?:str|pathlib\.Path|collections\.abc\..*)$|\b(?:{NAMES})\b"
)
"""Code, formulas, sources, commands, types and names, which are the same in every language."""


PUNCTUATION = (
    ("`, `", "`、`"),
    (", §", "，§"),
    (r" \((\w+ et al\. [^()]*)\)", r"（\1）"),
    (r"(?<=[`\d）])\.$", "。"),
)
"""What stands between those is Chinese all the same."""


def has_words(text: str) -> bool:
    """Whether there is anything to translate; an equation of its own line has nothing."""
    if re.search(r"\\(?:operatorname|qquad|leftarrow)", text) and "$" not in text:
        return False
    return bool(re.search("[A-Za-z]{2}", SILENT.sub("", text)))


LINE = re.compile(
    r"(?P<kind>.+?)\.(?: (?P<need>Required|May be left out)\.)?"
    r"(?: Default: (?P<default>`[^`]*`)\.)?(?: Example: (?P<example>`[^`]*`)\.)?"
)
"""What a reference says of a field or an option below its sentence."""

NEEDS = {"Required": "必填。", "May be left out": "可以省略。"}


def by_rule(text: str) -> str | None:
    """The translation of what manual.py composes; None for a sentence."""
    if not has_words(text):
        for mark, chinese in PUNCTUATION:
            text = re.sub(mark, chinese, text)
        return text
    if found := re.fullmatch(r"Usage: (`.*`)", text):
        return f"用法：{found[1]}"
    if found := re.fullmatch(r"What (`.*?`) may be(; or \[.*\]\((.*)\))?\.", text):
        own = f"；也可以是[自己的部件]({found[3]})" if found[2] else ""
        return f"{found[1].replace(', ', '、')} 可取的值{own}。"
    found = LINE.fullmatch(text)
    if not found or not (kind := kind_by_rule(found["kind"])):
        return None
    default = f"默认：{found['default']}。" if found["default"] else ""
    example = f"例：{found['example']}。" if found["example"] else ""
    return f"{kind}。{NEEDS.get(found['need'], '')}{default}{example}"


NOUNS = {"integer": "整数", "number": "数", "text": "文本", "path": "路径", "table": "表"}
BOUNDS = {"above": "大于", "from": "不小于", "below": "小于", "up to": "不大于"}
NOUN = (
    rf"(?P<many>list of |pair of |table of |)(?P<noun>{'|'.join(NOUNS)})s?"
    rf"(?P<bounds>(?:,? (?:{'|'.join(BOUNDS)}) \S+)*)"
)


def kind_by_rule(text: str) -> str | None:
    """`大于 0 的整数` for `Integer above 0`; None for anything else than a type."""
    several = re.split(r" or (?=list |one )", text[0].lower() + text[1:])
    kinds = [one_kind(one) for one in several]
    return "，或".join(filter(None, kinds)) if all(kinds) else None


def one_kind(text: str) -> str | None:
    """One of the types that a field or an option may have."""
    forms: dict[str, Callable[[re.Match[str]], str]] = {
        "no value": lambda _: "不带值",
        "`true` or `false`": lambda _: "`true` 或 `false`",
        r"one of (`.*`)": lambda found: f"{found[1].replace(', ', '、')} 之一",
        r"any (\[.*\]\(.*\))": lambda found: f"任意一种 {found[1]}",
        rf"{NOUN}, see (?P<link>\[.*\]\(.*\))": lambda found: f"{noun(found)}，见 {found['link']}",
        NOUN: noun,
    }
    matches = ((re.fullmatch(form, text), write) for form, write in forms.items())
    return next((write(found) for found, write in matches if found), None)


def noun(found: re.Match[str]) -> str:
    """A number, a text, a path or a table, or several, and their bounds."""
    bounds = re.findall(rf"({'|'.join(BOUNDS)}) ([^\s,]+)", found["bounds"])
    limits = "、".join(f"{BOUNDS[word]} {number}" for word, number in bounds)
    kind = f"{limits} 的{NOUNS[found['noun']]}" if limits else NOUNS[found["noun"]]
    many = {
        "list of ": f"由{kind}组成的列表",
        "pair of ": f"两个{kind}",
        "table of ": f"{kind}的表",
    }
    return many.get(found["many"], kind)


# What is missing or wrong.


def faults(page: str, template: Catalog) -> Iterator[str]:
    """What keeps a page from being in Chinese, each with its file, its line and the string."""
    file = CATALOGUES / f"{page}.po"
    catalog = read(file) if file.is_file() else Catalog("zh_CN")
    for message in messages(template):
        if message.id not in catalog:
            place, line = message.locations[-1] if message.locations else (page, 0)
            yield f"{Path(place).name}:{line}: not in {file.name}: {message.id}"
    for message in messages(catalog):
        if message.id not in template:
            yield f"{file.name}:{message.lineno}: no longer on the page: {message.id}"
        elif fault := fault_of(message):
            yield f"{file.name}:{message.lineno}: {fault}: {message.id}"
    for message in catalog.obsolete.values():
        yield f"{file.name}: obsolete: {message.id}"


def fault_of(message: Message) -> str | None:
    """What is wrong with a translation, if anything is."""
    before, after = str(message.id), str(message.string)
    if message.fuzzy:
        return "fuzzy"
    if not after or (has_words(before) and not re.search("[\u3000-\u9fff\uff01-\uff1f]", after)):
        return "untranslated"
    if re.match(r"(\d+[.)]|[-+*>]|#+) ", after):
        return "begins as a list, a quotation or a heading does, of which Sphinx takes none"
    if wrong := [f"{word} for {OTHER_WORDS[word]}" for word in OTHER_WORDS if word in after]:
        return f"has {', '.join(wrong)}"
    if lost := marks(before) ^ marks(after):
        return f"differs in {', '.join(sorted(lost))}"
    return None


OTHER_WORDS = {
    "专家混合": "混合专家",
    "两个核心": "两个核",
    "前馈网络": "前馈层",
    "可选依赖": "附加包",
    "潜向量": "潜在向量",
    "结束符": "结束词元",
    "聊天模板": "对话模板",
    "融合内核": "融合算子",
    "起始符": "起始词元",
    "运行目录": "运行文件夹",
    "逐层缩放": "层缩放",
    "逐比特": "逐位",
    "隐状态": "隐藏状态",
    "注意力核心": "注意力内核",
}
"""Second words for what has a first: a term has one word, on every page."""

MARKS = r"`[^`]*`|\$[^$]*\$|\]\([^)]*\)|\{\w+\}(?=`)|\*\*|(?<![\w.])\d+(?:[,.]\d+)*(?!\w)"
"""Code, formulas, where links go, roles, strong emphasis, and numbers."""


def marks(text: str) -> set[str]:
    """What a translation must have as its original has it, with how often: `3 × \\`eps\\``."""
    return {f"{often} × {mark}" for mark, often in Counter(re.findall(MARKS, text)).items()}


if __name__ == "__main__":
    sys.exit(main())
