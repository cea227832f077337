"""The pages of the claims: what the laboratory reported, in the language that is being built."""

import shutil
from pathlib import Path

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "lab"


def write_claims(folder: Path, language: str) -> None:
    """Write the overview and a page for each claim that was measured, with their pictures."""
    ending = ".zh-CN.md" if language == "zh_CN" else ".md"
    folder.mkdir(exist_ok=True)
    pages = [file for file in sorted(RESULTS.glob("*.md")) if is_in(file, ending)]
    names: list[str] = []
    for file in pages:
        name = file.name.removesuffix(ending)
        text = file.read_text("utf-8").replace(".zh-CN.md)", ".md)")
        if name == "README":
            continue
        names.append(name)
        (folder / f"{name}.md").write_text(text, "utf-8")
    overview = (RESULTS / f"README{ending}").read_text("utf-8").replace(".zh-CN.md)", ".md)")
    listed = ["", "```{toctree}", ":maxdepth: 1", ":hidden:", "", *names, "```", ""]
    (folder / "index.md").write_text(overview + "\n".join(listed), "utf-8")
    for picture in RESULTS.glob("*.svg"):
        shutil.copy(picture, folder)


def is_in(file: Path, ending: str) -> bool:
    """Whether a page is in the language of this ending."""
    return file.name.endswith(".zh-CN.md") == (ending == ".zh-CN.md")
