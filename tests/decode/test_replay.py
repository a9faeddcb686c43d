"""Replaying a drafter along the target's greedy paths equals decoding with it, step for step."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from dflash_exp import kept
from dflash_exp.decode import DecodeConfig, Decoded, decode
from dflash_exp.drafter.model import Drafter, DrafterConfig, initialise, resolve_shape
from dflash_exp.drafter.session import DraftSession, drafts_at
from dflash_exp.evaluation import repeats_itself
from dflash_exp.ranks import Alone, share_out
from dflash_exp.replay import Replay, Replayed, ReplayPrompt, greedy_path, replay_metrics, walk
from dflash_exp.target import FrozenTarget

GREEDY = DecodeConfig(max_new_tokens=24, temperature=0.0, seed=0, eos_ids=())
BLOCK_SIZE = 5
VOCAB_SIZE = 8
"""So few that a drafter which knows nothing is right now and then."""


@dataclass
class Scripted:
    """A target whose choice at each position of the text is written down, whatever it has read."""

    script: Sequence[int]
    widths: list[int] = field(default_factory=list)
    n_read: int = 0

    def session(self, *, speculative: bool) -> "Scripted":
        return Scripted(self.script, self.widths)

    def read(self, tokens_N: Tensor, n_logits: int) -> tuple[Tensor, Tensor]:
        self.widths.append(len(tokens_N))
        self.n_read += len(tokens_N)
        chosen = torch.tensor(self.script[self.n_read - n_logits : self.n_read])
        return torch.nn.functional.one_hot(chosen, VOCAB_SIZE), torch.zeros(len(tokens_N), 1)

    def drop(self, n_tokens: int) -> None:
        self.n_read -= n_tokens


@dataclass
class Listed:
    """A drafter whose draft behind each token is written down."""

    drafts: Sequence[Sequence[int]]
    block_size: int = BLOCK_SIZE
    n_committed: int = -1

    def extend(self, features_TF: Tensor) -> None:
        self.n_committed += len(features_TF)

    def propose(self, bonus: int) -> Tensor:
        return torch.tensor(self.drafts[self.n_committed])


TOKEN = st.integers(0, 2)
LONGEST = 12


@settings(deadline=None, max_examples=200)
@given(
    script=st.lists(TOKEN, min_size=LONGEST + BLOCK_SIZE, max_size=LONGEST + BLOCK_SIZE),
    drafts=st.lists(st.lists(TOKEN, min_size=4, max_size=4), min_size=LONGEST, max_size=LONGEST),
    max_new_tokens=st.integers(1, LONGEST),
    eos_ids=st.sampled_from([(), (2,), (1, 2)]),
)
def test_a_walk_takes_the_steps_of_decoding_whatever_is_drafted(
    script: list[int], drafts: list[list[int]], max_new_tokens: int, eos_ids: tuple[int, ...]
) -> None:
    config = replace(GREEDY, max_new_tokens=max_new_tokens, eos_ids=eos_ids)
    decoded = decode(Scripted(script), torch.tensor([0]), Listed(drafts), config, 0, lambda: 0.0)
    assert walk(decoded.tokens, drafts, max_new_tokens) == (decoded.emitted, decoded.accepted)


def test_an_eos_or_the_last_token_cuts_a_step_short() -> None:
    path, right = (7, 1, 2, 3, 4), [[1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6], [4, 5, 6, 7]]
    assert walk(path, right, max_new_tokens=20) == ((4,), (4,)), "the eos is a drafted token"
    assert walk(path, right, max_new_tokens=5) == ((4,), (3,)), "the last token is the target's own"
    wrong_at_2 = [[1, 0, 0, 0], [0, 3, 4, 5], [3, 0, 0, 0], [0, 0, 0, 0]]
    assert walk(path, wrong_at_2, max_new_tokens=20) == ((2, 2), (1, 1))
    assert walk((7,), [], max_new_tokens=20) == ((), ())


def test_what_was_guessed_in_vain_is_not_taken_for_a_part_of_the_text() -> None:
    target = Scripted([1, 2, 7, 1, 2, 6, *[1, 2, 6] * 9])
    config = replace(GREEDY, max_new_tokens=30)
    assert greedy_path(target, torch.tensor([0]), [], config) == tuple(target.script[:30])
    # behind 1 2 the first guess is 7, in vain, and the second is 6 1 2 up to the end
    assert target.widths == [1, 1, 1, 1, 1, 25, 1, 1, 22]


def test_a_guess_is_given_up_where_it_is_wrong() -> None:
    target = Scripted([1, 2, 3, 4, 5, 6, 0])
    config = replace(GREEDY, max_new_tokens=7)
    assert greedy_path(target, torch.tensor([0]), [1, 2, 7, 7, 7, 7, 7], config) == (1, 2, 3, 4, 5, 6, 0)
    assert target.widths == [1, 6, 1, 1, 1, 1]


@dataclass(frozen=True)
class World:
    """A target of few words, a drafter that has learnt nothing, and prompts."""

    target: FrozenTarget
    drafter: Drafter
    prompts: list[Tensor]

    def draft(self, features_TF: Tensor, tokens_L: Tensor, positions_A: Tensor) -> Tensor:
        return drafts_at(self.drafter, features_TF, tokens_L, positions_A, slots_per_pass=4 * BLOCK_SIZE)

    def replay(self, config: DecodeConfig, guess: Sequence[int] = ()) -> Replay:
        prompts = [ReplayPrompt(prompt_P, guess, bucket=i) for i, prompt_P in enumerate(self.prompts)]
        return Replay(prompts, self.target, config, self.draft, repeats_itself, partial(share_out, Alone()))

    def decode(self, config: DecodeConfig) -> list[Decoded]:
        sessions = [DraftSession(self.drafter) for _ in self.prompts]
        pairs = zip(self.prompts, sessions, strict=True)
        return [decode(self.target, prompt_P, session, config, 0, lambda: 0.0) for prompt_P, session in pairs]


def make_world(seed: int, window: dict[str, Any]) -> World:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=4, max_position_embeddings=256, initializer_range=0.6, **window,
    )  # fmt: skip
    target = FrozenTarget(Qwen3ForCausalLM(config).double(), [0, 1])
    shape = resolve_shape(DrafterConfig(2, BLOCK_SIZE, 4, 64, [0, 1]), target.shape, VOCAB_SIZE - 1)
    drafter = Drafter(shape, target.embedding_weight_VH, target.head_weight_VH).double()
    initialise(drafter, seed)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.mul_(20.0 if parameter.ndim == 2 else 1.0)
    return World(target, drafter, [torch.randint(VOCAB_SIZE, (n,)) for n in (1, 2, 3, 7, 12)])


WINDOWS = {"full": {}, "windowed": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}}


@pytest.fixture(scope="module", params=[(0, "full"), (1, "full"), (2, "windowed")], ids=str)
def world(request: pytest.FixtureRequest) -> World:
    seed, window = request.param
    return make_world(seed, WINDOWS[window])


@pytest.mark.parametrize("max_new_tokens", [1, 2, 3, 24])
@pytest.mark.parametrize("eos_ids", [(), (3,), (1, 5)])
def test_every_step_emits_and_accepts_what_decoding_with_the_drafter_does(
    world: World, max_new_tokens: int, eos_ids: tuple[int, ...]
) -> None:
    config = replace(GREEDY, max_new_tokens=max_new_tokens, eos_ids=eos_ids)
    decoded, replayed = world.decode(config), world.replay(config)()
    assert [one.emitted for one in replayed] == [one.emitted for one in decoded]
    assert [one.accepted for one in replayed] == [one.accepted for one in decoded]
    assert [one.bucket for one in replayed] == [0, 1, 2, 3, 4]
    assert [one.loops for one in replayed] == [repeats_itself(one.tokens) for one in decoded]
    if max_new_tokens == 24 and not eos_ids:
        assert {0, 1, 2} <= {n for one in decoded for n in one.accepted}, "the test says little of such a drafter"


def test_a_replay_follows_the_drafter_as_it_changes_on_paths_made_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaying, other = world.replay(GREEDY), make_world(7, {})
    first = replaying()
    own = {name: tensor.clone() for name, tensor in world.drafter.state_dict().items()}
    monkeypatch.setattr(FrozenTarget, "session", None)
    monkeypatch.setattr(FrozenTarget, "features", None)
    assert replaying() == first
    world.drafter.load_state_dict(other.drafter.state_dict())
    changed = replaying()
    monkeypatch.undo()
    decoded = world.decode(GREEDY)
    world.drafter.load_state_dict(own)
    assert changed != first
    assert [one.emitted for one in changed] == [one.emitted for one in decoded]


@pytest.mark.parametrize(("kept_bytes", "n_kept"), [(0, 0), (6_000, 1), (12_032, 2)])
def test_features_that_do_not_fit_are_made_anew_and_change_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, kept_bytes: int, n_kept: int
) -> None:
    expected = world.replay(GREEDY)()
    asked: list[int] = []
    features = FrozenTarget.features

    def noting(target: FrozenTarget, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        asked.append(int(lengths_B))
        return features(target, tokens_BT, lengths_B)

    monkeypatch.setattr(FrozenTarget, "features", noting)
    monkeypatch.setattr(kept, "KEPT_BYTES", kept_bytes)
    replaying = world.replay(GREEDY)
    assert replaying() == expected and len(asked) == 5
    assert replaying() == expected
    assert asked[:5] == [23, 24, 25, 29, 34], "of 32 features x 8 bytes each"
    assert asked[5:] == asked[n_kept:5]


def test_replay_refuses_a_temperature_in_one_line(world: World) -> None:
    with pytest.raises(ValueError, match=r"^replay needs temperature 0, got 0\.7; "):
        world.replay(replace(GREEDY, temperature=0.7))


def test_tau_is_pooled_over_all_prompts_those_that_loop_and_each_bucket() -> None:
    replayed = [
        Replayed(bucket=2, loops=False, emitted=(1, 2, 1), accepted=(0, 1, 0)),
        Replayed(bucket=0, loops=True, emitted=(5,), accepted=(4,)),
        Replayed(bucket=2, loops=False, emitted=(3, 3), accepted=(2, 2)),
        Replayed(bucket=1, loops=False, emitted=(), accepted=()),
    ]
    assert replay_metrics(replayed) == {
        "probe/tau_replayed": 15 / 6,
        "probe/tau_replayed_looping": 5.0,
        "probe/tau_replayed_not_looping": 2.0,
        "probe/bucket/0/tau_replayed": 5.0,
        "probe/bucket/2/tau_replayed": 2.0,
    }
    assert replay_metrics(replayed[3:]) == {} == replay_metrics([])
