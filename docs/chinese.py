"""Search on the Chinese pages: Chinese has no spaces, so every pair of characters is a word.

Sphinx cuts texts when it builds and queries in the browser; pairs come out the same in both places,
where dictionaries would differ.
"""

import re

from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

CHINESE = "\u3400-\u9fff"


class SearchChinese(SearchEnglish):
    """Pairs of Chinese characters, and all else as on the English pages."""

    lang = "zh"
    js_splitter_code = """
// A query is cut into words where the browser can (they need not stand together), then into pairs.
var splitQuery = (query) => {
  const cut = window.Intl && Intl.Segmenter && new Intl.Segmenter("zh", { granularity: "word" });
  const words = (run) => (cut ? Array.from(cut.segment(run), (one) => one.segment) : [run]);
  const pairs = (word) =>
    word.length < 2 ? [word] : Array.from(word.slice(1), (_, i) => word.slice(i, i + 2));
  return (query.match(/[CHINESE]+|(?:(?![CHINESE])[\\p{Letter}\\p{Number}_])+/gu) || [])
    .flatMap((run) => (/[CHINESE]/.test(run) ? words(run).flatMap(pairs) : [run]));
};
""".replace("CHINESE", CHINESE)

    def split(self, input: str) -> list[str]:
        """The words of a text; single characters too, for a query of one."""
        runs = re.findall(f"[{CHINESE}]+", input)
        pairs = [run[i : i + 2] for run in runs for i in range(len(run) - 1)]
        return [*super().split(re.sub(f"[{CHINESE}]+", " ", input)), *pairs, *"".join(runs)]


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_search_language(SearchChinese)
