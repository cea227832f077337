# The names of this package: `__init__.py` reads this list to import each on first use.

from addnorm.tasks.eval_config import EvalConfig as EvalConfig
from addnorm.tasks.registry import TASKS as TASKS
from addnorm.tasks.registry import task_named as task_named
from addnorm.tasks.span_extraction import QuestionAnswer as QuestionAnswer
from addnorm.tasks.span_extraction import Span as Span
from addnorm.tasks.task import Evaluation as Evaluation
from addnorm.tasks.task import EvaluationSplit as EvaluationSplit
from addnorm.tasks.task import Outputs as Outputs
from addnorm.tasks.task import Task as Task
