"""The terms of the predicted peak, worked out by hand."""

import dataclasses
from dataclasses import dataclass

import numpy as np

from dflash_exp.drafter import attention
from dflash_exp.plan import memory
from dflash_exp.plan.cost import Work
from dflash_exp.plan.memory import (
    Models,
    UnderWay,
    drafter_activations,
    fullest_part,
    peak_memory,
    target_weights,
)


@dataclass(frozen=True)
class Small:
    hidden_size: int = 4
    intermediate_size: int = 6
    n_heads: int = 2
    n_kv_heads: int = 1
    head_dim: int = 3
    vocab_size: int = 10


MODELS = Models(
    Small(), n_target_layers=3, tied_embeddings=False, target_width=2, compute_width=4, shares_tables=False,
    n_drafter_layers=2, n_taps=2, block_size=2, slots_per_pass=8, matrix_state_width=4,
    keeps_probabilities=True,
)  # fmt: skip
LAYER = 4 * (2 * 6 + 2 * 3 + 3 * 6) + 2 * 4 + 2 * 3  # 144 in matrices, 14 in norms
ONE_WAY = UnderWay(1, None, 1, 0, 1)
NONE = np.zeros(2, dtype=np.int64)
WORK = Work(batches=NONE, padded_tokens=np.array([20, 16]), squares=NONE, slots=np.array([6, 40]), anchor_tokens=NONE,
            tokens=np.array([20, 14]))  # fmt: skip
N_SEQUENCES = np.array([1, 4])


def test_weights_gradients_and_optimizer_worked_out_by_hand() -> None:
    found = peak_memory(MODELS, WORK, N_SEQUENCES, ONE_WAY)
    drafter = 2 * LAYER + 2 * 4 * 4 + 2 * 4
    assert found.target_weights == 2 * (3 * LAYER + 2 * 10 * 4 + 4)
    assert found.drafter_weights == 4 * (drafter + 2 * 10 * 4)  # with fp32 copies of embedding and head
    assert found.gradients == 4 * drafter
    norms = 2 * 14 + 8
    assert found.optimizer == 4 * (drafter - norms) + 8 * norms
    assert found.as_json(MODELS, ONE_WAY)["total"] == sum(vars(found).values())


def test_a_tied_target_of_32_bits_has_one_table_and_shares_it_with_the_drafter() -> None:
    models = dataclasses.replace(MODELS, tied_embeddings=True, target_width=4, shares_tables=True)
    found = peak_memory(models, WORK, N_SEQUENCES, ONE_WAY)
    assert found.target_weights == 4 * (3 * LAYER + 10 * 4 + 4)
    assert found.drafter_weights == found.gradients


def test_a_drafter_that_computes_in_the_targets_bf16_has_its_tables_and_half_the_activations() -> None:
    models = dataclasses.replace(MODELS, compute_width=2, shares_tables=True)
    found = peak_memory(models, WORK, N_SEQUENCES, ONE_WAY)
    assert found.drafter_weights == found.gradients
    untied = dataclasses.replace(models, shares_tables=False)
    assert peak_memory(untied, WORK, N_SEQUENCES, ONE_WAY).drafter_weights == found.gradients + 2 * 2 * 10 * 4
    wide = drafter_activations(MODELS, WORK, N_SEQUENCES)
    cast = 2 * 144 + 2 * 4 * 4  # every matrix once more
    gradients = np.array([20, 16]) * 2 * 2 * 3  # of the context: as wide as before, so twice their half
    logits = np.array([0, 80])  # batch 0 has its peak in attention, batch 1 at the head
    expected = wide / 2 + 2 * (cast + gradients + logits)
    assert drafter_activations(models, WORK, N_SEQUENCES).tolist() == expected.tolist()


def test_features_under_way_are_bounded_in_batches_and_bytes_and_one_always_passes() -> None:
    one = 2 * 2 * 4 * 20
    for line, expected in (
        (UnderWay(4, None, 1, 0, 1), 4 * one),
        (UnderWay(4, 3 * one, 1, 0, 1), 3 * one),
        (UnderWay(4, 1, 1, 0, 1), one),
        (UnderWay(2, 9 * one, 1, 0, 1), 2 * one),
    ):
        assert peak_memory(MODELS, WORK, N_SEQUENCES, line).features == expected


def test_every_target_worker_has_a_forward_of_its_own() -> None:
    forward = 2 * 20 * (3 * 6 + 5 * 4)
    assert peak_memory(MODELS, WORK, N_SEQUENCES, ONE_WAY).target_activations == forward
    assert peak_memory(MODELS, WORK, N_SEQUENCES, UnderWay(4, None, 3, 0, 1)).target_activations == 3 * forward


def test_drafter_activations_worked_out_by_hand() -> None:
    context = 4 * 4 + (5 * 2 + 2) * 3  # floats a token
    per_slot = 2 * (4 * 4 + 4 * 6 + 3 * 3 + 3 * 6) - (2 * 4 + 6 + 3)
    # batch 0: a sequence of 20, 6 slots, all in one pass; the group is all anchors
    seen = 6 * 2 * (20 + 2 * 2)
    attention = 2 * seen - 6 * 18
    first = 20 * context + 6 * per_slot + 2 * seen + max(6 * 18, 6 * 16 + 60, attention)
    # batch 1: 4 sequences of 4, 40 slots of which 8 at once
    seen = 8 * 2 * (4 + 2 * 2)
    second = 16 * context + 8 * per_slot + 2 * seen + max(8 * 18, 8 * 16 + 80, 2 * seen - 8 * 18)
    assert drafter_activations(MODELS, WORK, N_SEQUENCES).tolist() == [4 * first, 4 * second]
    found = peak_memory(MODELS, WORK, N_SEQUENCES, ONE_WAY).drafter_activations
    assert found == 4 * max(first, second)


def test_a_large_vocabulary_has_128_rows_of_logits_at_least() -> None:
    def activations(vocab_size: int) -> float:
        sizes = Small(vocab_size=vocab_size)
        models = dataclasses.replace(MODELS, sizes=sizes)
        models = dataclasses.replace(models, slots_per_pass=4000)
        work = dataclasses.replace(WORK, slots=np.array([1000, 1000]))
        return float(drafter_activations(models, work, N_SEQUENCES)[0])

    assert activations(20_000) - activations(10_000) == 4 * 128 * 10_000
    assert activations(4000) == activations(2000)  # 2^20 logits both


def test_flex_attention_gathers_no_features_and_keeps_keys_and_values_in_place_of_probabilities() -> None:
    models = dataclasses.replace(MODELS, keeps_probabilities=False)
    context = 2 * 4 + (5 * 2 + 2) * 3 + 2 * 2 * 3  # floats a token; the last: keys and values, in both layers
    per_slot = 2 * (4 * 4 + 4 * 6 + 3 * 3 + 3 * 6) - (2 * 4 + 6 + 3)
    first = 20 * context + 6 * per_slot + max(6 * 18, 6 * 16 + 60, 20 * 6 + 6 * (6 + 6 - 18))
    second = 16 * context + 8 * per_slot + max(8 * 18, 8 * 16 + 80, 16 * 6 + 8 * (6 + 6 - 18))
    assert drafter_activations(models, WORK, N_SEQUENCES).tolist() == [4 * first, 4 * second]


def test_more_slots_than_a_pass_take_no_more_memory() -> None:
    work = dataclasses.replace(WORK, slots=np.array([8, 4000]), padded_tokens=np.array([20, 20]))
    alike = drafter_activations(MODELS, work, np.array([2, 2]))
    group_of_all = drafter_activations(MODELS, dataclasses.replace(work, slots=np.array([8, 8])), np.array([2, 2]))
    assert alike[1] <= group_of_all[1] == alike[0]


def test_a_target_on_devices_of_its_own_leaves_the_drafter_s_with_a_copy_of_embedding_and_head() -> None:
    lines = [UnderWay(4, None, 4, n, 1) for n in (0, 2)]
    shared, apart = (peak_memory(MODELS, WORK, N_SEQUENCES, line) for line in lines)
    terms, of_two = vars(shared), apart.as_json(MODELS, lines[1])
    total = sum(terms.values())
    of_one = shared.as_json(MODELS, lines[0])
    assert of_one["total"] == of_one["largest_device"] == total
    beside = terms["target_weights"] + terms["target_activations"] // 2
    own = sum(vars(apart).values()) - terms["target_weights"] - terms["target_activations"]
    assert of_two["largest_device"] == max(own, beside)
    assert of_two["total"] == sum(vars(apart).values()) + terms["target_weights"], "each of the two has the weights"


def test_a_target_that_is_spread_is_there_once_and_its_fullest_device_holds_a_part_and_all_its_forwards() -> None:
    deep = dataclasses.replace(MODELS, n_target_layers=101)
    around = 2 * 10 * 4 + 4  # embedding, head and final norm, beside 50 of the layers
    assert fullest_part(deep, 2) == 2 * max(50 * LAYER + around, 51 * LAYER)
    wide = dataclasses.replace(deep, sizes=dataclasses.replace(Small(), vocab_size=100))
    assert fullest_part(wide, 2) == 2 * (50 * LAYER + 2 * 100 * 4 + 4)
    assert fullest_part(deep, 1) == target_weights(deep)
    one, two = UnderWay(1, None, 2, 2, 2), UnderWay(1, None, 2, 4, 2)
    peak = peak_memory(deep, WORK, N_SEQUENCES, one)
    terms = sum(vars(peak).values())
    assert peak.as_json(deep, one)["total"] == terms
    assert peak.as_json(deep, one)["largest_device"] == fullest_part(deep, 2) + peak.target_activations
    assert peak.as_json(deep, two)["total"] == terms + peak.target_weights, "two copies, each on two devices"
    assert peak.as_json(deep, two)["largest_device"] == fullest_part(deep, 2) + peak.target_activations // 2


def test_the_plan_which_sees_no_torch_counts_with_the_groups_that_attention_makes() -> None:
    assert memory.GROUP_ANCHORS == attention.GROUP_ANCHORS
