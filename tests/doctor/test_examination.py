"""Each cause of a gap is provoked, in a drafter trained with it or a text that has it, and it alone is found.

The target is a table: the token behind a token, so that a drafter can learn it, or a token for every place, so that
none can. As a real target's hidden states do, its features tell the token that it would choose next.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from weakref import ref

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from dflash_exp.decode import DecodeConfig, decode
from dflash_exp.doctor import views as views_module
from dflash_exp.doctor.examination import examine
from dflash_exp.doctor.reading import Conversation, Text
from dflash_exp.doctor.views import Dense, View, drafts_in_view, views
from dflash_exp.doctor.words import doctor_lines
from dflash_exp.drafter.layout import BlockLayout
from dflash_exp.drafter.model import Drafter, initialise
from dflash_exp.drafter.session import DraftSession, drafts_at
from dflash_exp.drafter.shape import DrafterShape
from dflash_exp.models import LoadedTarget
from dflash_exp.ranks import Alone, share_out
from dflash_exp.scoring import score
from dflash_exp.stop import Stopped
from dflash_exp.target import FrozenTarget

V, H, MAX_NEW = 14, 32, 20
SHAPE = DrafterShape(
    hidden_size=H, intermediate_size=48, n_heads=4, n_kv_heads=2, head_dim=8, n_layers=1, block_size=4, vocab_size=V,
    mask_token_id=0, target_layer_ids=(0,), rope_theta=1e4, rms_norm_eps=1e-6, n_target_layers=1,
)  # fmt: skip
TABLE_VH = torch.randn(V, H, generator=torch.Generator().manual_seed(0))
RIGHT = View("right", 0)
ASSISTANT = [2, 3]
"""What a template puts before a response."""


@dataclass
class TableTarget:
    """A target whose choice behind a token is `next_LV[place, token]`; `rounds` where a near tie goes the other way in
    a forward over several tokens."""

    next_LV: Tensor
    rounds: bool = False

    def features(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        return TABLE_VH[self.next_LV[torch.arange(tokens_BT.shape[1]), tokens_BT[0]]]

    def session(self, *, speculative: bool) -> TableSession:
        return TableSession(self)


class TableSession:
    def __init__(self, target: TableTarget) -> None:
        self._target, self._n_read = target, 0

    def read(self, tokens_N: Tensor, n_logits: int) -> tuple[Tensor, Tensor]:
        places_N = self._n_read + torch.arange(len(tokens_N))
        told_N = chosen_N = self._target.next_LV[places_N, tokens_N]
        if self._target.rounds and 1 < len(tokens_N) < 6:  # of the prompt, many are read at once either way
            chosen_N = torch.where(places_N % 5 == 4, (chosen_N + 1) % V, chosen_N)
        self._n_read += len(tokens_N)
        return 8.0 * F.one_hot(chosen_N, V).float()[-n_logits:], TABLE_VH[told_N]

    def drop(self, n_tokens: int) -> None:
        self._n_read -= n_tokens


def cycle() -> TableTarget:
    """Token t is followed by t + 1, of 4 .. V - 1; what a response begins with depends on its place."""
    after_V = torch.arange(V) + 1
    after_V[-1], after_V[:4] = 4, 4
    next_LV = after_V.repeat(80, 1)
    next_LV[:, ASSISTANT] = (4 + 7 * torch.arange(80) % (V - 4))[:, None]
    return TableTarget(next_LV)


def noise(seed: int = 1) -> TableTarget:
    """Nothing follows from anything."""
    return TableTarget(torch.randint(4, V, (80, V), generator=torch.Generator().manual_seed(seed)))


def trained(target: TableTarget | None, view: View = RIGHT, moved: int = 0, n_steps: int = 150) -> Drafter:
    """On texts of the target, of a new one of noise each where there is none; blocks see `view`, labels are `moved` in
    the text."""
    drafter = Drafter(SHAPE, TABLE_VH, TABLE_VH)
    initialise(drafter, 0)
    optimizer = torch.optim.Adam(drafter.parameters(), 1e-2)
    generator = torch.Generator().manual_seed(2)
    position_A = torch.arange(3, 31)
    label_AS = position_A[:, None] + torch.arange(1, 4) + moved
    for step in range(n_steps):
        own = target or noise(int(torch.randint(2**31, (1,), generator=generator)))
        asked = torch.randint(4, V, (1 + step % 4,), generator=generator)
        tokens_L = written(own, torch.cat([asked, torch.tensor(ASSISTANT)]), 36)
        blocks = BlockLayout(tokens_L[position_A], position_A, Dense(position_A, view))
        logits_ASV = drafter(drafter.context(own.features(tokens_L[None], position_A)[None]), blocks) @ TABLE_VH.T
        F.cross_entropy(logits_ASV.flatten(0, 1), tokens_L[label_AS].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return drafter.requires_grad_(False)


def written(target: TableTarget, prompt_P: Tensor, n_tokens: int) -> Tensor:
    """The prompt and what the target makes of it."""
    tokens = prompt_P.tolist()
    while len(tokens) < n_tokens:
        tokens.append(int(target.next_LV[len(tokens) - 1, tokens[-1]]))
    return torch.tensor(tokens)


def conversations(target: TableTarget, before: list[int] = ASSISTANT) -> list[Conversation]:
    prompts = [torch.tensor([7] * i + [5 + i, *before]) for i in range(4)]
    return [Conversation(written(target, prompt_P, 30), torch.arange(30) >= len(prompt_P)) for prompt_P in prompts]


def spelt(tokens: Sequence[int]) -> str:
    return " ".join("<think>" if token == 4 else f"t{token}" for token in tokens)


def examined(target: TableTarget, drafter: Drafter, data: list[Conversation], lead: int = 0) -> dict[str, Any]:
    """Four texts of the target; `lead` tokens stand before their prompts."""
    decoding = DecodeConfig(MAX_NEW, 0.0, 0, ())
    texts = []
    for i in range(4):
        prompt_P = torch.tensor([4 + (i + 3 * j) % 9 for j in range(lead)] + [6] * i + [9 + i, *ASSISTANT])
        plain = decode(target, prompt_P, None, decoding, 0, lambda: 0.0)
        texts.append(Text(prompt_P, plain, decode(target, prompt_P, DraftSession(drafter), decoding, 0, lambda: 0.0)))
    return examine(cast(FrozenTarget, target), drafter, texts, data, MAX_NEW, spelt, as_json)


def as_json(n_items: int, do: Callable[[int], Any]) -> list[Any]:
    """All of it on this rank, handed round as among several."""
    return json.loads(json.dumps([do(i) for i in range(n_items)]))


def causes(told: dict[str, Any]) -> list[str]:
    return [one["cause"] for one in told["findings"]]


@pytest.fixture(scope="module")
def healthy() -> Drafter:
    return trained(cycle())


def test_a_healthy_drafter_has_no_finding_and_one_figure_from_data_to_decoding(healthy: Drafter) -> None:
    told = examined(cycle(), healthy, conversations(cycle()))
    assert causes(told) == [] and told["unexplained"] is None
    assert told["tau_path"] > 3 and told["tau_data"] > 3
    assert told["tau_replayed"] == told["tau_decoded"] > 3 and told["n_other_steps"] == told["n_unequal"] == 0
    assert told["surplus_nats"] == pytest.approx(0, abs=0.05)
    assert doctor_lines(told)[1] == "no fault shows between training and decoding"


@pytest.mark.parametrize("view", views(SHAPE.block_size), ids=["one ahead", "block ahead", "across"])
def test_a_drafter_that_was_trained_to_see_more_is_found_out(view: View) -> None:
    told = examined(noise(), trained(None, view, n_steps=400), conversations(noise()))
    (found,) = told["findings"]
    assert found["cause"] == "mask leak" and told["tau_decoded"] < 1.4 < told["tau_in_view"][view.name]
    assert any("WARNING mask leak: shown the" in line for line in doctor_lines(told))


@pytest.mark.parametrize(("moved", "way"), [(-1, "1 earlier"), (1, "1 later")])
def test_a_drafter_whose_labels_were_moved_is_off_by_one(moved: int, way: str) -> None:
    told = examined(cycle(), trained(cycle(), moved=moved), conversations(cycle()))
    (found,) = told["findings"]
    assert found["cause"] == "off-by-one slot" and way in found["seen"] and told["tau_decoded"] < 1.3


def test_data_that_somebody_else_wrote_is_found(healthy: Drafter) -> None:
    told = examined(cycle(), healthy, conversations(noise()))
    assert causes(told) == ["data not from the target"] and told["surplus_nats"] > 1
    assert "dflash-exp regenerate" in told["findings"][0]["mend"]


def test_prompts_under_another_template_than_the_data_are_found(healthy: Drafter) -> None:
    told = examined(cycle(), healthy, conversations(cycle(), [3, 2]))
    (found,) = told["findings"]
    assert found["cause"] == "template mismatch" and "t2 t3" in found["seen"] and "t3 t2" in found["seen"]


def test_conversations_that_are_cut_before_their_response_say_nothing_of_the_template(healthy: Drafter) -> None:
    whole = conversations(cycle())
    cut = [Conversation(one.tokens_L[:2], one.supervised_L[:2]) for one in whole]
    told = examined(cycle(), healthy, [*whole[:2], *cut])
    assert told["seam_in_data"] == 1.0 and causes(told) == []


def test_responses_that_all_begin_with_one_word_are_no_template(healthy: Drafter) -> None:
    alike = cycle()
    alike.next_LV[:, ASSISTANT[-1]] = 9
    told = examined(alike, healthy, conversations(cycle()))
    assert told["seams"] == ("t2 t3", "t2 t3") and told["seam_in_data"] == told["seam_in_texts"] == 1.0


def test_templates_that_differ_before_the_same_thought_are_no_thinking_mismatch(healthy: Drafter) -> None:
    thinks = cycle()
    thinks.next_LV[:, ASSISTANT] = 4
    found = examined(thinks, healthy, conversations(thinks, [3, 2]))["findings"][0]
    assert found["cause"] == "template mismatch" and found["seen"].count("<think>") == 2


def test_a_response_that_opens_with_a_thought_where_the_data_has_none_is_a_thinking_mismatch(healthy: Drafter) -> None:
    thinks = cycle()
    thinks.next_LV[:, ASSISTANT[-1]] = 4
    found = examined(thinks, healthy, conversations(cycle()))["findings"][0]
    assert found["cause"] == "thinking mismatch" and "<think>" in found["seen"]


def test_a_target_that_rounds_otherwise_over_a_block_is_a_matter_of_precision(healthy: Drafter) -> None:
    told = examined(replace(cycle(), rounds=True), healthy, conversations(cycle()))
    assert causes(told) == ["precision"] and told["n_unequal"] == 4
    assert "4 of 4 texts are not those of plain decoding" in told["findings"][0]["seen"]


def test_a_drafter_that_computes_in_bfloat16_is_replayed_in_float32_beside(healthy: Drafter) -> None:
    tables = (TABLE_VH.bfloat16(), TABLE_VH.bfloat16().float())
    narrow, wide = (Drafter(SHAPE, table_VH, table_VH) for table_VH in tables)
    for drafter in (narrow, wide):
        drafter.load_state_dict(healthy.state_dict())
    told = examined(cycle(), narrow, conversations(cycle()))
    assert told["tau_float32"] == examined(cycle(), wide, [])["tau_replayed"] and told["n_unequal"] == 0
    assert examined(cycle(), wide, [])["tau_float32"] is None


def test_what_float32_gives_beyond_bfloat16_is_a_matter_of_precision(healthy: Drafter) -> None:
    """The head's rows differ in the last bit of bfloat16, so logits lie closer than its numbers do."""
    narrow = Drafter(SHAPE, TABLE_VH.bfloat16(), (1 + 2**-7 * TABLE_VH.sign()).bfloat16())
    narrow.load_state_dict(healthy.state_dict())
    told = examined(cycle(), narrow, [])
    (found,) = told["findings"]
    assert found["cause"] == "precision" and told["tau_float32"] > told["tau_replayed"] == told["tau_decoded"]
    assert f"in float32 the drafter's replay gives {told['tau_float32']:.2f}" in found["seen"]


def test_without_data_what_rests_on_it_is_not_known_and_nothing_is_found(healthy: Drafter) -> None:
    told = examined(cycle(), healthy, [])
    assert told["tau_data"] is None and told["surplus_nats"] is None and causes(told) == []
    assert doctor_lines(told)[0].startswith("τ teacher-forced on its data -, on these texts 3.")


def test_a_drafter_that_is_much_worse_on_these_texts_for_no_known_cause_is_said_to_be_so(healthy: Drafter) -> None:
    """The target turns random where no conversation of the data goes, behind the place 30."""
    both = TableTarget(torch.cat([cycle().next_LV[:30], noise().next_LV]))
    told = examined(both, healthy, conversations(cycle()), lead=30)
    assert causes(told) == [] and "no known cause shows" in told["unexplained"]
    assert "WARNING" in doctor_lines(told)[1]


def test_a_stop_ends_the_examination_between_two_texts(healthy: Drafter) -> None:
    prompts = [torch.tensor([9 + i, *ASSISTANT]) for i in range(4)]
    answers = [False] * (len(prompts) + 1)  # each is decoded, one is examined
    asked = lambda: not answers or answers.pop()  # noqa: E731
    target = cast(LoadedTarget, SimpleNamespace(model=cycle(), words=spelt))
    decoding, alone = DecodeConfig(MAX_NEW, 0.0, 0, ()), partial(share_out, Alone())
    with pytest.raises(Stopped):
        score(target, healthy, prompts, [], decoding, "latest", Console(quiet=True), asked, alone)
    assert not answers


@dataclass
class Forgotten(TableTarget):
    """Whose features are nobody's any more when the next are asked for."""

    made: list[ref[Tensor]] = field(default_factory=list)

    def features(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        assert all(one() is None for one in self.made)
        features_LF = super().features(tokens_BT, lengths_B)
        self.made.append(ref(features_LF))
        return features_LF


def test_one_text_s_features_are_held_at_a_time(healthy: Drafter) -> None:
    target = Forgotten(cycle().next_LV)
    examined(target, healthy, conversations(cycle()))
    assert len(target.made) == 4 + 4


@pytest.mark.parametrize("scores", [views_module.SCORES, 1], ids=["all blocks at once", "one block at a time"])
def test_the_right_view_drafts_what_the_drafter_drafts(
    healthy: Drafter, scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views_module, "SCORES", scores)
    parts: list[int] = []
    attended = views_module._attended
    noted = lambda q, *seen: parts.append(len(q)) or attended(q, *seen)  # noqa: E731
    monkeypatch.setattr(views_module, "_attended", noted)
    tokens_L = written(cycle(), torch.tensor([9]), 26)
    positions_A = torch.arange(3, 20)
    dense_AS = drafts_in_view(healthy, TABLE_VH[tokens_L], tokens_L, positions_A, RIGHT)
    assert torch.equal(dense_AS, drafts_at(healthy, TABLE_VH[tokens_L], tokens_L, positions_A, 512))
    assert parts == ([17] if scores > 1 else [1] * 17)


def test_few_places_are_not_judged_and_that_is_said(healthy: Drafter, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = trained(cycle(), moved=1)
    told = examined(cycle(), moved, conversations(cycle()))
    monkeypatch.setattr("dflash_exp.doctor.findings.LEAST_PLACES", told["n_places"])
    assert causes(examined(cycle(), moved, conversations(cycle()))) == ["off-by-one slot"]
    monkeypatch.setattr("dflash_exp.doctor.findings.LEAST_PLACES", told["n_places"] + 1)
    assert causes(examined(cycle(), moved, conversations(cycle()))) == []
    few = examined(cycle(), healthy, []) | {"n_places": 63}
    assert doctor_lines(few)[1].startswith("63 drafts are too few to judge a mask leak")
