"""Training a recipe into a run folder, and estimating beforehand what that will take."""

import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from addnorm.data import Corpus
from addnorm.data.batching import Loaders
from addnorm.data.encoding import EncodedCorpus, Tokenizers, encode
from addnorm.errors import InputError
from addnorm.models import Model
from addnorm.runs.evaluation import METRICS, Judge
from addnorm.runs.folder import Run, build_model, task_of, write_settings
from addnorm.runs.recipe import Recipe
from addnorm.train.average import weights_of
from addnorm.train.checkpoint import checkpoints_in
from addnorm.train.loss import cross_entropy_sum
from addnorm.train.precision import autocast
from addnorm.train.progress import ProgressBar
from addnorm.train.trainer import Trainer, Validation, resolve_device


class Prepared:
    """What a recipe asks for, read, checked and built: everything up to the first step.

    Raises `InputError` for whatever is wrong with the recipe or its data.
    """

    def __init__(self, recipe: Recipe) -> None:
        autocast(recipe.train.precision, resolve_device(recipe.train.device))
        self.recipe = recipe
        self.corpus: Corpus = recipe.data.load()
        check_task(recipe, self.corpus)
        self.tokenizers = Tokenizers.train(recipe.tokenizer, self.corpus)
        self.labels = self.corpus.labels
        self.encoded: EncodedCorpus = encode(self.corpus, self.tokenizers)
        self.loaders: Loaders = recipe.train.batching.build(self.encoded, seed=recipe.train.seed)
        torch.manual_seed(recipe.train.seed)
        self.model: Model = build_model(recipe, self.tokenizers, self.labels)

    def judge(self) -> Judge | None:
        """The judge of the validation split, where there is one."""
        if self.loaders.valid is None:
            return None
        return Judge(
            self.corpus.task,
            self.corpus.valid,
            self.encoded.valid,
            self.loaders.valid,
            self.tokenizers,
            self.labels,
            self.recipe.eval,
        )

    def validation(self) -> Validation | None:
        """How the trainer judges the model as it goes."""
        judge, settings = self.judge(), self.recipe.eval
        if judge is None:
            return None
        metric = settings.metric or METRICS[self.corpus.task]

        def score(model: nn.Module) -> dict[str, float]:
            return judge.judge(model, settings.valid_examples).scores

        return Validation(score, metric, larger_is_better=metric != "loss")


def train_run(recipe: Recipe, folder: Path, *, resume: bool, console: Console) -> Run:
    """Train a recipe in `folder`, or go on with what is there; return the finished run.

    Raises `InputError` where the folder holds another run and `resume` is not asked for.
    """
    if checkpoints_in(folder / "checkpoints") and not resume:
        raise InputError(
            f"{folder}: holds a run already. Go on with --resume, or choose another --out."
        )
    prepared = Prepared(recipe)
    for split, report in prepared.loaders.reports.items():
        console.print(f"{split}: {report}")
    write_settings(folder, recipe, prepared.tokenizers, prepared.labels)
    run = Run(folder, recipe, prepared.tokenizers, prepared.labels, prepared.model)
    console.print(f"{count(run.model):,} parameters · {folder}")
    with ProgressBar(console) as bar:
        trainer = Trainer(
            run.model,
            prepared.loaders.train,
            recipe.train,
            folder,
            validation=prepared.validation(),
            listener=bar,
        )
        for problem in trainer.resume():
            console.print(f"passed over: {problem}")
        trainer.fit()
    run.save_weights()
    return run


def check_task(recipe: Recipe, corpus: Corpus) -> None:
    """Raise `InputError` where the model cannot learn from the data."""
    wanted = task_of(recipe)
    if corpus.task == wanted:
        return
    models = {
        "language": "model.kind = 'decoder'",
        "translation": "model.kind = 'encoder_decoder'",
        "classification": "model.kind = 'encoder' with model.head.kind = 'classification'",
        "tagging": "model.kind = 'encoder' with model.head.kind = 'tagging'",
    }
    raise InputError(
        f"the data are for {corpus.task}, the model is for {wanted}: use {models[corpus.task]}"
    )


def count(model: nn.Module) -> int:
    """The number of parameters, tied ones once."""
    return sum(weight.numel() for weight in weights_of(model).values())


def estimate(recipe: Recipe, n_timed: int = 5) -> Table:
    """What a recipe builds and costs: sizes exactly, memory and time from a few steps.

    Nothing is written.
    """
    prepared = Prepared(recipe)
    train, model = recipe.train, prepared.model
    batches = prepared.loaders.train
    updates = -(-len(batches) // train.accumulate)
    steps = train.steps or (train.epochs or 0) * updates
    device = resolve_device(train.device)
    model.to(device).train()
    seconds, tokens, n_batches = 0.0, 0, min(n_timed, len(batches))
    stream = batches.batches(0)
    for _ in range(n_batches):
        batch = next(stream).to(device)
        start = time.perf_counter()
        with autocast(train.precision, device):
            cross_entropy_sum(model(**batch.inputs), batch.targets).backward()
        seconds += time.perf_counter() - start
        tokens += batch.n_tokens
    n = count(model)
    table = Table(show_header=False, box=None)
    table.add_row("model", recipe.model.kind)
    table.add_row("parameters", f"{n:,}")
    table.add_row("steps", f"{steps:,} ({updates:,} an epoch)")
    table.add_row("target tokens a step", f"{tokens * train.accumulate // n_batches:,}")
    table.add_row("weights, gradients, optimiser", f"{16 * n / 2**20:,.0f} MiB")
    table.add_row("time", f"about {seconds / n_batches * train.accumulate * steps / 60:,.1f} minutes")
    return table
