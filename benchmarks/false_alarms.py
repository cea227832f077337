"""Do the verdicts of a study hold? Two recipes that are the same, and two that differ by design.

`python benchmarks/false_alarms.py` trains a small recipe with many seeds, and one whose learning
rate is a planted change, then draws 200 studies of two, three and five seeds each: how often the
same recipe is called different from itself, and how often the planted difference is found, with
the power that is predicted for it.
"""

import json
import random
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from addnorm.lab.executor import workers
from addnorm.lab.statistics import differences, effect_size, power_of
from addnorm.lab.studies.ablation import run_study
from addnorm.lab.studies.options import StudyOptions
from addnorm.lab.studies.study import study_of

RECIPE = """
[data]
kind = "text"
train = "{text}"
valid_fraction = 0.1
[tokenizer]
kind = "char"
[model]
kind = "decoder"
d_model = 32
n_layers = 2
attention = {{ n_heads = 2 }}
residual = {{ kind = "pre" }}
[train]
steps = 120
batching = {{ kind = "windows", batch_size = 8, seq_len = 32 }}
"""
POOL, STUDIES, SEEDS = 60, 200, (2, 3, 5)
RATES = ("3e-3", "2.7e-3")
RESULTS = Path(__file__).parent / "results" / "false_alarms.json"


def main() -> None:
    """Train the pool, draw the studies, and write the figures."""
    text = Path(__file__).parents[1] / "README.md"
    with TemporaryDirectory() as made:
        file = Path(made) / "small.toml"
        file.write_text(RECIPE.format(text=text), encoding="utf-8")
        options = StudyOptions(seeds=POOL)
        study = study_of(file, Path(made) / "study", {"train.lr": list(RATES)}, options)
        summary = run_study(study, options, workers(None), Console(stderr=True))
    same, planted = (row.values for row in summary.rows)
    chance = random.Random(0)
    effect = effect_size([planted[seed] - same[seed] for seed in same])
    alarms, detected = 0, dict.fromkeys(SEEDS, 0)
    for _ in range(STUDIES):
        for n in SEEDS:
            seeds = chance.sample(sorted(same), 2 * n)
            first, second = ([same[seed] for seed in part] for part in (seeds[:n], seeds[n:]))
            alarms += differences([(first, second)])[0].verdict != "undecided"
            sides = ([planted[seed] for seed in seeds[:n]], first)
            detected[n] += differences([sides])[0].verdict == "higher"
    figures = {
        "command": "python benchmarks/false_alarms.py",
        "date": date.today().isoformat(),
        "studies": STUDIES,
        "pool": POOL,
        "false_alarms": round(alarms / STUDIES / len(SEEDS), 4),
        "planted": f"train.lr {RATES[1]} instead of {RATES[0]}",
        "planted_effect": round(effect, 3),
        "found": {n: detected[n] / STUDIES for n in SEEDS},
        "predicted_power": {n: round(power_of(abs(effect), n), 3) for n in SEEDS},
    }
    RESULTS.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
