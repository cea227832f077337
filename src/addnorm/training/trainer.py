"""The training loop, with validation, checkpoints, resuming and graceful shutdown."""

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor, nn

from addnorm import compiler
from addnorm.data.batches.batch import Batch, Batches
from addnorm.errors import InputError, Interrupted, NonFiniteError, RankLostError
from addnorm.machine import keep_freed_pages, keep_small_freed_pages
from addnorm.models.weights import Weights, weights_of
from addnorm.nn.choices import choices
from addnorm.nn.norms import BatchNorm
from addnorm.training.activation_checkpointing import checkpointed_activations
from addnorm.training.average import MovingAverage, mean, swapped
from addnorm.training.callbacks import Callback, Callbacks, SaveEvent, StepEvent, ValidationEvent
from addnorm.training.checkpoint import (
    Background,
    Copies,
    Json,
    checkpoints_in,
    keep_latest,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
    save_weights,
    stored_weights,
)
from addnorm.training.expert_load import ExpertLoad, balance_loss, mixtures_of, record_router_logits
from addnorm.training.interruptions import ExhaustedError, out_of_memory, patiently, stop_requests
from addnorm.training.loggers import Journal
from addnorm.training.loss import CrossEntropyConfig
from addnorm.training.objective import Objective
from addnorm.training.optim import (
    build_optimizers,
    constraint_on,
    optimizer_tensors,
    restore_optimizers,
)
from addnorm.training.parallel.tensors import copy_parts, spread, whole
from addnorm.training.parallel.world import OneProcess, World
from addnorm.training.precision import autocast, loss_scaler, resolve_device
from addnorm.training.random_state import random_state, restore_random_state
from addnorm.training.schedule import checked_factor
from addnorm.training.settings import TrainConfig
from addnorm.training.stored import SavedTensor, Tensors

T = TypeVar("T")


@dataclass(frozen=True)
class Validation:
    """How to evaluate the model: `score` returns metrics by name, `metric` is the main one.

    `measured_with` returns the settings that a metric depends on, in a line that is stored with its
    figures, so that only comparable figures are compared; it is empty for a metric without such
    settings. `measure` names the main metric with these settings, and is stored with the best
    value; `measure_before` stands for it in a checkpoint without one. `writes` says that the model
    writes texts for it, for each token of which it needs all weights again.
    """

    score: Callable[[nn.Module], dict[str, float]]
    metric: str = "loss"
    larger_is_better: bool = False
    measured_with: Callable[[str], str] = lambda _: ""
    measure: str = ""
    measure_before: str | None = None
    writes: bool = False


@dataclass
class TrainState:
    """The progress of training, saved with weights, optimisers and random state."""

    step: int = 0
    epoch: int = 0
    position: int = 0  # batches of this epoch already used
    best: float | None = None
    best_step: int = 0
    validations_since_best: int = 0
    journal_bytes: int = 0


class Trainer:
    """Trains `model` in `folder` by `config`; `resume` continues from the newest intact checkpoint.

    `folder` gets `metrics.jsonl`, `checkpoints/` and, with validation, `best.safetensors`. With a
    `teacher`, the model learns the teacher's outputs and, if `config` has a `distillation`, the
    labels as well. `callbacks` get steps, validations and checkpoints after `metrics.jsonl`, in
    this process. `world` is the processes that train together, by default this one alone; where
    they split the weights, `model` has none of them, and `lead_whole` all.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        config: TrainConfig,
        folder: Path,
        *,
        validation: Validation | None = None,
        callbacks: Sequence[Callback] = (),
        teacher: nn.Module | None = None,
        world: World | None = None,
    ) -> None:
        if validation is None and (config.select == "best" or config.patience is not None):
            raise InputError("train.select = 'best' and train.patience need validation data")
        if config.accumulate > 1 and any(isinstance(m, BatchNorm) for m in model.modules()):
            raise InputError(
                f"train.accumulate = {config.accumulate} with batchnorm would normalise by the "
                "statistics of micro-batches, not of the batch: use accumulate = 1 and larger "
                "batches, or another norm"
            )
        if config.r_drop and any(m.capacity_factor for m in mixtures_of(model).values()):
            raise InputError(
                f"train.r_drop = {config.r_drop} with capacity_factor: full experts would drop "
                "more tokens of the second pass than of the first: leave one of the two out"
            )
        self.config = config
        self.device = resolve_device(config.device)
        self.world = world or OneProcess()
        if self.device.type == "cpu" and choices().keep_pages:
            keep_small_freed_pages() if self.world.gathers else keep_freed_pages()
        self.whole = model.to(self.device)
        by_token = teacher is None and isinstance(config.loss, CrossEntropyConfig)
        self.model = model = self.world.place(self.whole, by_token=by_token).train()
        self.parameters = [*model.parameters()]
        self.batches = batches
        self.folder = folder
        self.validation = validation
        self.saved_step = 0
        self._unreported_saves = list[SaveEvent]()
        self.background, self.copies = Background(), Copies()
        self.optimizers = build_optimizers(config.optimizer, model, config.lr)
        self.constrain = constraint_on(model, config.constraint)
        self.peaks = [[float(g["lr"]) for g in opt.param_groups] for opt in self.optimizers]
        self.scaler = loss_scaler(config.precision, self.device)
        teacher = None if teacher is None else teacher.to(self.device).eval()
        # float16 scales the loss before the gradient, and chunked logits compute both at once.
        chunked = None if self.scaler.is_enabled() else self.world.cross_entropy_sum
        objective = Objective.of(config, model, batches.batches(0), teacher, chunked=chunked)
        self.objective = self.world.objective(model, objective)
        self.mixtures = mixtures_of(model)
        self.load = ExpertLoad(self.mixtures, self.world)
        self.average = None if config.ema is None else MovingAverage(model, config.ema)
        self.journal = Journal(folder, say=lambda line: self.world.say(line))
        journal = [self.journal] if self.world.leads else []
        self.callbacks = Callbacks([*journal, *callbacks], self.device)
        self.may_be_changed = bool(callbacks)
        self.state = TrainState()
        self.learnt = False
        """Whether a batch had a target so far."""
        self._stream: Iterator[Batch] | None = None
        self.total_steps, self.schedule_steps = self.steps_of(config)
        # A GPU's kernels for fixed sizes are faster; they are made for any size once sizes change.
        dynamic = None if self.device.type == "cuda" else True
        compiled = compiler.compile(self.loss, dynamic=dynamic) if config.compile else self.loss
        self.loss_of: Callable[..., Tensor] = compiled

    def steps_of(self, config: TrainConfig) -> tuple[int, int]:
        """The numbers of steps of the training and of the schedule under these settings."""
        steps = config.total_steps(len(self.batches))
        return steps, config.schedule_steps or steps

    # The loop.

    def fit(self, until: int | None = None) -> None:
        """Train to the last step, then load the run's final weights into the model.

        With `until`, pause after that step, once it is saved. Raises `Interrupted` after Ctrl-C or
        SIGTERM, once everything is saved; `NonFiniteError`; and `InputError` if memory or the disk
        is full, stating what has been saved.
        """
        blocks = checkpointed_activations(self.model, self.config.activation_checkpointing)
        masks = self.world.masks(self.model, copies=2 if self.config.r_drop else 1)
        with (
            stop_requests(self.stopping) as stop,
            self.reporting_saved_step(),
            self.background.finishing(),
            blocks,
            masks,
        ):
            while not (self.finished() or self.paused(until)):
                self.update(self.next_group())
                self.check_learnt()
                self.validate_if_due()
                stopping = self.world.any(bool(stop))  # read once: a later signal waits for a step
                ending = stopping or self.finished() or self.paused(until)
                if ending or self.due(self.config.save_every):
                    self.save(wait=ending)
                self.report_saves()
                if stopping and not self.finished():
                    raise Interrupted(self.state.step)
        if self.finished():
            self.take_final_weights()

    def check_learnt(self) -> None:
        """Raise `InputError` if an epoch, or all of training, had no targets."""
        if not self.learnt and (self.state.position == 0 or self.finished()):
            raise InputError(
                f"step {self.state.step}: no batch so far has anything to predict, so nothing is "
                "learnt: see train.batching and the targets of the data"
            )

    def stopping(self) -> None:
        """Explain what the first Ctrl-C does, and what a second one would do."""
        self.world.say(
            "stopping after this step; Ctrl-C again stops at once and loses the steps after step "
            f"{self.saved_step}"
        )

    @contextmanager
    def reporting_saved_step(self) -> Generator[None]:
        """If training ends prematurely, report the last step that has been saved."""
        try:
            yield
        except KeyboardInterrupt as error:
            raise Interrupted(self.state.step, saved=self.saved_step) from error
        except Exception as error:
            if error is not self.callbacks.failure:
                self.explain(error)
            if error is self.callbacks.failure or isinstance(error, ExhaustedError):
                error.add_note(f"saved is everything up to step {self.saved_step}")
            raise

    def explain(self, error: Exception) -> None:
        """Raise a clear error for a lost process, a failure of the compiler or full memory."""
        if isinstance(error, RuntimeError):
            if (lost := self.world.lost(error)) is not None:
                raise RankLostError(
                    f"{lost} during step {self.state.step + 1}; saved is everything up to "
                    f"step {self.saved_step}",
                    seen=lost.seen,
                    reported=lost.reported,
                ) from error
            if (why := compiler.failure(error)) is not None:
                advice = "mend that, or train without compiling and with no optimizer in 8 bits"
                raise compiler.CompilerError(f"{why}: {advice}") from error
        if what := out_of_memory(error):
            smaller = "Smaller batches (train.batching) with train.accumulate take less"
            exhausted = ExhaustedError(f"step {self.state.step + 1}: {what}. {smaller}")
            exhausted.add_note(f"saved is everything up to step {self.saved_step}")
            raise exhausted from error

    def update(self, group: list[Batch]) -> None:
        """Make one optimiser step on a group of micro-batches, as if they were one batch."""
        assert group, "an epoch has fewer batches than its length says"
        # After a validation the whole may be in another mode, and after a callback any part.
        if self.may_be_changed or not self.model.training:
            self.model.train()
        n_tokens = sum(batch.n_tokens for batch in group)
        self.learnt |= n_tokens > 0
        losses = self.backward(group, n_tokens)
        self.world.sum_gradients(self.model)
        own = torch.stack(losses)
        loss = sum(self.world.total(own).tolist())  # waits for the device only once
        norm = self.clip(loss, own)
        self.set_rates(self.state.step + 1)
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
            optimizer.zero_grad(set_to_none=True)
        self.scaler.update()
        self.constrain()
        self.load.move_corrections()
        if self.average is not None:
            self.average.update(self.model)
        self.advance(len(group))
        self.report(loss, norm, n_tokens)

    def backward(self, group: list[Batch], n_tokens: int) -> list[Tensor]:
        """Add the gradients of micro-batches; return this process's share of each one's loss."""
        loss_of = partial(self.share_of_loss, n_tokens=n_tokens)
        return self.world.differentiate(self.model, group, loss_of, self.scaler.scale)

    def share_of_loss(self, batch: Batch, n_tokens: int) -> Tensor:
        """The contribution of a micro-batch to the loss per token.

        The loss includes the load-balancing loss of mixtures of experts, computed per micro-batch
        and weighted by its tokens. Of several processes each takes some rows of the batch, and its
        share of the loss.
        """
        recorded = record_router_logits(self.mixtures)
        own = self.world.share(batch).to(self.device)
        shown = own.doubled() if self.config.r_drop else own
        with autocast(self.config.precision, self.device), recorded as router_logits:
            loss = self.loss_of(shown.inputs, shown.targets, shown.soft_targets)
            tokens = self.world.own_tokens(shown.inputs)
            balance = balance_loss(self.mixtures, router_logits, tokens, self.world)
            loss = self.world.counted_loss(loss) + batch.n_tokens * balance
            loss = loss / max(n_tokens, 1)
        self.load.count(router_logits, tokens)
        return loss

    def loss(self, inputs: dict[str, Tensor], targets: Tensor, soft: Tensor | None) -> Tensor:
        """The loss of one micro-batch, summed over its targets."""
        return self.objective(self.model, inputs, targets, soft)

    def clip(self, loss: float, own: Tensor) -> float:
        """Clip the gradient's global norm. Raises `NonFiniteError` if it is not finite.

        `own` is this process's share of the loss.
        """
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        parameters = [p for p in self.parameters if p.grad is not None]
        norm = self.world.norm(parameters)
        size, bound = norm.item(), self.config.clip
        # With float16 infinite gradients are normal while the loss scale adapts; `step` skips them.
        if not math.isfinite(loss) or not (self.scaler.is_enabled() or math.isfinite(size)):
            raise NonFiniteError(self.describe_non_finite(loss, own))
        if bound is not None and size + 1e-6 > 0.999 * bound:  # below it, the factor is exactly one
            nn.utils.clip_grads_with_norm_(parameters, bound, norm)
        return size

    def describe_non_finite(self, loss: float, own: Tensor) -> str:
        learned = self.world.own_gradients(self.model)
        largest = {name: whole(grad.abs().max()).item() for name, grad in learned.items()}
        bad = next((name for name, size in largest.items() if not math.isfinite(size)), None)
        if bad is None and bool(own.isfinite().all()):
            top = max(largest, key=largest.__getitem__)
            what = f"the norm of the gradient overflows, the largest being that of {top}"
        else:
            what = f"the first gradient that is not finite is that of {bad or 'no parameter'}"
        where = self.world.where(what, own_loss=own, sound=bad is None)
        return (
            f"step {self.state.step + 1}: the loss is {loss} and {where}. "
            f"The update was not made, and the checkpoints in {self.folder / 'checkpoints'} are "
            "untouched. A lower train.lr, a longer warm-up or train.clip may help."
        )

    def set_rates(self, step: int) -> None:
        """Set the learning rate of every parameter group for this step."""
        factor = self.factor(step, self.schedule_steps)
        for optimizer, peaks in zip(self.optimizers, self.peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                if isinstance(group["lr"], Tensor):  # read by a compiled step
                    group["lr"].fill_(peak * factor)
                else:
                    group["lr"] = peak * factor

    def factor(self, step: int, of: int) -> float:
        """The factor of the peak rate at a step; constant after the schedule's last step."""
        return checked_factor(self.config.schedule, min(step, of), of)

    # Training state.

    def next_group(self) -> list[Batch]:
        """The micro-batches of the next update; fewer at the end of an epoch."""
        state = self.state
        if self._stream is None:
            self._stream = self.batches.batches(state.epoch, state.position)
        return list(islice(self._stream, self.config.accumulate))

    def advance(self, n_batches: int) -> None:
        state = self.state
        state.step += 1
        state.position += n_batches
        if state.position >= len(self.batches):
            state.epoch, state.position, self._stream = state.epoch + 1, 0, None
        self.world.stepped(state.step, self.saved_step)

    def finished(self) -> bool:
        patience = self.config.patience
        out_of_patience = patience is not None and self.state.validations_since_best >= patience
        return out_of_patience or self.state.step >= self.total_steps

    def paused(self, until: int | None) -> bool:
        return until is not None and self.state.step >= until

    def due(self, every: int | None) -> bool:
        """Whether an action is due that runs every `every` steps; every epoch if None."""
        return self.state.position == 0 if every is None else self.state.step % every == 0

    def report(self, loss: float, norm: float, n_tokens: int) -> None:
        state = self.state
        rate = float(self.optimizers[-1].param_groups[0]["lr"])
        figures = {"loss": loss, "grad_norm": norm, "lr": rate, "tokens": n_tokens}
        figures = {"epoch": state.epoch} | figures | self.load.figures()
        self.callbacks.step(StepEvent(state.step, self.total_steps, MappingProxyType(figures)))

    # Validation.

    def validate_if_due(self) -> None:
        last = self.state.step >= self.total_steps
        if self.validation is None or not (last or self.due(self.config.validate_every)):
            return
        self.model.eval()
        state = random_state(self.device)  # validation must not affect the random state of training
        with swapped(self.model, None if self.average is None else self.average.weights):
            scores = self.scores(self.validation)
            is_best = self.note_best(scores[self.validation.metric])
        restore_random_state(state, self.device)
        lines = {name: line for name in scores if (line := self.validation.measured_with(name))}
        event = ValidationEvent(
            self.state.step,
            self.total_steps,
            MappingProxyType(scores),
            is_best=is_best,
            measured_with=lines,
            load=self.load.latest,
        )
        self.callbacks.validation(event)

    def scores(self, validation: Validation) -> dict[str, float]:
        """The scores of the present weights, measured once."""
        score = partial(validation.score, self.whole)
        return self.world.agreed(self.lead_whole(lambda _: score(), {}, often=validation.writes))

    def lead_whole(
        self, do: Callable[[Mapping[str, Tensor]], T], otherwise: T, *, often: bool = False
    ) -> T:
        """Return the result of `do` with the whole current weights, from the leading process."""
        return self.world.lead_whole(self.whole, self.model, do, otherwise, often=often)

    def note_best(self, value: float) -> bool:
        """Save the current weights if this is the best validation so far; return whether it is."""
        assert self.validation is not None
        state, sign = self.state, 1 if self.validation.larger_is_better else -1
        if state.best is None or math.isnan(state.best) or sign * value > sign * state.best:
            state.best, state.best_step = value, state.step
            state.validations_since_best = 0
            self.lead_whole(self.save_best, None)
            return True
        state.validations_since_best += 1
        return False

    def save_best(self, weights: Mapping[str, Tensor]) -> None:
        """Save the present weights as the best."""
        file, outline = self.folder / "best.safetensors", weights_of(self.whole)
        write = partial(save_weights, file, weights, outline)
        patiently(write, "the best weights", self.world.say)

    # Saving and resuming.

    def save(self, *, wait: bool = True) -> None:
        """Write a checkpoint from which `resume` continues bit-exactly.

        Without `wait`, and in several processes, it is written during the next steps.
        """
        with self.world.awaited():
            self.background.finish()
            wait = wait or self.world.size == 1
            tensors = self.tensors_to_save() if wait else self.copies.of(self.tensors_to_save())
            facts = self.facts_to_save()
            folder, step = self.folder / "checkpoints", self.state.step

            def write() -> None:
                saved = save_checkpoint(folder, step, tensors, facts, self.world)
                if self.world.leads:
                    keep_latest(saved, max(self.config.keep, self.config.average))
                self.saved_step = step
                self._unreported_saves.append(SaveEvent(step, self.total_steps, saved))

            if wait:
                write()
            else:
                self.background.start(write)

    def report_saves(self) -> None:
        """Tell the callbacks of the checkpoints written since the last call."""
        while self._unreported_saves:
            self.callbacks.save(self._unreported_saves.pop(0))

    def tensors_to_save(self) -> Tensors:
        """The weights, states and random numbers that this process saves."""
        to_save, parameters = self.world.to_save, dict(self.model.named_parameters())

        def of_weights(weights: Weights) -> dict[str, SavedTensor]:
            saved = {name: to_save(w, parameters.get(name)) for name, w in weights.items()}
            return {name: tensor for name, tensor in saved.items() if tensor is not None}

        tensors = {
            "model": of_weights(weights_of(self.model)),
            "optimizer": optimizer_tensors(self.optimizers, to_save),
        }
        if self.average is not None:
            tensors["average"] = of_weights(self.average.weights)
        if self.world.leads:
            state = random_state(self.device)
            tensors["random"] = {name: SavedTensor(tensor) for name, tensor in state.items()}
        return tensors

    def facts_to_save(self) -> Json:
        """The state of training other than tensors."""
        if self.world.leads:
            flushed = patiently(self.journal.flush, "the journal", self.world.say)
            self.state.journal_bytes = flushed
        facts: Json = {
            "standing": asdict(self.state),
            "scaler": self.scaler.state_dict(),
            "schedule_steps": self.schedule_steps,
        }
        if self.validation is not None:
            facts["best_by"] = self.validation.measure
        if self.average is not None:
            facts["average_updates"] = self.average.updates
        return facts

    def resume(self, before: TrainConfig | None = None) -> list[str]:
        """Resume from the newest intact checkpoint, if any; return a message on each damaged one.

        `before` are the settings that it was trained by, by default the present ones. A checkpoint
        of an earlier version, without the length of its schedule, is written again with it. Raises
        `InputError` if there are checkpoints but all of them are damaged.
        """
        newest, problems = latest_checkpoint(self.folder / "checkpoints")
        if newest is None and problems:
            raise InputError(f"no checkpoint is whole: {'; '.join(problems)}")
        if newest is None:
            self.cut_journal(0)
            return problems
        self.learnt = True  # a checkpoint does not record whether it was
        tensors, facts = load_checkpoint(newest)
        copy_parts(self.model, tensors["model"])
        restore_optimizers(self.optimizers, tensors["optimizer"])
        restore_random_state(tensors["random"], self.device)
        self.scaler.load_state_dict(facts["scaler"])
        if self.average is not None:
            average = spread(tensors["average"], self.model)
            self.average.weights = {name: w.to(self.device) for name, w in average.items()}
            self.average.updates = facts["average_updates"]
        self.state, self._stream = TrainState(**facts["standing"]), None
        self.saved_step = self.state.step
        self.cut_journal(self.state.journal_bytes)
        outdated = "schedule_steps" not in facts
        self.report_rates(
            self.steps_of(before or self.config)[1] if outdated else facts["schedule_steps"]
        )
        self.compare_best(facts.get("best_by"))
        if outdated:
            self.save()
        return problems

    def cut_journal(self, length: int) -> None:
        """Truncate the training log to a length in bytes."""
        self.world.lead(lambda: self.journal.cut(length), None)

    def report_rates(self, of: int) -> None:
        """Print the next learning rate, if the schedule was made for another number of steps."""
        step, peak = self.state.step, self.peaks[-1][0]
        if step >= self.total_steps or (of == self.schedule_steps and self.total_steps <= of):
            return
        before = peak * self.factor(step, of)
        now = peak * self.factor(step + 1, self.schedule_steps)
        unchanged = now == peak * self.factor(step + 1, of)
        hint = "" if unchanged else f". To keep the schedule's end: train.schedule_steps = {of}"
        self.world.say(
            f"learning rate: {before:.3g} at step {step:,}, {now:.3g} from here on{hint}"
        )

    def compare_best(self, best_by: str | None) -> None:
        """Measure the best weights again if they were chosen by another measure than now.

        Without the file of these weights, the next validation is the best so far.
        """
        validation, state = self.validation, self.state
        if validation is None or state.best is None:
            return
        before = validation.measure_before if best_by is None else best_by
        if before in (None, validation.measure):
            return
        file = self.folder / "best.safetensors"
        message = f"the best weights so far, of step {state.best_step:,}, were chosen by {before}"
        state.validations_since_best = 0
        if not file.is_file():
            state.best = None
            self.world.say(f"{message}, and are missing: the best is counted from here on")
            return
        self.model.eval()
        random = random_state(self.device)
        with swapped(self.model, spread(stored_weights(file), self.model)):
            state.best = self.scores(validation)[validation.metric]
        restore_random_state(random, self.device)
        now = f"{validation.metric} of them is {state.best:.4g}"
        self.world.say(f"{message}: {now}, and patience counts from here on")

    def take_final_weights(self) -> None:
        """Load the final weights: the last, the best, the moving average or a mean."""
        config, final = self.config, None
        self.world.wait()  # for the files that the leading process has written
        if config.average:
            newest = checkpoints_in(self.folder / "checkpoints")[-config.average :]
            final = mean(spread(load_checkpoint(path)[0]["model"], self.model) for path in newest)
        elif config.select == "best":
            final = stored_weights(self.folder / "best.safetensors")
        elif self.average is not None:
            final = self.average.weights
        if final is not None:
            copy_parts(self.model, final)
