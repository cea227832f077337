"""Modules that have moved: former import paths work for one release, with a warning."""

import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED: Mapping[str, str] = {
    "addnorm.bench.fresh": "addnorm.bench.implementation",
    "addnorm.bench.generation_benchmarks": "addnorm.bench.benchmarks",
    "addnorm.bench.peers": "addnorm.bench",
    "addnorm.bench.peers.ctranslate2": "addnorm.bench.engines",
    "addnorm.bench.peers.hf": "addnorm.bench.libraries",
    "addnorm.bench.peers.joeynmt": "addnorm.bench.libraries",
    "addnorm.bench.peers.litgpt": "addnorm.bench.libraries",
    "addnorm.bench.peers.llama_cpp": "addnorm.bench.engines",
    "addnorm.bench.peers.plain": "addnorm.bench.plain_torch",
    "addnorm.bench.peers.torch_nn": "addnorm.bench.plain_torch",
    "addnorm.bench.peers.x_transformers": "addnorm.bench.libraries",
    "addnorm.bench.rounds": "addnorm.bench.benchmark addnorm.bench.run",
    "addnorm.bench.sizes": "addnorm.bench.training",
    "addnorm.bench.start_up": "addnorm.bench.benchmarks",
    "addnorm.bench.targets": "addnorm.bench.benchmark",
    "addnorm.bench.training_benchmarks": "addnorm.bench.benchmarks",
    "addnorm.check": "addnorm.checking",
    "addnorm.check.batches": "addnorm.checking.case",
    "addnorm.check.definition.outputs": "addnorm.checking.definition.attention",
    "addnorm.check.definition.patterns": "addnorm.checking.definition.texts",
    "addnorm.cli.arguments": "addnorm.cli.fields addnorm.cli.main addnorm.cli.messages",
    "addnorm.cli.generated": "addnorm.cli.generate",
    "addnorm.cli.imports": "addnorm.cli.where",
    "addnorm.convert.core.activations": "addnorm.convert.core.keys",
    "addnorm.convert.core.known": "addnorm.convert.core.family",
    "addnorm.convert.core.rotary": "addnorm.convert.core.attention_keys",
    "addnorm.convert.core.windows": "addnorm.convert.core.attention_keys",
    "addnorm.convert.exporters.ctranslate2_check": "addnorm.convert.exporters.ctranslate2",
    "addnorm.convert.exporters.decoder_parts": (
        "addnorm.convert.exporters.gguf_architectures addnorm.convert.exporters.claims"
    ),
    "addnorm.convert.exporters.gguf_blocks": "addnorm.convert.exporters.gguf",
    "addnorm.convert.families.bart": "addnorm.convert.families.fairseq",
    "addnorm.convert.families.distilbert": "addnorm.convert.families.bert",
    "addnorm.convert.families.glm": "addnorm.convert.families.llama_relatives",
    "addnorm.convert.families.granite": "addnorm.convert.families.llama_relatives",
    "addnorm.convert.families.marian": "addnorm.convert.families.fairseq",
    "addnorm.convert.families.mistral": "addnorm.convert.families.llama",
    "addnorm.convert.families.qwen": "addnorm.convert.families.llama",
    "addnorm.convert.families.roberta": "addnorm.convert.families.bert",
    "addnorm.convert.families.stablelm": "addnorm.convert.families.llama_relatives",
    "addnorm.convert.families.table": "addnorm.convert.families",
    "addnorm.convert.families.whisper": "addnorm.convert.families.fairseq",
    "addnorm.convert.weights.header": "addnorm.convert.weights.mapped",
    "addnorm.data.answers": "addnorm.data.ids.answers",
    "addnorm.data.as_read": "addnorm.data.ids.framing",
    "addnorm.data.audio": "addnorm.data.readers.audio",
    "addnorm.data.augmentation": "addnorm.data.batches.augmentation",
    "addnorm.data.batch": "addnorm.data.batches.batch addnorm.data.ids.layout",
    "addnorm.data.batches.shuffle": "addnorm.data.batches.batch",
    "addnorm.data.batching": "addnorm.data.batches.buckets",
    "addnorm.data.chat": "addnorm.data.readers.chat",
    "addnorm.data.class_names": "addnorm.data.readers.saved_dataset",
    "addnorm.data.classes": "addnorm.data.readers.rows",
    "addnorm.data.codecs": "addnorm.data.tokenizing.codecs",
    "addnorm.data.compact": "addnorm.data.ids.compact addnorm.data.tokenizing.pieces",
    "addnorm.data.conllu": "addnorm.data.readers.conll",
    "addnorm.data.constructors": "addnorm.data.readers.constructors",
    "addnorm.data.dates": "addnorm.data.readers.dates",
    "addnorm.data.denoising": "addnorm.data.batches.denoising",
    "addnorm.data.encoding": "addnorm.data.ids.encoding addnorm.data.tokenizing.sides",
    "addnorm.data.field_types": "addnorm.data.example",
    "addnorm.data.forecast_windows": "addnorm.data.ids.forecast_windows",
    "addnorm.data.frames": "addnorm.data.batches.frames",
    "addnorm.data.hub": "addnorm.data.readers.hub",
    "addnorm.data.image_files": "addnorm.data.readers.images",
    "addnorm.data.images": "addnorm.data.batches.images addnorm.data.readers.images",
    "addnorm.data.incomplete": "addnorm.data.readers.rows",
    "addnorm.data.jinja": "addnorm.data.conversation",
    "addnorm.data.labelled_files": "addnorm.data.readers.labelled_files",
    "addnorm.data.labelled_series": "addnorm.data.readers.labelled_series",
    "addnorm.data.lower_case": "addnorm.data.tokenizing.word_splitting addnorm.data.readers.rows",
    "addnorm.data.mask_units": "addnorm.data.batches.masked",
    "addnorm.data.masked": "addnorm.data.batches.masked",
    "addnorm.data.media": "addnorm.data.example",
    "addnorm.data.mixing": "addnorm.data.batches.augmentation",
    "addnorm.data.numbers": "addnorm.data.readers.rows",
    "addnorm.data.order": "addnorm.data.batches.batch",
    "addnorm.data.pieces": "addnorm.data.tokenizing.pieces",
    "addnorm.data.randaugment": "addnorm.data.batches.randaugment",
    "addnorm.data.readers.cells": "addnorm.data.readers.rows",
    "addnorm.data.readers.plain_text": "addnorm.data.readers.text_files",
    "addnorm.data.rows": "addnorm.data.readers.rows",
    "addnorm.data.saved_dataset": "addnorm.data.readers.saved_dataset",
    "addnorm.data.segments": "addnorm.data.batches.segments",
    "addnorm.data.sentence_pairs": "addnorm.data.ids.framing",
    "addnorm.data.series": "addnorm.data.readers.series",
    "addnorm.data.series_batches": "addnorm.data.batches.series_batches",
    "addnorm.data.series_table": "addnorm.data.readers.series",
    "addnorm.data.shards.order": "addnorm.data.shards.mixture",
    "addnorm.data.signals": "addnorm.data.batches.batch",
    "addnorm.data.sources": "addnorm.data.readers.text_files addnorm.data.readers.conll",
    "addnorm.data.special_tokens": "addnorm.data.tokenizing.sides",
    "addnorm.data.stored": "addnorm.data.ids.cache",
    "addnorm.data.strings": "addnorm.data.readers.strings",
    "addnorm.data.tables": "addnorm.data.readers.tables",
    "addnorm.data.text_files": "addnorm.data.readers.text_files",
    "addnorm.data.tokenizers": "addnorm.data.tokenizing.tokenizers",
    "addnorm.data.tokenizing.lowered_examples": "addnorm.data.readers.rows",
    "addnorm.data.tokenizing.prompts": "addnorm.data.tokenizing.sides",
    "addnorm.data.windows": "addnorm.data.batches.windows",
    "addnorm.data.word_splitting": "addnorm.data.tokenizing.word_splitting",
    "addnorm.demo.words": "addnorm.demo",
    "addnorm.generate.branches": "addnorm.generate.buffers",
    "addnorm.generate.row_products": "addnorm.generate.graphs",
    "addnorm.generate.text_decoding": (
        "addnorm.data.tokenizing.text_decoding addnorm.generate.generated"
    ),
    "addnorm.generate.transcription": "addnorm.generate.next_token",
    "addnorm.inspect.confusion": "addnorm.inspect.predictions",
    "addnorm.inspect.forecasts": "addnorm.inspect.predictions",
    "addnorm.inspect.maps": "addnorm.inspect.overview",
    "addnorm.lab.ablation": "addnorm.lab.studies.ablation",
    "addnorm.lab.barely_learnt": "addnorm.lab.statistics",
    "addnorm.lab.boards": "addnorm.lab.records",
    "addnorm.lab.cell": "addnorm.lab.studies.cell",
    "addnorm.lab.checks": "addnorm.lab.studies.variants",
    "addnorm.lab.claim_report": "addnorm.lab.claims.report",
    "addnorm.lab.claim_words": "addnorm.lab.claims.report",
    "addnorm.lab.costs": "addnorm.lab.claims.laboratory",
    "addnorm.lab.grid": "addnorm.lab.studies.variants",
    "addnorm.lab.halving": "addnorm.lab.studies.halving",
    "addnorm.lab.laboratory": "addnorm.lab.claims.laboratory",
    "addnorm.lab.matching": "addnorm.lab.studies.matching",
    "addnorm.lab.pictures": "addnorm.lab.studies.report",
    "addnorm.lab.report": "addnorm.lab.studies.report",
    "addnorm.lab.summary": "addnorm.lab.studies.summary",
    "addnorm.lab.tables": "addnorm.lab.studies.ablation",
    "addnorm.lab.training": "addnorm.lab.studies.cell",
    "addnorm.lab.words": "addnorm.lab.studies.report",
    "addnorm.memory": "addnorm.machine",
    "addnorm.models.early_exit": "addnorm.generate.early_exit",
    "addnorm.nn.attention.blocked": "addnorm.nn.attention.kernels",
    "addnorm.nn.attention.cores": "addnorm.nn.attention.multihead",
    "addnorm.nn.attention.heads": "addnorm.nn.types",
    "addnorm.nn.attention.paged_attention": "addnorm.nn.attention.cached_attention",
    "addnorm.nn.calibration": "addnorm.tuning.calibration",
    "addnorm.nn.convolution_pooling": "addnorm.nn.pooling",
    "addnorm.nn.grouped": "addnorm.nn.moe",
    "addnorm.nn.kept": "addnorm.tuning.calibration",
    "addnorm.nn.low_rank": "addnorm.nn.linear",
    "addnorm.nn.mixers": "addnorm.nn.blocks",
    "addnorm.nn.pages": "addnorm.tuning.pages",
    "addnorm.nn.positions.none": "addnorm.nn.positions.position",
    "addnorm.nn.rms_norm": "addnorm.nn.norms",
    "addnorm.processor": "addnorm.machine",
    "addnorm.prune.choice": "addnorm.prune.selection",
    "addnorm.prune.importance": "addnorm.prune.selection",
    "addnorm.prune.smaller": "addnorm.prune.pruned_model",
    "addnorm.quantize.activations": "addnorm.quantize.layers",
    "addnorm.quantize.places": "addnorm.quantize.quantizable_layers",
    "addnorm.quantize.rounding": "addnorm.quantize.int4",
    "addnorm.runs.adapted": "addnorm.runs.files.adapter_files",
    "addnorm.runs.bi_encoder": "addnorm.runs.inference.sentence_vectors",
    "addnorm.runs.build": "addnorm.runs.files.weights",
    "addnorm.runs.changes": "addnorm.runs.recipes.overrides",
    "addnorm.runs.chat": "addnorm.runs.inference.chat addnorm.runs.inference.text",
    "addnorm.runs.chat_template": "addnorm.runs.recipes.chat_template",
    "addnorm.runs.checked_trainer": "addnorm.runs.train.train_run",
    "addnorm.runs.consistency": "addnorm.runs.recipes.consistency",
    "addnorm.runs.data_digests": "addnorm.runs.files.digests",
    "addnorm.runs.decoding": "addnorm.runs.inference.decoding",
    "addnorm.runs.devices": "addnorm.runs.trained_model",
    "addnorm.runs.differences": "addnorm.runs.recipes.recipe",
    "addnorm.runs.digests": "addnorm.runs.files.digests",
    "addnorm.runs.estimate": "addnorm.runs.train.cost",
    "addnorm.runs.fill": "addnorm.runs.inference.masked_tokens",
    "addnorm.runs.folder": "addnorm.runs.files.folder",
    "addnorm.runs.forecast_scores": "addnorm.tasks.forecasting",
    "addnorm.runs.forecasting": "addnorm.runs.inference.forecast",
    "addnorm.runs.generation_config": "addnorm.runs.files.generation_config",
    "addnorm.runs.imports": "addnorm.runs.recipes.custom_parts",
    "addnorm.runs.in_memory": "addnorm.runs.train.train_function",
    "addnorm.runs.layout": "addnorm.runs.files.folder",
    "addnorm.runs.lock": "addnorm.runs.files.lock",
    "addnorm.runs.machine": "addnorm.runs.files.training_machine",
    "addnorm.runs.measured_with": "addnorm.runs.evaluation",
    "addnorm.runs.media": "addnorm.runs.inference.media",
    "addnorm.runs.metrics": "addnorm.metrics.scores",
    "addnorm.runs.mistakes": "addnorm.runs.recipes.error_messages",
    "addnorm.runs.peak_memory": "addnorm.runs.train.cost",
    "addnorm.runs.pooled": "addnorm.runs.inference.sentence_vectors",
    "addnorm.runs.predictions": (
        "addnorm.tasks.classification addnorm.tasks.regression addnorm.tasks.tagging"
    ),
    "addnorm.runs.pruning": "addnorm.runs.rewriting.prune addnorm.runs.options",
    "addnorm.runs.quantization": "addnorm.runs.rewriting.quantize addnorm.runs.options",
    "addnorm.runs.quantized": "addnorm.runs.files.quantization_file",
    "addnorm.runs.reading": "addnorm.runs.files.folder",
    "addnorm.runs.recipe": "addnorm.runs.recipes.recipe",
    "addnorm.runs.recovery": "addnorm.runs.rewriting.recovery",
    "addnorm.runs.restoring": "addnorm.runs.inference.denoiser",
    "addnorm.runs.resuming": "addnorm.runs.files.resuming",
    "addnorm.runs.rouge": "addnorm.metrics.scores",
    "addnorm.runs.scaling": "addnorm.runs.files.folder",
    "addnorm.runs.schema": "addnorm.runs.recipes.schema",
    "addnorm.runs.sentence_vectors": "addnorm.runs.inference.sentence_vectors",
    "addnorm.runs.sequences": "addnorm.runs.train.teacher",
    "addnorm.runs.series_files": "addnorm.runs.inference.series",
    "addnorm.runs.settings": "addnorm.tasks.eval_config",
    "addnorm.runs.short_run": "addnorm.runs.train.warnings",
    "addnorm.runs.shortening": "addnorm.runs.inference.shortening",
    "addnorm.runs.speech_prompt": "addnorm.runs.files.speech_prompt",
    "addnorm.runs.start": "addnorm.runs.recipes.starting_model",
    "addnorm.runs.swap": "addnorm.runs.rewriting.swap addnorm.runs.options",
    "addnorm.runs.task": "addnorm.tasks.registry",
    "addnorm.runs.teacher": "addnorm.runs.train.teacher",
    "addnorm.runs.train.loggers": "addnorm.runs.train.train_run",
    "addnorm.runs.training": "addnorm.runs.train.train_run",
    "addnorm.runs.types": "addnorm.runs.inference.results addnorm.runs.options addnorm.errors",
    "addnorm.runs.use": "addnorm.runs.inference.text addnorm.runs.inference.decoding",
    "addnorm.runs.variables": "addnorm.runs.files.folder",
    "addnorm.runs.warnings": "addnorm.runs.train.warnings",
    "addnorm.runs.writing_speed": "addnorm.runs.rewriting.measuring",
    "addnorm.runs.written": "addnorm.tasks.translation",
    "addnorm.serve.orphans": "addnorm.serve.worker",
    "addnorm.tasks.encoding": "addnorm.runs.encoded_data",
    "addnorm.tasks.of_model": "addnorm.tasks.registry",
    "addnorm.train": "addnorm.training",
    "addnorm.train.allocations": "addnorm.runs.train.cost",
    "addnorm.train.average": "addnorm.training.average addnorm.models.weights",
    "addnorm.train.distill": "addnorm.training.distillation",
    "addnorm.train.grouped_loss": "addnorm.training.loss",
    "addnorm.train.intermediate": "addnorm.training.distillation",
    "addnorm.train.load": "addnorm.training.expert_load",
    "addnorm.train.logit_adjustment": "addnorm.training.loss",
    "addnorm.train.loss": "addnorm.training.loss addnorm.training.expert_load",
    "addnorm.train.patience": "addnorm.training.interruptions",
    "addnorm.train.stopping": "addnorm.training.interruptions",
    "addnorm.training.background": "addnorm.training.checkpoint",
    "addnorm.training.constraint": "addnorm.training.optim",
    "addnorm.training.journal": "addnorm.training.loggers",
    "addnorm.training.long_work": "addnorm.long_work",
    "addnorm.training.parallel.chunks": "addnorm.training.parallel.context",
    "addnorm.training.parallel.joining": "addnorm.training.parallel.launch",
    "addnorm.web.heads": "addnorm.web.protocol",
    "addnorm.web.keys": "addnorm.web.access",
    "addnorm.word_or_table": "addnorm.config",
}
"""The new path of each module, or of a package with everything in it; of a split module, both."""


def new_paths(name: str) -> list[str]:
    """Return a module's new paths, also if its package has moved; empty if neither has."""
    parent = name
    while parent.count("."):
        if parent in MOVED:
            return [path + name.removeprefix(parent) for path in MOVED[parent].split()]
        parent = parent.rpartition(".")[0]
    return []


def spec_of(name: str) -> ModuleSpec | None:
    """Return the import spec for a module's former path; None if it has not moved."""
    paths = new_paths(name)
    loader: Any = _Alias(paths)  # `importlib.abc` takes too long to import for its base classes
    return ModuleSpec(name, loader, is_package=True) if paths else None


class _Alias:
    """Fills the module at a former path from the modules at the new paths."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        moved = [import_module(path) for path in self._paths]
        warnings.warn(f"{name} is now {' and '.join(self._paths)}", FutureWarning, stacklevel=2)
        function = getattr(sys.modules["addnorm"], name.removeprefix("addnorm."), None)
        if len(moved) == 1 and function is None:
            sys.modules[name] = moved[0]
        else:
            module.__class__ = _FormerModule
            vars(module).update(_modules=moved, __wrapped__=function)
            module.__doc__ = (function or moved[0]).__doc__


class _FormerModule(ModuleType):
    """A split module, or a former package that shares its name with a function: `addnorm.train`."""

    _modules: Sequence[ModuleType]
    __wrapped__: Any

    def __call__(self, *args: Any, **values: Any) -> Any:
        return self.__wrapped__(*args, **values)

    def __getattr__(self, name: str) -> Any:
        for module in self._modules:
            if hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name)
