"""The sentences around the claims, in English and Simplified Chinese."""

from collections.abc import Mapping

from addnorm.lab.words import Language

WORDS: Mapping[Language, Mapping[str, str]] = {
    "en": {
        "title": "Ten claims of the tutorials, measured",
        "intro": "Each claim was written down with a prediction and a rule for its verdict before "
        "it was measured; what came out is what is shown. A claim is refuted where one of its "
        "parts is, and undecided where the 95 % interval over seeds holds the limit.",
        "head": "| | claim | data | size | seeds | verdict |",
        "none": "not measured",
        "parts": "{n} of {of} parts hold",
        "made": "Made data",
        "section": "## {data}: {verdict}",
        "said": "What is said.",
        "literature": "What the literature says.",
        "same": "By the literature the claim is {literature}: the verdict here is the same.",
        "other": "By the literature the claim is {literature}; here, at this size, it is {here}.",
        "open": "The literature does not settle the claim as it is ruled on here.",
        "predicted": "What we predicted.",
        "rule": "How it is settled.",
        "supported": "supported",
        "refuted": "refuted",
        "undecided": "undecided",
        "left": "{n} cells are not measured yet.",
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
        "made": "生成的数据",
        "section": "## {data}：{verdict}",
        "said": "教程的说法。",
        "literature": "文献的说法。",
        "same": "按文献，此论断{literature}：与这里的裁决相同。",
        "other": "按文献，此论断{literature}；而在这里的规模下为{here}。",
        "open": "对于这里所裁决的论断，文献没有定论。",
        "predicted": "我们的预测。",
        "rule": "如何裁决。",
        "supported": "成立",
        "refuted": "被否定",
        "undecided": "未定",
        "left": "还有 {n} 个格子尚未测量。",
        "quick": "快速",
        "full": "完整",
        "night": "整夜",
        "seeds": "{n} 个种子（{size}）；平均值及其种子间 95 % 区间的一半。",
    },
}
