"""The folder of public data sets: that of `ADDNORM_DATA`, or `shared/data` beside the repository.

The variable is taken out of the environment: a person who has set it, as the README says, runs the
same tests, in which relative paths start where a test says. Other processes of pytest get it by
another name.
"""

import os
from pathlib import Path

if "ADDNORM_DATA" in os.environ:
    os.environ["ADDNORM_TEST_DATA"] = os.environ.pop("ADDNORM_DATA")
DATA = Path(os.environ.get("ADDNORM_TEST_DATA", Path(__file__).parents[2] / "shared/data"))
