"""A logger of someone else, which keeps all that it hears by the id of the run."""

from dataclasses import dataclass, field

from addnorm.training.callbacks import StepEvent, ValidationEvent
from addnorm.training.loggers import LoggedRun


@dataclass
class Heard:
    """All that was heard of a run."""

    runs: list[LoggedRun] = field(default_factory=list[LoggedRun])
    lines: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    left: list[type[BaseException] | None] = field(default_factory=list[type[BaseException] | None])


SERVER: dict[str, Heard] = {}


@dataclass(frozen=True)
class FakeConfig:
    """Says at which step it fails, if at any."""

    fails_at: int = 0

    def build(self, run: LoggedRun) -> "Fake":
        heard = SERVER.setdefault(run.id, Heard())
        heard.runs.append(run)
        return Fake(heard, self.fails_at)


class Fake:
    """A context manager, as loggers with a connection are."""

    def __init__(self, heard: Heard, fails_at: int) -> None:
        self.heard, self.fails_at = heard, fails_at

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.heard.left.append(kind)

    def on_step(self, event: StepEvent) -> None:
        self.heard.lines.append({"step": event.step, **event.figures})
        if event.step == self.fails_at:
            raise ZeroDivisionError

    def on_validation(self, event: ValidationEvent) -> None:
        self.heard.lines.append({"step": event.step, **event.figures})


@dataclass(frozen=True)
class DeafConfig:
    """Builds what hears nothing."""

    def build(self, run: LoggedRun) -> object:
        return object()
