"""Search on the Chinese pages: Chinese is written without spaces, so pairs of characters are words.

Sphinx has no other way to cut a query than to cut it in the browser: pairs need no dictionary.
"""

import re

from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

RUN = "[\u3400-\u9fff]+"
"""Characters that stand together."""


class SearchChinese(SearchEnglish):
    """Pairs of characters, and what is not Chinese as on the English pages."""

    lang = "zh"
    js_splitter_code = """
var splitQuery = (query) => query
  .split(/[^\\p{Letter}\\p{Number}_]+|(?<=[\u3400-\u9fff])(?![\u3400-\u9fff])|(?<![\u3400-\u9fff])(?=[\u3400-\u9fff])/u)
  .filter((term) => term)
  .flatMap((term) => /^[\u3400-\u9fff]{2,}$/.test(term)
    ? Array.from({ length: term.length - 1 }, (_, i) => term.slice(i, i + 2))
    : [term]);
"""

    def split(self, input: str) -> list[str]:
        """The words of a text: single characters too, for a query of one."""
        runs = re.findall(RUN, input)
        pairs = [run[i : i + 2] for run in runs for i in range(len(run) - 1)]
        return [*super().split(re.sub(RUN, " ", input)), *pairs, *"".join(runs)]

    def word_filter(self, word: str) -> bool:
        """Every Chinese word counts, and of the others what counts in English."""
        return bool(re.fullmatch(RUN, word)) or super().word_filter(word)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_search_language(SearchChinese)
