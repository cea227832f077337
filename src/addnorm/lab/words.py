"""The sentences of a study's report, in English and Simplified Chinese."""

from collections.abc import Mapping
from typing import Literal

Language = Literal["en", "zh"]

WORDS: Mapping[Language, Mapping[str, str]] = {
    "en": {
        "language": "English",
        "question": "Which {fields} is best?",
        "and": " and ",
        "valid": "validation",
        "test": "test",
        "design": "{variants} variants with {seeds} each, of {recipe}; the score is "
        "{metric} on the {split} split, {better} is better. All are compared with the first, "
        "**{first}**, seed by seed.",
        "higher": "higher",
        "lower": "lower",
        "verdicts": "What came out",
        "better_is": "**{name}** is better: {metric} {difference} on average, {interval}.",
        "worse_is": "**{name}** is worse: {metric} {difference} on average, {interval}.",
        "equal_is": "**{name}** is equal with every seed.",
        "undecided_is": "**{name}** is undecided at {n}: {metric} {difference} on average, "
        "{interval}.{needed}",
        "needed": " If that is the true difference, {needed} seeds would decide it in 80 of 100 "
        "studies.",
        "interval": "95 % interval {low} to {high}",
        "one_seed": "no interval with a single seed",
        "none_is": "**{name}** has no figure to compare.",
        "first_none_is": "**{name}** cannot be compared: **{first}**, the first, has no figure.",
        "tokens_differ": "The variants did not see equally many tokens: {least} to {most}. A "
        "difference may be that of what they saw.",
        "data_differ": "{fields} changes the data: figures of different examples are compared.",
        "refused_is": "**{name}** was refused before anything ran: {reason}",
        "dropped_is": "**{name}** was dropped early: {reason}.",
        "diverged_is": "**{name}** met a number that is not finite with {n} of {seeds}; only "
        "the others are compared.",
        "missing_is": "**{name}** is not finished with {n} of {seeds}.",
        "seed": "1 seed",
        "seeds": "{n} seeds",
        "figures": "Figures",
        "head": "| variant | {metric} | difference | 95 % interval | over examples | effect | p | "
        "parameters | tokens | seconds |",
        "pictures": "Pictures",
        "forest": "Difference to {first}",
        "curves": "Learning curves",
        "reading": "How to read this",
        "notes": "The difference is the mean over seeds of a variant minus the first; the interval "
        "is that of Student's t. *Over examples* is the interval when test examples (batches for a "
        "loss, stretches of windows for a forecast) are drawn again (bootstrap): how sure the "
        "difference is for these weights on other data. The effect is the mean difference in units "
        "of its standard deviation. p is that of the paired t-test, corrected by Holm for all "
        "variants of this study; below 0.05 the variant is called better or worse. Seconds are "
        "those of training one cell (median). Where a score counts examples, such as accuracy, "
        "p and the interval take it to vary by one example at least.",
        "bleu": " For BLEU, sacrebleu's paired bootstrap of the first seed gives p = {p}.",
        "adjusted": "Made equal in cost: {fields}.",
    },
    "zh": {
        "language": "简体中文",
        "question": "哪种 {fields} 最好？",
        "and": " 和 ",
        "valid": "验证",
        "test": "测试",
        "design": "{recipe} 的 {variants} 个变体，每个 {seeds}；指标是 {split} "
        "数据上的 {metric}，越{better}越好。全部按种子逐一与第一个变体 **{first}** 比较。",
        "higher": "高",
        "lower": "低",
        "verdicts": "结论",
        "better_is": "**{name}** 更好：{metric} 平均 {difference}，{interval}。",
        "worse_is": "**{name}** 更差：{metric} 平均 {difference}，{interval}。",
        "equal_is": "**{name}** 在每个种子下都相等。",
        "undecided_is": "**{name}** 在 {n}下未定：{metric} 平均 {difference}，{interval}。{needed}",
        "needed": "若真实差异如此，{needed} 个种子在 100 次研究中可有 80 次得出结论。",
        "interval": "95 % 区间 {low} 至 {high}",
        "one_seed": "只有一个种子，没有区间",
        "none_is": "**{name}** 没有可比较的数字。",
        "first_none_is": "**{name}** 无法比较：第一个变体 **{first}** 没有数字。",
        "tokens_differ": "各变体看到的词元数不同：{least} 至 {most}。差异可能来自所见数据的多少。",
        "data_differ": "{fields} 改变了数据：所比较的数字来自不同的样本。",
        "refused_is": "**{name}** 在开始之前被拒绝：{reason}",
        "dropped_is": "**{name}** 被提前淘汰：{reason}。",
        "diverged_is": "**{name}** 有 {n} 个种子（共 {seeds}）出现了非有限数；只比较其余的。",
        "missing_is": "**{name}** 有 {n} 个种子（共 {seeds}）尚未完成。",
        "seed": "1 个种子",
        "seeds": "{n} 个种子",
        "figures": "数字",
        "head": "| 变体 | {metric} | 差异 | 95 % 区间 | 按样本 | 效应 | p | 参数 | 词元 | 秒 |",
        "pictures": "图",
        "forest": "与 {first} 的差异",
        "curves": "学习曲线",
        "reading": "如何阅读",
        "notes": "差异是各种子下变体减去第一个变体的平均值；区间来自学生 t 分布。“按样本”是重新抽取"
        "测试样本（对损失则是批，对预测则是连续的若干窗口）的自助法区间：就这些权重而言，换一批数据时差异有多可靠。效应是平均差异"
        "除以其标准差。p 来自配对 t 检验，并按 Holm 方法对本研究的全部变体校正；小于 0.05 时称为"
        "更好或更差。秒数是训练一个格子所用时间的中位数。对于数样本的指标（如准确率），"
        "p 与区间假定其至少有一个样本的波动。",
        "bleu": "对 BLEU，sacrebleu 对第一个种子的配对自助法给出 p = {p}。",
        "adjusted": "为使代价相等而调整：{fields}。",
    },
}
