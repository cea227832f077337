"""The reference pages: complete, documented, and every example is valid."""

import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import MISSING, dataclass, fields
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from cyclopts import App
from docs import manual
from pydantic import TypeAdapter

import addnorm
from addnorm.cli.main import app
from addnorm.config import classes_in, config, hints_of, meanings
from addnorm.parts import kind_of
from addnorm.runs.recipes.recipe import Recipe

DOCS = Path(__file__).parent.parent / "docs"


def leaves(group: App, above: str = "") -> dict[str, App]:
    """Every command that does something, with the group that it belongs to: `lab run`."""
    found: dict[str, App] = {}
    for name in group:
        if not name.startswith("-"):
            inner = leaves(group[name], f"{above}{name} ")
            found |= inner or {above + name: group[name]}
    return found


COMMANDS = leaves(app)


def reachable(root: Any) -> list[Any]:
    """Every configuration that may stand somewhere in a recipe."""
    found: dict[Any, None] = {}
    todo = [root]
    while todo:
        if (one := todo.pop()) not in found:
            found[one] = None
            todo += [inner for hint in hints_of(one).values() for inner in classes_in(hint)]
    return [*found]


CONFIGS = [one for one in reachable(Recipe) if one is not Recipe]
FIELDS = [(one, field) for one in CONFIGS for field in fields(one) if field.name != "kind"]


def named(value: Any) -> str:
    return getattr(value, "__name__", "") or getattr(value, "name", "")


adapters: dict[str, TypeAdapter[Any]] = {}


def adapter(one: Any, field: str) -> TypeAdapter[Any]:
    """Checks a value of a field; fields of the same type share one, for it is slow to make."""
    hint = hints_of(one)[field]
    return adapters.setdefault(str(hint), adapters.get(str(hint)) or TypeAdapter(hint))


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return manual.recipe_pages()


def test_every_part_of_a_recipe_has_its_place_once(pages: dict[str, str]) -> None:
    headings = [line for page in pages.values() for line in page.splitlines() if line[:1] == "("]
    kinds = [kind_of(one) for one in CONFIGS if "kind" in hints_of(one)]
    for kind in kinds:
        places = [one for one in headings if re.fullmatch(rf"\(recipe-.+-{kind}\)=", one)]
        assert len(places) == kinds.count(kind), kind
    assert len(headings) == len({*headings})


@pytest.mark.parametrize("one", [Recipe, *CONFIGS], ids=named)
def test_every_field_has_a_sentence(one: Any) -> None:
    found = meanings(one)
    assert {*found} >= {field.name for field in fields(one)} - {"kind"}
    for said in found.values():
        assert said[0].isupper() or said.startswith(("ε, ", "s, ")), said
        assert said.endswith("."), said


@pytest.mark.parametrize(("one", "field"), FIELDS, ids=named)
def test_the_default_and_example_of_a_field_are_right(one: Any, field: Any) -> None:
    """The default is the default, and the example is accepted and another."""
    accepted = adapter(one, field.name).validate_python
    shown = manual.default_and_example(one, field)
    lines = re.findall(rf"`({field.name} = .*?)`(?:\.|$)", shown)
    assert lines, "there is an example of every field"
    checked = [accepted(tomllib.loads(line)[field.name]) for line in lines]
    if "Default" in shown:
        assert checked[0] == field.default
        assert field.default not in checked[1:]
    else:
        assert field.default in (None, MISSING)
        assert ("Required" in shown) == (field.default is MISSING)


def test_the_text_of_a_field(pages: dict[str, str]) -> None:
    assert """`momentum`
: The share of the newest batch in the running statistics.

  Number above 0, up to 1. Default: `momentum = 0.1`.
""" in pages["recipe_model"]
    assert """`betas`
: The decay of the running means of the gradient and of its square.

  Pair of numbers from 0, below 1. Default: `betas = [0.9, 0.98]`.
""" in pages["recipe_train"]
    assert "`γ x / √(mean(x²) + ε)` over the features" in pages["recipe_model"]


@config
class Silent:
    """A configuration that says too little."""

    said: int = 1
    """A number."""
    unsaid: int = 2


def test_a_field_without_a_sentence_stops_the_build() -> None:
    with pytest.raises(ValueError, match=r"Silent\.unsaid has no sentence"):
        [*manual.field_lines(Silent, {})]


def test_meanings_are_those_of_the_nearest_class() -> None:
    @dataclass(frozen=True)
    class Above:
        kept: int = 1
        """From above."""
        changed: int = 1
        """From above."""

    @dataclass(frozen=True)
    class Below(Above):
        changed: int = 2
        """From
        below."""

    assert meanings(Below) == {"kept": "From above.", "changed": "From below."}


def test_every_option_is_on_the_page_of_commands() -> None:
    page = manual.commands_page(app)
    for name in COMMANDS:
        section = page.split(f"# addnorm {name}\n")[1].split("# addnorm ")[0]
        for argument in COMMANDS[name].assemble_argument_collection():
            if argument.show:
                written = argument.name if argument.index is None else manual.place(argument)
                assert f"\n`{written}`\n: " in section, (name, written)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_a_command_is_one(name: str) -> None:
    lines = [*manual.command_lines(name, COMMANDS[name])]
    [example] = [line for line in lines if line.startswith("$ ")]
    words = shlex.split(example.partition(">")[0])[1:]
    assert words[: 1 + len(name.split())] == ["addnorm", *name.split()]
    app.parse_args(words[1:], exit_on_error=False, print_error=False)


def test_the_text_of_an_option() -> None:
    page = manual.commands_page(app)
    assert "Usage: `addnorm swap RUN [OVERRIDES …] --out … [OPTIONS]`" in page
    assert "Usage: `addnorm schema`\n" in page
    assert (
        """`--split`
: Which part of the data to score; by default test, or valid where the data have no test.

  One of `valid`, `test`.
"""
        in page
    )


def silent_command(option: int = 1) -> None:
    """Do something. Example: `addnorm silent`."""


def command_without_example() -> None:
    """Do something."""


def test_a_command_that_says_too_little_stops_the_build() -> None:
    made = App()
    made.command(silent_command, name="silent")
    made.command(command_without_example, name="mute")
    with pytest.raises(ValueError, match="addnorm silent --option has no sentence"):
        [*manual.command_lines("silent", made["silent"])]
    with pytest.raises(ValueError, match="addnorm mute has no example"):
        [*manual.command_lines("mute", made["mute"])]


def test_every_public_name_is_on_one_page_of_the_api() -> None:
    """`masks` and `presets` are modules, each with a page of its own."""
    text = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("api_*.md"))
    shown = re.findall(r"^\.\. auto\w+:: addnorm\.(\w+)$", text, re.MULTILINE)
    shown += [
        name for name in ("train", "check") if re.search(rf"autofunction:: .*\.{name}$", text, re.M)
    ]
    shown += [name for name in ("masks", "presets") if f"`addnorm.{name}`" in text]
    assert sorted(shown) == sorted({*addnorm.__all__} - {"__version__"})


class Loaded(HTMLParser):
    """What a page has a browser load when it is opened."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.places: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "a":
            names = ("src", "srcset", "href", "data", "poster")
            self.places += [value for name, value in attrs if name in names and value]


def test_what_a_page_loads_is_found() -> None:
    page = '<a href="https://a"></a><script src="https://b"></script><link href="//c"><img src="d">'
    assert Loaded(page).places == ["https://b", "//c", "d"]


class Anchors(HTMLParser):
    """Where the links of a page lead, and the places that links can lead to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places = {"", "top"}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.places |= {place for name in ("id", "name") if (place := given.get(name))}
        if tag == "a" and (link := given.get("href")):
            self.links.append(link)


def dead_links(pages: dict[Path, Anchors]) -> list[str]:
    """The links within the manual that lead to no file, or to no place of a page."""
    dead: list[str] = []
    for page, anchors in pages.items():
        for link in anchors.links:
            place = urlsplit(link)
            if place.scheme or place.netloc:
                continue
            file = (page.parent / unquote(place.path)).resolve() if place.path else page
            there = pages.get(file)
            if there is None and file.is_file():
                continue
            if there is None or unquote(place.fragment) not in there.places:
                dead.append(f"{page.name}: {link}")
    return dead


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    links = "".join(
        f'<a href="{link}">x</a>'
        for link in (
            "#here",
            "b.html#there",
            "a.png",
            "https://a/b#c",
            "#no",
            "b.html#no",
            "c.html",
        )
    )
    pages = {
        tmp_path / "a.html": Anchors(f'<p id="here">{links}</p>'),
        tmp_path / "b.html": Anchors('<p id="there"></p>'),
    }
    assert dead_links(pages) == ["a.html: #no", "a.html: b.html#no", "a.html: c.html"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation in both languages, which builds without a warning."""
    folder = tmp_path_factory.mktemp("docs")
    for options in ([folder], ["-D", "language=zh_CN", folder / "zh-CN"]):
        command = ["-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs"]
        done = subprocess.run(
            [sys.executable, *command, *options], cwd=DOCS.parent, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1200)  # the documentation is built twice
def test_the_pages_need_no_network(built: Path) -> None:
    """The documentation is whole, formulas and all, and loads nothing remote."""
    pages = {page: page.read_text(encoding="utf-8") for page in built.rglob("*.html")}
    assert len(pages) > 40
    for page, text in pages.items():
        for place in Loaded(text).places:
            assert not re.match(r"\w+://|//", place), (page.name, place)
        if 'class="math' in text:
            [script] = [one for one in Loaded(text).places if "tex-svg-full.js" in one]
            assert (page.parent / script.partition("?")[0]).is_file()
    for style in built.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(\w+:)?//", style.read_text("utf-8")), style
    assert "[source]" in re.sub(r"<[^>]+>", "", pages[built / "api_runs.html"])
    for folder in (built, built / "zh-CN"):
        assert 'class="math' in pages[folder / "norms.html"]


@pytest.mark.slow
@pytest.mark.timeout(1200)  # the documentation is built twice
def test_every_link_of_the_manual_leads_to_its_place(built: Path) -> None:
    pages = {page: Anchors(page.read_text("utf-8")) for page in built.rglob("*.html")}
    assert sum(len(anchors.links) for anchors in pages.values()) > 10_000
    assert not "\n".join(dead_links(pages))


@pytest.mark.slow
@pytest.mark.timeout(1200)  # the documentation is built twice
def test_every_page_has_a_link_to_itself_in_the_other_language(built: Path) -> None:
    for page in built.rglob("*.html"):
        chinese = page.is_relative_to(built / "zh-CN")
        text = page.read_text(encoding="utf-8")
        assert f'lang="{"zh-CN" if chinese else "en"}"' in re.findall("<html[^>]*>", text)[0]
        [there] = re.findall(r'rel="alternate"[^>]*href="([^"]+)"', text)
        name = page.relative_to(built / "zh-CN" if chinese else built)
        other = built / name if chinese else built / "zh-CN" / name
        assert (page.parent / there).resolve() == other.resolve()
        assert other.is_file()
    assert "归一化" in (built / "zh-CN" / "norms.html").read_text(encoding="utf-8")
    assert "splitQuery" in (built / "zh-CN/_static/language_data.js").read_text(encoding="utf-8")
