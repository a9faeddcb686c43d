"""What was trained, as hashes: the proof that two runs differ in order alone.

In: batches as they are trained. Out: one hash of the batches whatever their order, one of the order, one of the anchors
whatever their order. Two runs whose first and third agree have trained on the same blocks.
"""

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from dflash_exp.messages import TokenBatch


class TrainedHashes:
    """Collects 80 bytes a batch; hashing waits for the end."""

    def __init__(self) -> None:
        self._batches: list[tuple[tuple[int, int, int], bytes, bytes]] = []

    def add(self, batch: TokenBatch) -> None:
        plan = batch.plan
        rows = np.ascontiguousarray(plan.sequence_rows, dtype="<i8")
        anchors = np.stack([batch.anchor_row_A.numpy(), batch.anchor_position_A.numpy()]).astype("<i8")
        key = (plan.epoch, plan.bucket, plan.index)
        self._batches.append((key, _digest(rows), _digest(rows, anchors)))

    def state(self) -> dict[str, Tensor]:
        """What was collected, as tensors: keys int64 [N, 3] and digests uint8 [N, 64], in the order of training."""
        keys = np.array([key for key, _, _ in self._batches], dtype=np.int64).reshape(-1, 3)
        digests = np.frombuffer(b"".join(b + a for _, b, a in self._batches), dtype=np.uint8).reshape(-1, 64)
        return {"keys": torch.from_numpy(keys), "digests": torch.from_numpy(digests.copy())}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        pairs = zip(state["keys"].tolist(), state["digests"].numpy(), strict=True)
        self._batches = [((k[0], k[1], k[2]), d[:32].tobytes(), d[32:].tobytes()) for k, d in pairs]

    def hashes(self) -> dict[str, str]:
        """The three fields of result.json."""
        canonical = sorted(self._batches)
        keys = np.array([key for key, _, _ in canonical], dtype="<i8")
        order = np.array([key[:2] for key, _, _ in self._batches], dtype="<i8")
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
