"""On the path of a job, this makes its optimizer steps slow enough to be interrupted."""

import os
import time

from dflash_exp import between_steps

_step_metrics = between_steps.step_metrics


def _slowly(result):  # type: ignore[no-untyped-def]
    time.sleep(float(os.environ["STEP_S"]))
    return _step_metrics(result)


between_steps.step_metrics = _slowly
