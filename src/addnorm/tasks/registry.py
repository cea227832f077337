"""The tasks of AddNorm by name."""

from collections.abc import Mapping

from addnorm.data.batches.batch import Loader
from addnorm.data.batches.buckets import Denoising as DenoisingLoader
from addnorm.data.batches.buckets import Masked
from addnorm.data.examples import Task as TaskName
from addnorm.tasks.classification import Classification
from addnorm.tasks.forecasting import Forecasting
from addnorm.tasks.hidden import Denoising, MaskedLanguage
from addnorm.tasks.language import Language
from addnorm.tasks.multi_label import MultiLabel
from addnorm.tasks.regression import Regression
from addnorm.tasks.tagging import Tagging
from addnorm.tasks.task import Task
from addnorm.tasks.translation import SequenceToSequence

TASKS: Mapping[TaskName, Task] = {
    task.name: task
    for task in (
        Language(),
        SequenceToSequence(),
        MaskedLanguage(),
        Denoising(),
        Classification(),
        MultiLabel(),
        Regression(),
        Tagging(),
        Forecasting(),
    )
}
"""The tasks of AddNorm by name."""


def task_of_batches(name: TaskName, loader: Loader[object]) -> Task:
    """The task of batches from data of a task: what hides parts of plain texts is for another."""
    if isinstance(loader, Masked):
        return TASKS["masked_language"]
    return TASKS["denoising" if isinstance(loader, DenoisingLoader) else name]
