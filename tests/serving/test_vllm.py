"""vLLM serves what was trained here: the target's own texts, and the drafts that our own decoding accepts.

What vLLM counts of a text's last step reaches beyond the text's end, so ours is decoded further and cut likewise.

vLLM 0.32 norms the context's keys of all draft layers in one call, one weight a layer; its kernel for CPUs takes the
first layer's weight for all of them. Such a drafter is a little worse than the one that was trained. Ours with the same
mistake accepts exactly what vLLM does, and where all layers have one weight there is no mistake to make.
"""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dflash_exp.cli import main
from dflash_exp.decode import DecodeConfig, Decoded, decode
from dflash_exp.drafter.model import ComputeDtype, Context, Drafter
from dflash_exp.drafter.session import DraftSession
from dflash_exp.models import EMBEDDED, EMBEDDED_FILES, LoadedTarget, load
from dflash_exp.published import load_weights, read_shape
from dflash_exp.scoring import EMBEDDED_DATA, store_prompts
from dflash_exp.served.counts import Counts, total
from dflash_exp.served.engines import Asking, Completion
from dflash_exp.served.measuring import served
from dflash_exp.target import TargetConfig, TargetDtype
from tests.serving.vllm_server import serving

pytestmark = [pytest.mark.serving, pytest.mark.slow]
N_PROMPTS, NEW_TOKENS = 24, 128
STANDARD_ERRORS = 3


@dataclass(frozen=True)
class Ours:
    """What is decoded in this process."""

    target: LoadedTarget
    drafter: Drafter
    prompts: list[Tensor]

    def plain(self) -> list[tuple[int, ...]]:
        config = DecodeConfig(NEW_TOKENS, 0.0, 0, self.target.eos_ids)
        return [decode(self.target.model, prompt, None, config, 0, time.perf_counter).tokens for prompt in self.prompts]

    def counts(self, n_tokens: list[int]) -> list[Counts]:
        """The verify steps of so many tokens of each text."""
        size = self.drafter.shape.block_size
        config = DecodeConfig(NEW_TOKENS + size, 0.0, 0, eos_ids=())
        return [
            _counts(
                decode(self.target.model, prompt, DraftSession(self.drafter), config, 0, time.perf_counter), n, size
            )
            for prompt, n in zip(self.prompts, n_tokens, strict=True)
        ]


def _counts(text: Decoded, n_tokens: int, block_size: int) -> Counts:
    emitted, n_steps = 1, 0
    while emitted < n_tokens:
        emitted += text.emitted[n_steps]
        n_steps += 1
    accepted = text.accepted[:n_steps]
    return Counts(n_steps, tuple(sum(n >= k for n in accepted) for k in range(1, block_size)))


def ours(folder: Path) -> Ours:
    shape = read_shape(folder)
    target = load(TargetConfig(EMBEDDED, TargetDtype.FLOAT32), [torch.device("cpu")], lambda *_: shape)
    drafter = target.new_drafter(ComputeDtype.auto)
    load_weights(drafter, folder)
    return Ours(target, drafter, store_prompts(EMBEDDED_DATA, N_PROMPTS))


def with_vllm_s_mistake(own: Ours) -> Ours:
    """The context's keys of every layer normed by the first layer's weight; the block's own by each layer's."""
    drafter = own.target.new_drafter(ComputeDtype.auto)
    drafter.load_state_dict(own.drafter.state_dict())
    first = own.drafter.get_parameter("layers.0.self_attn.k_norm.weight").detach()
    context, weights = drafter.context, [drafter.get_parameter(f"layers.{i}.self_attn.k_norm.weight") for i in (0, 1)]

    def mistaken(*inputs: Tensor) -> Context:
        own_weights = [weight.detach().clone() for weight in weights]
        with torch.no_grad():
            for weight in weights:
                weight.copy_(first)
            made = context(*inputs)
            for weight, before in zip(weights, own_weights, strict=True):
                weight.copy_(before)
        return made

    drafter.context = mistaken  # type: ignore[method-assign]
    return replace(own, drafter=drafter)


def asked(address: str, own: Ours) -> list[Completion]:
    prompts = [prompt.tolist() for prompt in own.prompts]
    return served(address, None, prompts, Asking(NEW_TOKENS, 0.0, 0), lambda _: None).completions


def test_vllm_gives_the_target_s_own_texts_and_accepts_what_our_decoding_accepts(
    server_python: Path, drafter: Path, tmp_path: Path
) -> None:
    own = ours(drafter)
    with serving(server_python, EMBEDDED_FILES / "target", drafter, tmp_path / "log") as address:
        answers = asked(address, own)
        asked_again = ["--server", address, "--target", EMBEDDED, "--limit", str(N_PROMPTS)]
        assert main(["evaluate", str(drafter), *asked_again, "--max-new-tokens", str(NEW_TOKENS)]) == 0
    assert [answer.tokens for answer in answers] == own.plain()
    n_tokens, theirs = [answer.n_tokens for answer in answers], [answer.counts for answer in answers]
    same = own.counts(n_tokens)
    one, two = total(theirs), total(same)
    print(f"\nvLLM {one}, ours {two}, tokens {sum(n_tokens)}")
    for n_theirs, n_ours in zip(one.accepted_at, two.accepted_at, strict=True):
        share = (n_theirs + n_ours) / (one.steps + two.steps)
        error = (share * (1 - share) * (1 / one.steps + 1 / two.steps)) ** 0.5
        assert abs(n_theirs / one.steps - n_ours / two.steps) <= STANDARD_ERRORS * error
    assert theirs in (same, with_vllm_s_mistake(own).counts(n_tokens)), "step for step, with or without the mistake"
    found = json.loads((drafter / "server-evaluation.json").read_text())
    assert found["tau_pooled"] == pytest.approx((sum(n_tokens) - N_PROMPTS) / one.steps)
    assert found["accepted_at"] == pytest.approx([n / one.steps for n in one.accepted_at])
    assert found["other_traffic"]["tokens"] == 0 and found["engine"] == "vllm"


def test_where_all_layers_norm_keys_alike_vllm_accepts_what_ours_does_step_for_step(
    server_python: Path, drafter_of_one_key_norm: Path, tmp_path: Path
) -> None:
    own = ours(drafter_of_one_key_norm)
    with serving(server_python, EMBEDDED_FILES / "target", drafter_of_one_key_norm, tmp_path / "log") as address:
        answers = asked(address, own)
    assert [answer.tokens for answer in answers] == own.plain()
    theirs = [answer.counts for answer in answers]
    assert theirs == own.counts([answer.n_tokens for answer in answers])
    print(f"\n{total(theirs)}, tokens {sum(answer.n_tokens for answer in answers)}")
