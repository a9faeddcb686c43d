"""What was trained, as hashes: the proof that two runs differ in order alone.

In: batches as they are trained. Out: one hash of the batches whatever their order, one of the order, one of the anchors
whatever their order. Two runs whose first and third agree have trained on the same blocks. Ranks that share a run
gather what each has trained before it is saved.
"""

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from dflash_exp.messages import Exchange, TokenBatch

Trained = tuple[tuple[int, int, int], bytes, bytes]
"""(epoch, bucket, index within it) and digests: of the rows, of the rows with their anchors."""


class TrainedHashes:
    """Collects 84 bytes a batch; hashing waits for the end."""

    def __init__(self) -> None:
        self._gathered: list[Trained] = []
        self._own: list[tuple[int, Trained]] = []
        """Since the last gathering, each with its place in the epoch's order."""

    def add(self, batch: TokenBatch) -> None:
        """Of one batch that this rank has trained."""
        plan = batch.plan
        rows = np.ascontiguousarray(plan.sequence_rows, dtype="<i8")
        anchors = np.stack([batch.anchor_row_A.numpy(), batch.anchor_position_A.numpy()]).astype("<i8")
        key = (plan.epoch, plan.bucket, plan.index)
        self._own.append((plan.number, (key, _digest(rows), _digest(rows, anchors))))

    def gather(self, exchange: Exchange) -> None:
        """Put together, in plan order, what all ranks have trained; every rank calls it between the same steps."""
        own = [[number, list(key), rows.hex(), anchors.hex()] for number, (key, rows, anchors) in self._own]
        told = sorted((one for rank in exchange(own) for one in rank), key=lambda one: (one[1][0], one[0]))
        for _, key, rows, anchors in told:
            self._gathered.append(((key[0], key[1], key[2]), bytes.fromhex(rows), bytes.fromhex(anchors)))
        self._own = []

    def state(self) -> dict[str, Tensor]:
        """What was gathered, as tensors: keys int64 [N, 3] and digests uint8 [N, 64], in the order of training."""
        keys = np.array([key for key, _, _ in self._gathered], dtype=np.int64).reshape(-1, 3)
        digests = np.frombuffer(b"".join(b + a for _, b, a in self._gathered), dtype=np.uint8).reshape(-1, 64)
        return {"keys": torch.from_numpy(keys), "digests": torch.from_numpy(digests.copy())}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        pairs = zip(state["keys"].tolist(), state["digests"].numpy(), strict=True)
        self._gathered = [((k[0], k[1], k[2]), d[:32].tobytes(), d[32:].tobytes()) for k, d in pairs]

    def hashes(self) -> dict[str, str]:
        """The three fields of result.json: of what was gathered, and what this rank has trained since."""
        batches = self._gathered + [trained for _, trained in self._own]
        canonical = sorted(batches)
        keys = np.array([key for key, _, _ in canonical], dtype="<i8")
        order = np.array([key[:2] for key, _, _ in batches], dtype="<i8")
        return {
            "trained_batches_sha256": hashlib.sha256(keys.tobytes() + b"".join(b for _, b, _ in canonical)).hexdigest(),
            "trained_order_sha256": hashlib.sha256(order.tobytes()).hexdigest(),
            "anchors_sha256": hashlib.sha256(b"".join(a for _, _, a in canonical)).hexdigest(),
        }


def _digest(*arrays: np.ndarray) -> bytes:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()
