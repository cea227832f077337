"""The start-up benchmark: import time, and time to the first compiled tokens."""

from addnorm.bench import fresh, ours, prepared
from addnorm.bench.benchmark import Benchmark, implementation
from addnorm.bench.targets import Beside, Goal, Limit

TORCH, OURS, WHOLE = "import torch", "import addnorm", "import addnorm.train and addnorm.generate"
FIRST = "first token, compiled before"


def benchmark() -> Benchmark:
    """New processes, one after the other."""
    statements = {
        TORCH: "import torch",
        OURS: "import addnorm",
        WHOLE: "import addnorm, addnorm.training.trainer, addnorm.generate",
    }
    no_slower = Goal(must=1.10, at_most=True)
    return Benchmark(
        name="start-up",
        description="fresh processes: what an import takes beside torch's own, and a first token",
        unit="ms",
        figure="ms",
        prepare=prepared.gpt2,
        implementations=(
            *(
                implementation(name, fresh.started, statement=statement)
                for name, statement in statements.items()
            ),
            implementation(FIRST, ours.first_token),
        ),
        targets=(
            Beside(ours=(OURS,), peers=(TORCH,), figure="ms", goal=no_slower),
            Beside(ours=(WHOLE,), peers=(TORCH,), figure="ms", goal=no_slower),
            Limit(ours=(FIRST,), figure="ms", goal=Goal(must=3000.0, at_most=True)),
        ),
    )
