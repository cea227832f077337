"""How the model of a run folder was quantised: `quantization.json`."""

from pathlib import Path
from typing import Protocol, runtime_checkable

from pydantic import TypeAdapter

from addnorm.atomic import atomic_write
from addnorm.config import config
from addnorm.errors import InputError
from addnorm.files import read_json
from addnorm.models import Model
from addnorm.quantize import Int8Config, QuantizationConfig
from addnorm.quantize.model import laid_out
from addnorm.runs.files.folder import QUANTIZATION


@config
class Quantization:
    """How the model of a run was quantised."""

    scheme: QuantizationConfig = Int8Config()
    """The number of bits of weights, and the treatment of inputs."""
    kept: tuple[str, ...] = ()
    """The names of the layers that stayed as they were."""
    included: tuple[str, ...] = ()
    """The names of the layers that were quantised because they were named."""
    examples: int = 0
    """How many examples it was calibrated on."""
    source: str = ""
    """The folder of the model before."""

    @property
    def label(self) -> str:
        """The scheme in a few words, such as `int8 dynamic`."""
        scheme = self.scheme
        if isinstance(scheme, Int8Config):
            smooth = "" if scheme.smoothing is None else f" smoothing {scheme.smoothing:g}"
            return f"int8 {scheme.activations.kind}{smooth}"
        dynamic = " dynamic" if scheme.activations.kind == "dynamic" else ""
        return f"int4 {scheme.rounding} by {scheme.group_size}{dynamic}"

    def facts(self) -> dict[str, str]:
        """Return a description in rows."""
        rows = {"weights": self.label, "made of": self.source}
        if self.examples:
            rows["calibrated on"] = f"{self.examples} examples"
        if self.included:
            rows["quantised by name"] = ", ".join(self.included)
        if self.kept:
            rows["kept in float32"] = ", ".join(self.kept)
        return rows


@runtime_checkable
class Quantized(Protocol):
    """A run, with the attributes that this module reads."""

    @property
    def name(self) -> str: ...
    @property
    def quantization(self) -> Quantization | None: ...


_FILE = TypeAdapter(Quantization)


def write_quantization(folder: Path, quantization: Quantization | None) -> None:
    """Write the file; does nothing for a model that is not quantised."""
    if quantization is not None:
        atomic_write(folder / QUANTIZATION, _FILE.dump_json(quantization, indent=1).decode())


def read_quantization(folder: Path) -> Quantization:
    """Read the file of a quantised model. Raises `InputError` if it is damaged."""
    return read_json(folder / QUANTIZATION, _FILE)


def laid_out_as(model: Model, quantization: Quantization, folder: Path) -> Model:
    """Give a plain model the layers of a quantised one, in place, ready to load its weights."""
    try:
        return laid_out(model, quantization.scheme, quantization.kept, quantization.included)
    except InputError as error:
        raise InputError(f"{folder / QUANTIZATION}: does not fit this model: {error}") from error


def check_float(run: Quantized, cannot: str) -> None:
    """Raise `InputError` if the model of a run is quantised; `cannot` names the operation."""
    if run.quantization is not None:
        source = run.quantization.source
        raise InputError(
            f"{run.name}: no model of {run.quantization.label} {cannot}: take the model before "
            f"quantisation ({source})"
        )


def check_finite(model: Model) -> None:
    """Raise `InputError` naming the first weight that holds NaN or infinity."""
    for name, weight in model.named_parameters():
        if not bool(weight.isfinite().all()):
            raise InputError(f"{name} holds NaN or infinity, so the model cannot be measured")
