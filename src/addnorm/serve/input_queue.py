"""The queue of requests for results of whole inputs, computed together, a few tokens a step."""

import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from sys import maxsize
from typing import Any

from addnorm.errors import InputError
from addnorm.runs.run import Run
from addnorm.serve.engine.interruption import Interrupted, interruptible
from addnorm.serve.messages import Apply, Error, Result
from addnorm.serve.whole_inputs import outputs_for, token_counts

FAULTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What code that reads an input raises where it expects another one; the model still works."""


@dataclass(eq=False)
class _Job:
    """A request, with the outputs for its first inputs."""

    request: Apply
    sizes: Sequence[int]
    """The tokens of each input."""
    outputs: list[Any] = field(default_factory=list[Any])
    wanted: bool = True

    @property
    def is_complete(self) -> bool:
        """Whether all inputs have their outputs."""
        return len(self.outputs) == len(self.request.inputs)

    def like(self, other: "_Job") -> bool:
        """Whether two requests ask for the same kind of output."""
        ours, theirs = self.request, other.request
        return (ours.endpoint, ours.options) == (theirs.endpoint, theirs.options)

    def next_inputs(self, budget: float) -> int:
        """The number of next inputs that fit into so many tokens."""
        n, first = 0, len(self.outputs)
        for size in self.sizes[first:]:
            budget -= size
            if budget < 0:
                break
            n += 1
        return n


class InputQueue:
    """The open requests to a run for results of whole inputs.

    A step takes the next inputs of the first request, and of those after it that ask for the same,
    up to a number of tokens. If one of them cannot be read, or the task fails at it, each request
    is computed by itself, so that its error names its own inputs. No input has more tokens than
    `longest`.
    """

    def __init__(self, run: Run, longest: int = maxsize) -> None:
        self._run = run
        self._longest = longest
        self._jobs: deque[_Job] = deque()
        self._running: list[_Job] = []

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def n_running(self) -> int:
        """The number of open requests in the present step."""
        return sum(job.wanted for job in self._running)

    def drop_running(self) -> list[str]:
        """End the requests of the last step, which failed; return their names."""
        dropped = [job.request.name for job in self._running if job.wanted]
        for name in dropped:
            self.cancel(name)
        self._running = []
        return dropped

    def add(self, request: Apply) -> None:
        """Queue a request. Raises `InputError` for an input that is too long."""
        sizes = _sizes(self._run, request.inputs)
        if (size := max(sizes, default=0)) > self._longest:
            raise InputError(
                f"{request.field}: {size:,} tokens, which are read at once: the memory holds the "
                f"attention of at most {self._longest:,}: divide it into shorter texts"
            )
        self._jobs.append(_Job(request, sizes))

    def cancel(self, name: str) -> None:
        """End a request without further events."""
        for job in self._jobs:
            if job.request.name == name:
                job.wanted = False
        self._jobs = deque(job for job in self._jobs if job.wanted)

    def step(self, budget: int, look_up: Callable[[], None]) -> list[Result | Error]:
        """Compute the next inputs, of at most `budget` tokens but at least one input.

        Returns the requests that end. Meanwhile `look_up` is called between layers; it may add and
        cancel requests. Once nobody waits for the results, they are not computed to the end.
        """
        parts = self._next(budget)
        self._running = jobs = [job for job, _ in parts]
        inputs = [each for _, chosen in parts for each in chosen]
        events: list[Result | Error]
        try:
            outputs = self._outputs(jobs, inputs, look_up)
        except FAULTS:
            events = [event for job in jobs for event in self._by_itself(job, look_up)]
        else:
            for job, chosen in parts:
                job.outputs += outputs[: len(chosen)]
                del outputs[: len(chosen)]
            events = [self._result(job) for job in jobs if job.wanted and job.is_complete]
        self._running = []
        return events

    def _outputs(
        self, jobs: Sequence[_Job], inputs: Sequence[Any], look_up: Callable[[], None]
    ) -> list[Any]:
        """The outputs for inputs of these requests; none once nobody waits for them."""

        def check() -> None:
            look_up()
            if not any(job.wanted for job in jobs):
                raise Interrupted

        request = jobs[0].request
        try:
            with interruptible(self._run.model, check):
                return outputs_for(self._run, request.endpoint, inputs, request.options)[0]
        except Interrupted:
            if any(job.wanted for job in jobs):
                raise
            return []

    def _next(self, budget: int) -> list[tuple[_Job, Sequence[Any]]]:
        """The next inputs of requests for the same output, at least one of the first request."""
        first, left, parts = self._jobs[0], budget, list[tuple[_Job, Sequence[Any]]]()
        for job in self._jobs:
            if not job.like(first):
                continue
            begin, n = len(job.outputs), job.next_inputs(left)
            n = n or int(job is first)
            if not n and not job.is_complete:
                break
            left -= sum(job.sizes[begin : begin + n])
            parts.append((job, job.request.inputs[begin : begin + n]))
        return parts

    def _by_itself(self, job: _Job, look_up: Callable[[], None]) -> Iterator[Result | Error]:
        """Compute one request alone; return its outputs, or the reason why there are none."""
        if not job.wanted:
            return
        try:
            job.outputs = self._outputs([job], job.request.inputs, look_up)
        except InputError as error:
            self._jobs.remove(job)
            yield Error(name=job.request.name, message=str(error), kind="input")
        except FAULTS as error:
            self._jobs.remove(job)
            traceback.print_exc()
            message = f"{job.request.field}: {type(error).__name__}: {error}"
            yield Error(name=job.request.name, message=message, kind="failed")
        else:
            if job.wanted:
                yield self._result(job)

    def _result(self, job: _Job) -> Result:
        """The complete result of a request, which is then removed."""
        request = job.request
        self._jobs.remove(job)
        n, n_unknown = token_counts(self._run, request.inputs)
        outputs = tuple(job.outputs)
        return Result(name=request.name, outputs=outputs, n_tokens=n, n_unknown=n_unknown)


def _sizes(run: Run, inputs: Sequence[Any]) -> list[int]:
    """The approximate number of tokens in each input: of its texts and ids; at least one."""
    if run.text is None:
        return [1] * len(inputs)
    texts = [[*_texts(each)] for each in inputs]
    try:
        rows = iter(run.tokenizers.source.encode_batch([text for each in texts for text in each]))
    except InputError:
        return [1] * len(inputs)  # reading them raises the error
    return [
        max(1, sum(len(next(rows)) for _ in each), _n_ids(value))
        for each, value in zip(texts, inputs, strict=True)
    ]


def _texts(value: Any) -> Iterator[str]:
    """All texts inside an input."""
    match value:
        case str():
            yield value
        case Mapping():
            yield from (text for each in value.values() for text in _texts(each))
        case list() | tuple():
            yield from (text for each in value for text in _texts(each))
        case _:
            pass


def _n_ids(value: Any) -> int:
    """The number of ids inside an input."""
    return sum(isinstance(each, int) for each in value) if isinstance(value, list | tuple) else 0
