"""AddNorm: Transformers you can read, train and trust. Importing it does not import torch.

`import addnorm as an` provides the most common names; the rest is in the modules.

- Models: `DecoderConfig`, `EncoderConfig`, `EncoderDecoderConfig`, and a configuration of every
  part that they are made of; `presets.gpt2_small()` and others return complete ones.
- Data: `text`, `pairs`, `labelled`, `tagged`, `table`, of files or of lists.
- `train(config, data, tokenizer=..., steps=...)` and `load(folder)` return a `Run`, which
  generates, translates, classifies, tags, embeds, evaluates, exports and saves.
- `check()` compares models of random combinations of parts with their definitions.

A user's mistake raises `InputError`, a `ValueError`, in one sentence with the nearest valid name.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from addnorm import moved
from addnorm.errors import known_keywords

if TYPE_CHECKING:
    from os import PathLike

    import torch

    from addnorm.checking.quick import check as check
    from addnorm.data.batches.augmentation import CropConfig as CropConfig
    from addnorm.data.batches.augmentation import ErasingConfig as ErasingConfig
    from addnorm.data.batches.augmentation import FlipConfig as FlipConfig
    from addnorm.data.batches.buckets import TokensConfig as TokensConfig
    from addnorm.data.batches.denoising import DenoisingConfig as DenoisingConfig
    from addnorm.data.batches.denoising import InfillingConfig as InfillingConfig
    from addnorm.data.batches.denoising import SpanCorruptionConfig as SpanCorruptionConfig
    from addnorm.data.batches.frames import FramesConfig as FramesConfig
    from addnorm.data.batches.frames import SpecAugmentConfig as SpecAugmentConfig
    from addnorm.data.batches.images import ExamplesConfig as ExamplesConfig
    from addnorm.data.batches.mask_units import SpanUnitsConfig as SpanUnitsConfig
    from addnorm.data.batches.mask_units import TokenUnitsConfig as TokenUnitsConfig
    from addnorm.data.batches.mask_units import WordUnitsConfig as WordUnitsConfig
    from addnorm.data.batches.masked import MaskedConfig as MaskedConfig
    from addnorm.data.batches.mixing import CutMixConfig as CutMixConfig
    from addnorm.data.batches.mixing import MixupConfig as MixupConfig
    from addnorm.data.batches.randaugment import RandAugmentConfig as RandAugmentConfig
    from addnorm.data.batches.series_batches import SeriesBatchesConfig as SeriesBatchesConfig
    from addnorm.data.batches.windows import PackedConfig as PackedConfig
    from addnorm.data.batches.windows import WindowsConfig as WindowsConfig
    from addnorm.data.examples import Corpus as Corpus
    from addnorm.data.readers.audio import AudioConfig as AudioConfig
    from addnorm.data.readers.chat import ChatConfig as ChatConfig
    from addnorm.data.readers.constructors import labelled as labelled
    from addnorm.data.readers.constructors import pairs as pairs
    from addnorm.data.readers.constructors import table as table
    from addnorm.data.readers.constructors import tagged as tagged
    from addnorm.data.readers.constructors import text as text
    from addnorm.data.readers.dates import DatesConfig as DatesConfig
    from addnorm.data.readers.hub import DatasetConfig as DatasetConfig
    from addnorm.data.readers.image_files import ImageFilesConfig as ImageFilesConfig
    from addnorm.data.readers.labelled_series import LabelledSeriesConfig as LabelledSeriesConfig
    from addnorm.data.readers.npz_images import ImagesConfig as ImagesConfig
    from addnorm.data.readers.series import SeriesConfig as SeriesConfig
    from addnorm.data.readers.strings import StringsConfig as StringsConfig
    from addnorm.data.tokenizing.tokenizers import BPEConfig as BPEConfig
    from addnorm.data.tokenizing.tokenizers import CharConfig as CharConfig
    from addnorm.data.tokenizing.tokenizers import Tokenizer as Tokenizer
    from addnorm.data.tokenizing.tokenizers import WordConfig as WordConfig
    from addnorm.errors import InputError as InputError
    from addnorm.errors import Interrupted as Interrupted
    from addnorm.errors import NonFiniteError as NonFiniteError
    from addnorm.generate.beam import BeamConfig as BeamConfig
    from addnorm.generate.sampling import GreedyConfig as GreedyConfig
    from addnorm.generate.sampling import SampleConfig as SampleConfig
    from addnorm.models import DecoderConfig as DecoderConfig
    from addnorm.models import EncoderConfig as EncoderConfig
    from addnorm.models import EncoderDecoderConfig as EncoderDecoderConfig
    from addnorm.models import presets as presets
    from addnorm.models.inputs import TokenInputConfig as TokenInputConfig
    from addnorm.models.layers import LayerConfig as LayerConfig
    from addnorm.nn import masks as masks
    from addnorm.nn.attention.core import EagerCoreConfig as EagerCoreConfig
    from addnorm.nn.attention.core import SDPACoreConfig as SDPACoreConfig
    from addnorm.nn.attention.differential import DifferentialCoreConfig as DifferentialCoreConfig
    from addnorm.nn.attention.flex import FlexCoreConfig as FlexCoreConfig
    from addnorm.nn.attention.multihead import AttentionConfig as AttentionConfig
    from addnorm.nn.attention.outputs import GatedOutputConfig as GatedOutputConfig
    from addnorm.nn.attention.patterns import BlocksPatternConfig as BlocksPatternConfig
    from addnorm.nn.attention.patterns import FullPatternConfig as FullPatternConfig
    from addnorm.nn.attention.patterns import WindowPatternConfig as WindowPatternConfig
    from addnorm.nn.attention.scores import AdditiveConfig as AdditiveConfig
    from addnorm.nn.attention.scores import BilinearConfig as BilinearConfig
    from addnorm.nn.attention.scores import DotConfig as DotConfig
    from addnorm.nn.attention.scores import ScaledDotConfig as ScaledDotConfig
    from addnorm.nn.audio import LogMelEmbeddingConfig as LogMelEmbeddingConfig
    from addnorm.nn.convolution import ConvolutionConfig as ConvolutionConfig
    from addnorm.nn.convolution_pooling import ConvolutionPoolingConfig as ConvolutionPoolingConfig
    from addnorm.nn.convolutional_embedding import (
        ConvolutionalEmbeddingConfig as ConvolutionalEmbeddingConfig,
    )
    from addnorm.nn.crf import CRFHeadConfig as CRFHeadConfig
    from addnorm.nn.embed import EmbeddingConfig as EmbeddingConfig
    from addnorm.nn.feedforward import FeedForwardConfig as FeedForwardConfig
    from addnorm.nn.feedforward import GatedFeedForwardConfig as GatedFeedForwardConfig
    from addnorm.nn.forecast import ForecastHeadConfig as ForecastHeadConfig
    from addnorm.nn.heads import ClassificationHeadConfig as ClassificationHeadConfig
    from addnorm.nn.heads import HiddenHeadConfig as HiddenHeadConfig
    from addnorm.nn.heads import PoolerHeadConfig as PoolerHeadConfig
    from addnorm.nn.heads import TaggingHeadConfig as TaggingHeadConfig
    from addnorm.nn.heads import TokenHeadConfig as TokenHeadConfig
    from addnorm.nn.heads import TransformConfig as TransformConfig
    from addnorm.nn.moe import MixtureOfExpertsConfig as MixtureOfExpertsConfig
    from addnorm.nn.norms import BatchNormConfig as BatchNormConfig
    from addnorm.nn.norms import DynamicTanhConfig as DynamicTanhConfig
    from addnorm.nn.norms import LayerNormConfig as LayerNormConfig
    from addnorm.nn.norms import OffsetRMSNormConfig as OffsetRMSNormConfig
    from addnorm.nn.norms import RMSNormConfig as RMSNormConfig
    from addnorm.nn.norms import ScaleNormConfig as ScaleNormConfig
    from addnorm.nn.patches import PatchEmbeddingConfig as PatchEmbeddingConfig
    from addnorm.nn.patches import SeriesEmbeddingConfig as SeriesEmbeddingConfig
    from addnorm.nn.positions import ALiBiConfig as ALiBiConfig
    from addnorm.nn.positions import KERPLEConfig as KERPLEConfig
    from addnorm.nn.positions import LearnedConfig as LearnedConfig
    from addnorm.nn.positions import NoPositionConfig as NoPositionConfig
    from addnorm.nn.positions import RotaryConfig as RotaryConfig
    from addnorm.nn.positions import SinusoidalConfig as SinusoidalConfig
    from addnorm.nn.positions import T5BiasConfig as T5BiasConfig
    from addnorm.nn.positions import TransformerXLConfig as TransformerXLConfig
    from addnorm.nn.positions.scaling import DynamicScaling as DynamicScaling
    from addnorm.nn.positions.scaling import LinearScaling as LinearScaling
    from addnorm.nn.positions.scaling import Llama3Scaling as Llama3Scaling
    from addnorm.nn.positions.scaling import NTKScaling as NTKScaling
    from addnorm.nn.positions.scaling import YaRNScaling as YaRNScaling
    from addnorm.nn.recurrent import RecurrentConfig as RecurrentConfig
    from addnorm.nn.residuals import DeepNormConfig as DeepNormConfig
    from addnorm.nn.residuals import ParallelConfig as ParallelConfig
    from addnorm.nn.residuals import PostNormConfig as PostNormConfig
    from addnorm.nn.residuals import PreNormConfig as PreNormConfig
    from addnorm.nn.residuals import SandwichNormConfig as SandwichNormConfig
    from addnorm.nn.similarity import SimilarityHeadConfig as SimilarityHeadConfig
    from addnorm.runs.in_memory import train as train
    from addnorm.runs.recipe import Recipe as Recipe
    from addnorm.runs.run import Run as Run
    from addnorm.runs.settings import EvalConfig as EvalConfig
    from addnorm.training.constraint import MaxNormConfig as MaxNormConfig
    from addnorm.training.loss import CrossEntropyConfig as CrossEntropyConfig
    from addnorm.training.optim import AdadeltaConfig as AdadeltaConfig
    from addnorm.training.optim import AdamW8bitConfig as AdamW8bitConfig
    from addnorm.training.optim import AdamWConfig as AdamWConfig
    from addnorm.training.optim import MuonConfig as MuonConfig
    from addnorm.training.schedule import ConstantConfig as ConstantConfig
    from addnorm.training.schedule import CosineConfig as CosineConfig
    from addnorm.training.schedule import InverseSquareRootConfig as InverseSquareRootConfig
    from addnorm.training.schedule import LinearConfig as LinearConfig
    from addnorm.training.schedule import WarmupStableDecayConfig as WarmupStableDecayConfig
    from addnorm.training.settings import TrainConfig as TrainConfig

__version__ = "0.1.0.dev0"

_MODULES = {
    "addnorm.checking.quick": "check",
    "addnorm.data.readers.audio": "AudioConfig",
    "addnorm.data.batches.augmentation": "CropConfig ErasingConfig FlipConfig",
    "addnorm.data.batches.buckets": "TokensConfig",
    "addnorm.data.readers.chat": "ChatConfig",
    "addnorm.data.readers.constructors": "labelled pairs table tagged text",
    "addnorm.data.readers.dates": "DatesConfig",
    "addnorm.data.batches.denoising": "DenoisingConfig InfillingConfig SpanCorruptionConfig",
    "addnorm.data.examples": "Corpus",
    "addnorm.data.batches.frames": "FramesConfig SpecAugmentConfig",
    "addnorm.data.readers.hub": "DatasetConfig",
    "addnorm.data.readers.strings": "StringsConfig",
    "addnorm.data.readers.image_files": "ImageFilesConfig",
    "addnorm.data.batches.images": "ExamplesConfig",
    "addnorm.data.readers.npz_images": "ImagesConfig",
    "addnorm.data.batches.mixing": "CutMixConfig MixupConfig",
    "addnorm.data.batches.randaugment": "RandAugmentConfig",
    "addnorm.data.readers.labelled_series": "LabelledSeriesConfig",
    "addnorm.data.readers.series": "SeriesConfig",
    "addnorm.data.batches.series_batches": "SeriesBatchesConfig",
    "addnorm.data.batches.mask_units": "SpanUnitsConfig TokenUnitsConfig WordUnitsConfig",
    "addnorm.data.batches.masked": "MaskedConfig",
    "addnorm.data.tokenizing.tokenizers": "BPEConfig CharConfig Tokenizer WordConfig",
    "addnorm.data.batches.windows": "PackedConfig WindowsConfig",
    "addnorm.errors": "InputError Interrupted NonFiniteError",
    "addnorm.generate.beam": "BeamConfig",
    "addnorm.generate.sampling": "GreedyConfig SampleConfig",
    "addnorm.models": "DecoderConfig EncoderConfig EncoderDecoderConfig",
    "addnorm.models.inputs": "TokenInputConfig",
    "addnorm.models.layers": "LayerConfig",
    "addnorm.nn.attention.core": "EagerCoreConfig SDPACoreConfig",
    "addnorm.nn.attention.differential": "DifferentialCoreConfig",
    "addnorm.nn.attention.flex": "FlexCoreConfig",
    "addnorm.nn.attention.multihead": "AttentionConfig",
    "addnorm.nn.attention.outputs": "GatedOutputConfig",
    "addnorm.nn.attention.patterns": "BlocksPatternConfig FullPatternConfig WindowPatternConfig",
    "addnorm.nn.attention.scores": "AdditiveConfig BilinearConfig DotConfig ScaledDotConfig",
    "addnorm.nn.audio": "LogMelEmbeddingConfig",
    "addnorm.nn.convolution": "ConvolutionConfig",
    "addnorm.nn.convolution_pooling": "ConvolutionPoolingConfig",
    "addnorm.nn.convolutional_embedding": "ConvolutionalEmbeddingConfig",
    "addnorm.nn.embed": "EmbeddingConfig",
    "addnorm.nn.feedforward": "FeedForwardConfig GatedFeedForwardConfig",
    "addnorm.nn.forecast": "ForecastHeadConfig",
    "addnorm.nn.heads": (
        "ClassificationHeadConfig HiddenHeadConfig PoolerHeadConfig "
        "TaggingHeadConfig TokenHeadConfig TransformConfig"
    ),
    "addnorm.nn.moe": "MixtureOfExpertsConfig",
    "addnorm.nn.norms": (
        "BatchNormConfig DynamicTanhConfig LayerNormConfig "
        "OffsetRMSNormConfig RMSNormConfig ScaleNormConfig"
    ),
    "addnorm.nn.patches": "PatchEmbeddingConfig SeriesEmbeddingConfig",
    "addnorm.nn.positions": (
        "ALiBiConfig KERPLEConfig LearnedConfig NoPositionConfig "
        "RotaryConfig SinusoidalConfig T5BiasConfig TransformerXLConfig"
    ),
    "addnorm.nn.positions.scaling": (
        "DynamicScaling LinearScaling Llama3Scaling NTKScaling YaRNScaling"
    ),
    "addnorm.nn.recurrent": "RecurrentConfig",
    "addnorm.nn.residuals": (
        "DeepNormConfig ParallelConfig PostNormConfig PreNormConfig SandwichNormConfig"
    ),
    "addnorm.nn.crf": "CRFHeadConfig",
    "addnorm.nn.similarity": "SimilarityHeadConfig",
    "addnorm.runs.in_memory": "train",
    "addnorm.runs.recipe": "Recipe",
    "addnorm.runs.run": "Run",
    "addnorm.runs.settings": "EvalConfig",
    "addnorm.training.constraint": "MaxNormConfig",
    "addnorm.training.loss": "CrossEntropyConfig",
    "addnorm.training.optim": "AdadeltaConfig AdamW8bitConfig AdamWConfig MuonConfig",
    "addnorm.training.schedule": (
        "ConstantConfig CosineConfig InverseSquareRootConfig LinearConfig WarmupStableDecayConfig"
    ),
    "addnorm.training.settings": "TrainConfig",
}
"""The names exported from each module, which is imported on first use."""

_NAMES = {name: module for module, names in _MODULES.items() for name in names.split()}
_ALIASES = {"masks": "addnorm.nn.masks", "presets": "addnorm.models.presets"}

__all__ = ["__version__", "load", *_ALIASES, *_NAMES]  # pyright: ignore[reportUnsupportedDunderAll]


@known_keywords
def load(
    folder: "str | PathLike[str]",
    *,
    device: "str | torch.device" = "cpu",
    dtype: "str | torch.dtype | None" = None,
    pickled: bool = False,
) -> "Run":
    """Load a trained model from a run folder or a Hugging Face folder, with tokenizer and labels.

    `device` is for example "cuda". `dtype`, such as "bfloat16", is by default that of the stored
    weights. `pickled` allows a `pytorch_model.bin`, read by torch's weights-only loader. Raises
    `InputError`, a `ValueError`, naming what is missing, damaged or not supported.
    """
    from addnorm.runs.run import Run

    return Run.open(folder, device=device, dtype=dtype, pickled=pickled)


def _function(name: str) -> Any:
    return getattr(import_module(_NAMES[name]), name)


def __getattr__(name: str) -> Any:
    """Import names lazily, on first use. Raises `AttributeError` with the nearest name."""
    if name in _ALIASES:
        return import_module(_ALIASES[name])
    if name in _NAMES:
        value = _function(name)
        globals()[name] = value
        return value
    from addnorm.errors import nearest

    hint = "" if name.startswith("_") else nearest(name, __all__)
    raise AttributeError(f"module 'addnorm' has no attribute {name!r}.{hint}", name=name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


moved.install()
