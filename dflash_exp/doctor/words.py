"""What the examination says, in lines.

In: `doctor` of evaluation.json. Out: the way from training's figure to decoding's, then each finding.
"""

from collections.abc import Mapping
from typing import Any

from dflash_exp.doctor.findings import LEAST_PLACES

STATIONS = (
    ("tau_data", "on its data"),
    ("tau_path", "on these texts"),
    ("tau_replayed", "replayed"),
    ("tau_decoded", "decoded"),
)


def doctor_lines(doctor: Mapping[str, Any] | None) -> list[str]:
    """The stations in one line, then one of each finding and of what could not be judged, or that nothing shows; none
    where there was no examination."""
    if doctor is None:
        return []
    told = [(name, doctor[key]) for key, name in STATIONS]
    stations = ", ".join(f"{name} {'-' if tau is None else f'{tau:.2f}'}" for name, tau in told)
    found = [f"WARNING {one['cause']}: {one['seen']}; {one['mend']}" for one in doctor["findings"]]
    if doctor["unexplained"] is not None:
        found.append(f"WARNING {doctor['unexplained']}")
    if doctor.get("n_places", LEAST_PLACES) < LEAST_PLACES:  # not in what was written before it was counted
        found.append(
            f"{doctor['n_places']} drafts are too few to judge a mask leak and an off-by-one slot: {LEAST_PLACES} are "
            "needed, with more prompts or more new tokens"
        )
    return [f"τ teacher-forced {stations}", *(found or ["no fault shows between training and decoding"])]
