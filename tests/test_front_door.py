"""`import addnorm as an`: a frozen list of typed, lazy names; the README's code runs."""

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

import addnorm as an
from addnorm.data import DataConfig
from addnorm.data.batches.buckets import BatchingConfig
from addnorm.data.tokenizing.tokenizers import TokenizerConfig
from addnorm.generate import DecodingConfig
from addnorm.lazy import modules_of
from addnorm.models import ModelConfig
from addnorm.models.inputs import InputConfig
from addnorm.nn.attention import CoreConfig, PatternConfig, ScoreConfig
from addnorm.nn.blocks import MixerConfig
from addnorm.nn.heads import HeadConfig
from addnorm.nn.moe import AnyFeedForwardConfig
from addnorm.nn.norms import NormConfig
from addnorm.nn.positions import PositionConfig, ScalingConfig
from addnorm.nn.residuals import ResidualConfig
from addnorm.parts import members
from addnorm.training.loggers import LoggerConfig
from addnorm.training.loss import LossConfig
from addnorm.training.optim import OptimizerConfig
from addnorm.training.schedule import ScheduleConfig

NAMES = [
    "ALiBiConfig",
    "AdadeltaConfig",
    "AdamW8bitConfig",
    "AdamWConfig",
    "AdditiveConfig",
    "AttentionConfig",
    "AttentionPoolingConfig",
    "AudioConfig",
    "AxialRotaryConfig",
    "BPEConfig",
    "BatchNormConfig",
    "BeamConfig",
    "BilinearConfig",
    "BlocksPatternConfig",
    "CRFHeadConfig",
    "CTCHeadConfig",
    "CanonConfig",
    "CharConfig",
    "ChatConfig",
    "ClampedFeedForwardConfig",
    "ClassificationHeadConfig",
    "ConstantConfig",
    "ContrastiveHeadConfig",
    "ConvolutionConfig",
    "ConvolutionPoolingConfig",
    "ConvolutionalEmbeddingConfig",
    "Corpus",
    "CosineConfig",
    "CropConfig",
    "CrossEntropyConfig",
    "CutMixConfig",
    "DatasetConfig",
    "DatesConfig",
    "DecoderConfig",
    "DeepNormConfig",
    "DenoisingConfig",
    "DifferentialCoreConfig",
    "DifferentialOutputConfig",
    "DisentangledConfig",
    "DotConfig",
    "DualEncoderConfig",
    "DynamicErfConfig",
    "DynamicScaling",
    "DynamicTanhConfig",
    "EagerCoreConfig",
    "EmbeddingConfig",
    "EncoderConfig",
    "EncoderDecoderConfig",
    "ErasingConfig",
    "EvalConfig",
    "ExamplesConfig",
    "FeedForwardConfig",
    "FlexCoreConfig",
    "FlipConfig",
    "ForecastHeadConfig",
    "FramesConfig",
    "FullPatternConfig",
    "GatedConvolutionConfig",
    "GatedDeltaConfig",
    "GatedFeedForwardConfig",
    "GatedOutputConfig",
    "GreedyConfig",
    "HiddenHeadConfig",
    "HyperConnectionsConfig",
    "ImageFilesConfig",
    "ImagesConfig",
    "InfillingConfig",
    "InputError",
    "Interrupted",
    "InverseSquareRootConfig",
    "JoinedPoolingConfig",
    "KERPLEConfig",
    "LabelledSeriesConfig",
    "LatentAttentionConfig",
    "LayerConfig",
    "LayerNormConfig",
    "LayerScaleConfig",
    "LearnedConfig",
    "LearnedT5Config",
    "LinearConfig",
    "LinearScaling",
    "Llama3Scaling",
    "LogMelEmbeddingConfig",
    "LoggedRun",
    "LongRoPEScaling",
    "MLflowConfig",
    "Mamba2Config",
    "ManifoldConnectionsConfig",
    "MaskedConfig",
    "MaxNormConfig",
    "MixtureOfExpertsConfig",
    "MixupConfig",
    "MultiTokenConfig",
    "MuonConfig",
    "NTKScaling",
    "NoFeedForwardConfig",
    "NoMixerConfig",
    "NoPositionConfig",
    "NonFiniteError",
    "OffsetRMSNormConfig",
    "PackedConfig",
    "ParallelConfig",
    "PatchEmbeddingConfig",
    "PoolerHeadConfig",
    "PostNormConfig",
    "PreNormConfig",
    "ProportionalScaling",
    "RMSNormConfig",
    "RandAugmentConfig",
    "Recipe",
    "RecordsConfig",
    "RecurrentConfig",
    "RotaryConfig",
    "RoundedALiBiConfig",
    "Run",
    "SDPACoreConfig",
    "SampleConfig",
    "SandwichNormConfig",
    "SaveEvent",
    "ScaleNormConfig",
    "ScaledDotConfig",
    "SeriesBatchesConfig",
    "SeriesConfig",
    "SeriesEmbeddingConfig",
    "ShardOptions",
    "ShardsConfig",
    "SigmoidRouterConfig",
    "SimilarityHeadConfig",
    "SinkCoreConfig",
    "SinusoidalConfig",
    "SoftmaxRouterConfig",
    "SpanCorruptionConfig",
    "SpanHeadConfig",
    "SpanUnitsConfig",
    "SpecAugmentConfig",
    "StepEvent",
    "StringsConfig",
    "T5BiasConfig",
    "TaggingHeadConfig",
    "TensorBoardConfig",
    "TokenHeadConfig",
    "TokenInputConfig",
    "TokenUnitsConfig",
    "Tokenizer",
    "TokensConfig",
    "TrainConfig",
    "TransformConfig",
    "TransformerXLConfig",
    "ValidationEvent",
    "VectorHeadConfig",
    "WandbConfig",
    "WarmupStableDecayConfig",
    "WaveformEmbeddingConfig",
    "WindowPatternConfig",
    "WindowsConfig",
    "WordConfig",
    "WordUnitsConfig",
    "YaRNScaling",
    "__version__",
    "check",
    "labelled",
    "load",
    "masks",
    "pairs",
    "plan_training",
    "presets",
    "table",
    "tagged",
    "text",
    "tokenize_to_shards",
    "train",
]
"""Every public name. A change here is a change of what users may rely on: CHANGELOG has it too."""

FAMILIES = (
    *(ModelConfig, InputConfig, PositionConfig, ScalingConfig, NormConfig, ResidualConfig),
    *(MixerConfig, ScoreConfig, PatternConfig, CoreConfig, AnyFeedForwardConfig, HeadConfig),
    *(OptimizerConfig, ScheduleConfig, LossConfig, LoggerConfig, TokenizerConfig),
    *(BatchingConfig, DecodingConfig),
)

CHARACTERS = """\
import addnorm as an

text = "To be, or not to be, that is the question.\\n" * 100
config = an.DecoderConfig(
    d_model=64, n_layers=2, position=an.RotaryConfig(), residual=an.PreNormConfig()
)
data = an.text([text])
windows = an.WindowsConfig(seq_len=64)
run = an.train(config, data, tokenizer="char", steps=300, lr=3e-3, batching=windows)
print(run.generate("To be", max_new_tokens=40, temperature=0.5))
for piece in run.stream("or not", max_new_tokens=40, temperature=0.5):
    print(piece, end="")
run.save("runs/play")
"""

GPT2 = """\
import addnorm as an

run = an.load("gpt2")
print(run.generate("To be, or not to be", max_new_tokens=20))
"""


def python(script: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True
    )


def test_the_list_of_names_is_frozen() -> None:
    assert sorted(an.__all__) == NAMES  # pyright: ignore[reportAttributeAccessIssue]
    assert dir(an) == NAMES


def test_every_name_is_there_and_says_what_it_is() -> None:
    for name in NAMES:
        value = getattr(an, name)
        assert name.startswith("__") or (inspect.getdoc(value) or "").strip(), name


def test_every_part_has_its_configuration_here() -> None:
    here = {getattr(an, name) for name in NAMES if name.endswith(("Config", "Scaling"))}
    missing = {part for family in FAMILIES for part in members(family)} - here
    assert {part.__name__ for part in missing} == set()
    # Both families have a ParallelConfig: here it is the placement; files of pairs are `an.pairs`.
    data = {part.__name__ for part in members(DataConfig)}
    made = {"TextConfig", "ParallelConfig", "LinesConfig", "TableConfig", "ConllConfig"}
    assert data - made <= set(NAMES)
    assert get_args(DataConfig)


def test_type_checkers_see_the_public_names() -> None:
    """Every import of the stub, however it is written, is what Python gives by its name."""
    tree = ast.parse(Path(an.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    listed = {
        alias.asname: f"{node.module}.{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {*listed, "__version__"} == {*an.__all__}  # pyright: ignore[reportAttributeAccessIssue]
    assert listed == {name: f"{module}.{name}" for name, module in modules_of("addnorm").items()}
    [version] = [node for node in tree.body if not isinstance(node, ast.ImportFrom)]
    assert ast.unparse(version) == "__version__: str"


@pytest.mark.parametrize("package", ["addnorm.data", "addnorm.tasks", "addnorm.runs.rewriting"])
def test_a_package_names_what_its_users_need(package: str) -> None:
    module = import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is not None
    assert set(module.__all__) <= set(dir(module))
    needed = {
        "addnorm.data": "Corpus Example Encoded Layout PerToken encoded_inputs",
        "addnorm.tasks": "Task Evaluation Outputs QuestionAnswer Span",
        "addnorm.runs.rewriting": "swap_run prune_run quantize_run SwapOptions PruneOptions",
    }
    assert {*needed[package].split()} <= {*module.__all__}


MISTAKES = {
    "an.RMSNormConfgi": "AttributeError: module 'addnorm' has no attribute 'RMSNormConfgi'. "
    "Did you mean 'RMSNormConfig'?",
    "an.DecoderConfig(d_modell=3)": "d_modell is not a field. Did you mean 'd_model'?",
    "an.DecoderConfig(norm='rmsnrom')": "norm = 'rmsnrom' does not exist. Did you mean 'rmsnorm'?",
    "an.DecoderConfig(norm={'kind': 'rmsnorm', 'epss': 1})": "epss is not a field. "
    "Did you mean 'eps'?",
    "an.DecoderConfig(n_heads=3)": "n_heads is not a field. Did you mean 'attention.n_heads'?",
    "an.AttentionConfig(n_heads=0)": "n_heads = 0: must be greater than 0.",
    "an.train(an.DecoderConfig(), an.text(['x']), stpes=10)": "Did you mean 'steps'?",
    "an.train(an.DecoderConfig(), an.text(['x']), tokenizer='chra', steps=1)": "'char'?",
    "an.text(['x'], valid_fracton=0.1)": "Did you mean 'valid_fraction'?",
    "an.load('gtp2')": "gtp2: no such folder. Did you mean 'gpt2'? Nothing is downloaded: for a "
    "model of the Hugging Face Hub, run `hf download gtp2 --local-dir gtp2`",
    "an.presets.gpt2_smal()": "no preset is called 'gpt2_smal'. Did you mean 'gpt2_small'?",
    "an.DecoderConfig(norm=an.RMSNormConfig)": "norm: RMSNormConfig is a class: write "
    "RMSNormConfig() for its defaults",
    "an.load('gpt2').generate('x', temprature=1.0)": "Did you mean 'temperature'?",
    "an.load('gpt2').embed('x', pooling='men')": "Did you mean 'mean'?",
    "an.load('gpt2').export('out', to='ggfu')": "does not exist. Did you mean 'gguf'?",
    "an.load('gpt2', dtype='flaot32')": "Did you mean 'float32'?",
    "an.load('gpt2').classify('x')": "does not classify texts",
    "an.DecoderConfig(layer_pattern=[{'fedforward': 'mlp'}])": "layer_pattern.0.fedforward is "
    "not a field. Did you mean 'feedforward'?",
    "an.load(7)": "must be a path, a string or a Path",
    "an.load('gpt2', dtpe='float32')": "load() has no argument dtpe. Did you mean 'dtype'?",
    "an.check(sampel=3)": "check() has no argument sampel. Did you mean 'sample'?",
    "an.check(sample='x')": "`sample = 'x'`: must be an integer",
    "an.check(jobs=0)": "`jobs = 0`: must be at least 1",
    "an.train(an.DecoderConfig(), 'To be ' * 99, tokenizer='char', steps=1)": "... To be To be ': "
    "give what addnorm.text, pairs,",
    "an.load('gpt2').generate(5)": "texts = 5: give a string or a list of strings",
    "an.load('gpt2').generate([None])": "texts[0] = None is not a string",
    "an.load('gpt2').generate(['a', 2])": "texts[1] = 2 is not a string",
    "an.load('gpt2').generate('a', stop=5)": "`stop = 5`: must be a list",
    "an.load('gpt2').generate('a', max_new_token=4)": "Did you mean 'max_new_tokens'? "
    "Valid: texts, decoding, beams, n_best, length_penalty, early_stopping,",
    "an.load('gpt2').stream(['a', 'b'])": "text = ['a', 'b']`: must be a string",
    "an.load('gpt2').hidden_states(['a'])": "must be a string",
    "an.load('gpt2').generate({'a': 1})": "texts = {'a': 1}: give a string or a list of strings",
    "an.load('gpt2').embed(b'a')": "texts = b'a': give a string or a list of strings",
    "an.load('gpt2').classify(3)": "texts = 3: give a string or a list of strings",
    "an.load('gpt2').tag([3])": "sentences[0] = 3: give a string or a list of strings",
    "an.load('gpt2').evaluate('valid')": "that is a split: give `split = valid`",
    "an.load('gpt2').evaluate(an.text(['To be']), split='tets')": "= 'tets'`: does not exist. "
    "Did you mean 'test'?",
    "an.load('gpt2').evaluate(splt='test')": "Did you mean 'split'? Valid: data, split.",
    "an.load('gpt2').classify('x', k=2)": "classify() has no argument k.",
    "an.load('gpt2').export('gpt2/config.json', to='onnx')": "is a file: onnx needs the name of a "
    "folder",
    "an.load('gpt2').export('gpt2/config.json')": "is a file: hf needs the name of a folder",
    "an.load('gpt2').save('gpt2/config.json')": "gpt2/config.json: is a file: save in a new folder",
    "an.load('gpt2').save(7)": "must be a path, a string or a Path",
}


@pytest.mark.long
def test_mistakes_are_one_sentence_with_the_nearest_name(gpt2: Path) -> None:
    """Without the checks of types that tests have: as a user meets them."""
    script = f"""
import addnorm as an
for code in {list(MISTAKES)!r}:
    try:
        eval(code)
    except (ValueError, AttributeError) as error:
        assert isinstance(error, an.InputError | AttributeError), type(error)
        print(type(error).__name__ + ": " + str(error))
    else:
        print("nothing was wrong")
"""
    done = python(script, gpt2)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(MISTAKES), done.stdout
    for line, said in zip(lines, MISTAKES.values(), strict=True):
        assert said in line


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    """A folder with a small GPT-2 in `gpt2`, as Hugging Face has it."""
    from tests.test_house import write_gpt2

    write_gpt2(tmp_path / "gpt2")
    return tmp_path


@pytest.mark.long
def test_a_few_lines_train_and_use_a_character_model(tmp_path: Path) -> None:
    assert len([line for line in CHARACTERS.splitlines() if line]) <= 13
    done = python(CHARACTERS.replace("steps=300", "steps=5"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "5/5" in done.stderr
    assert len(done.stdout) >= 40
    info = [Path(sys.executable).parent / "addnorm", "generate", "runs/play", "--prompt", "To be"]
    again = subprocess.run(info, cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert len((tmp_path / "runs/play/metrics.jsonl").read_bytes().splitlines()) == 5


@pytest.mark.slow
def test_the_first_example_of_the_readme_recites_its_sentence(tmp_path: Path) -> None:
    """As a reader copies it: about ten seconds on two cores, and what it prints is the sentence."""
    readme = Path(__file__).parents[1] / "README.md"
    assert f"```python\n{CHARACTERS}```" in readme.read_text(encoding="utf-8")
    done = python(CHARACTERS, tmp_path)
    assert done.returncode == 0, done.stderr
    twice = 2 * "To be, or not to be, that is the question.\n"
    after = [twice[len(begun) :][:40] for begun in ("To be", "To be, or not")]
    assert done.stdout == "\n".join(after)


@pytest.mark.long
def test_four_lines_load_gpt2_and_continue_a_text(gpt2: Path) -> None:
    assert len([line for line in GPT2.splitlines() if line]) <= 4
    done = python(GPT2, gpt2)
    assert done.returncode == 0, done.stderr
    prompt = "To be, or not to be"
    run = an.load(gpt2 / "gpt2")
    assert done.stdout == run.generate(prompt, max_new_tokens=20) + "\n"
    assert done.stdout != "\n"
