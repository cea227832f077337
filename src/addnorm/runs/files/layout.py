"""The files of a run folder, all in one list: around the weights, the weights, and of training.

Whoever writes a run writes what is around the weights by `runs.saving.write_around`, and then the
weights. A file that is not listed here fails the test of this list.
"""

QUANTIZATION, SCALING, VARIABLES = "quantization.json", "scaling.json", "variables.json"
BASE, TEACHER = "base.json", "teacher.json"
"""The digests of the weights that an adapter was trained beside, and that a student learns from."""

AROUND = (
    "config.json",
    "*tokenizer.json",
    "*tokenizer.ids.json",
    "labels.json",
    QUANTIZATION,
    SCALING,
    VARIABLES,
    "chat_template.jinja",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "tokenizer_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "generation_config.json",
)
"""What is around the weights: every copy of a run has all of it."""

MODULES = ("[1-9]*_*/config.json", "[1-9]*_*/*.safetensors")
"""The modules after the model, in folders that `modules.json` names."""

CODEC = ("*tokenizer/*",)
"""The folder that a custom tokenizer writes itself."""

WEIGHTS = ("model.safetensors", "adapter_model.safetensors", "adapter_config.json")

OPENED = (*AROUND, *CODEC, *MODULES, *WEIGHTS, BASE)
"""What is read when a run is opened or used: its digests are kept."""

OF_TRAINING = (
    BASE,
    TEACHER,
    "best.safetensors",
    "checkpoints/*/*",
    "data.json",
    "digests.json",
    "machine.json",
    "metrics.jsonl",
    "tensorboard/*",
    ".lock",
)
"""What stays where a run was trained; each folder has digests of its own."""
