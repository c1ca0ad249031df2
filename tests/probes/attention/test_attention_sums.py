"""Attention statistics against closed forms and against the full softmax in fp64."""

import math

import pytest
import torch

from attention_models import entropy_oracle
from gradient_flow.probes.attention.functions import AttentionInputs
from gradient_flow.probes.attention.row import AttentionRow
from gradient_flow.probes.attention.sums import MOST_LOGITS, attention_sums, evenly_spaced, some_logits, sums_of
from gradient_flow.probes.attention.together import MOST_HELD, Together
from gradient_flow.probes.attention.token_spread import some_tokens, sums_of_tokens, token_sums


def row_of(inputs, **options):
    sums = attention_sums(inputs, **options)
    return AttentionRow.from_flat(sums.flat().tolist(), len(sums.peaks))


def of_logits(logits):
    return row_of(AttentionInputs(logits=logits))


def test_uniform_attention_has_entropy_one_and_no_sparsity():
    row = of_logits(torch.full((2, 3, 5, 7), 0.3))
    assert row.entropy == pytest.approx([1.0] * 3)
    assert row.sparsity == (0.0,) * 3
    assert row.nats == pytest.approx([math.log(7)] * 3)
    assert row.freezing == pytest.approx([0.0] * 3, abs=1e-3)
    assert row.head_diversity == 0.0  # equal heads


def test_one_hot_attention_has_entropy_zero_and_all_other_weights_near_zero():
    logits = torch.zeros(2, 3, 5, 8)
    logits[..., 2] = 200.0
    row = of_logits(logits)
    assert row.entropy == pytest.approx([0.0] * 3, abs=1e-6)
    assert row.sparsity == pytest.approx([7 / 8] * 3)
    assert row.peaks == (200.0,) * 3


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_two_keys_at_a_known_temperature(temperature):
    """Weights of logits (a, 0) are p = sigmoid(a) and 1 - p; the entropy is that of a coin."""
    logits = torch.tensor([2.0, 0.0]).div(temperature).expand(1, 1, 4, 2)
    p = 1 / (1 + math.exp(-2.0 / temperature))
    coin = -p * math.log(p) - (1 - p) * math.log(1 - p)
    row = of_logits(logits)
    assert row.nats[0] == pytest.approx(coin, rel=1e-5)
    assert row.entropy[0] == pytest.approx(coin / math.log(2), rel=1e-5)
    assert row.peaks[0] == pytest.approx(2.0 / temperature)
    assert row.freezing[0] == pytest.approx((1.0 / temperature) / math.sqrt(2 * math.log(2)), rel=1e-5)


def test_a_weight_counts_as_near_zero_below_a_hundredth_of_the_uniform_weight():
    n = 10
    weights = torch.full((n,), 1.0 / n)
    weights[0], weights[1] = 0.009 / n, 0.011 / n
    weights[2:] *= (1 - weights[:2].sum()) / weights[2:].sum()
    assert of_logits(weights.log().expand(1, 1, 3, n)).sparsity[0] == pytest.approx(1 / n)


def masks(samples, heads, queries, keys):
    padding = torch.ones(samples, 1, 1, keys, dtype=torch.bool)
    padding[0, ..., keys // 2 :] = False
    distance = (torch.arange(keys) - torch.arange(queries)[:, None]).abs()
    per_head = torch.rand(samples, heads, queries, keys) < 0.6
    per_head[..., :2] = True
    lower = torch.ones(queries, keys, dtype=torch.bool).tril()
    return {
        "none": None,
        "bool, two dimensions": distance < 3,
        "bool, per head": per_head,
        "padding": padding,
        "float, infinite": torch.zeros(queries, keys).masked_fill(distance > 3, -math.inf),
        "float, smallest": torch.zeros(queries, keys).masked_fill(~lower, torch.finfo(torch.float32).min),
        "float, -1e4": torch.zeros(samples, 1, 1, keys).masked_fill(~padding, -1e4),
        "float, a bias": -0.3 * distance.float(),
        "float, a bias per head": -torch.rand(heads, 1, 1) * distance.float(),
    }


@pytest.mark.parametrize("name", masks(2, 4, 6, 9))
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_every_mask_and_grouping_agrees_with_the_full_softmax(name, key_heads):
    torch.manual_seed(0)
    query, key = torch.randn(2, 4, 6, 8), torch.randn(2, key_heads, 9, 8)
    mask = masks(2, 4, 6, 9)[name]
    scores = query.double() @ key.double().repeat_interleave(4 // key_heads, 1).mT * 0.7
    allowed = torch.ones(2, 4, 6, 9, dtype=torch.bool)
    if mask is not None:
        allowed = (mask if mask.dtype is torch.bool else mask > -5e3).expand(2, 4, 6, 9)
        scores = scores if mask.dtype is torch.bool else scores + mask.double()
    weights = scores.masked_fill(~allowed, -math.inf).softmax(-1)
    row = row_of(AttentionInputs(query=query, key=key, mask=mask, scale=0.7))
    assert row.entropy == pytest.approx(entropy_oracle(weights, allowed), rel=1e-5)
    # The same attention, written out.
    masked = scores.float().masked_fill(~allowed, torch.finfo(torch.float32).min)
    assert of_logits(masked).entropy == pytest.approx(row.entropy, rel=1e-5)
    assert of_logits(masked).sparsity == pytest.approx(row.sparsity, rel=1e-5)


def test_causal_rows_count_their_own_keys_and_the_first_row_is_left_out():
    """Uniform causal attention is uniform over what each row may see, and row 0 has no choice."""
    zeros = torch.zeros(1, 2, 6, 4)
    sums = attention_sums(AttentionInputs(query=zeros, key=zeros, is_causal=True))
    row = AttentionRow.from_flat(sums.flat().tolist(), 2)
    assert row.entropy == pytest.approx([1.0, 1.0])
    assert [head[0] for head in row.heads] == [5.0, 5.0]
    assert [head[6] for head in row.heads] == [1.0, 1.0]


def test_fully_masked_rows_are_left_out():
    logits = torch.randn(1, 1, 4, 5)
    logits[0, 0, 1] = -math.inf
    assert of_logits(logits).heads[0][0] == 3.0
    mask = torch.ones(4, 5, dtype=torch.bool)
    mask[1] = False
    zeros = torch.zeros(1, 1, 4, 3), torch.zeros(1, 1, 5, 3)
    row = row_of(AttentionInputs(query=zeros[0], key=zeros[1], mask=mask))
    assert row.heads[0][0] == 3.0
    assert row.entropy[0] == pytest.approx(1.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_rows_are_counted_and_enter_no_statistic(value):
    query = torch.zeros(1, 2, 4, 3)
    query[0, 1, 2, 0] = value
    key = torch.ones(1, 2, 5, 3)
    row = row_of(AttentionInputs(query=query, key=key))
    assert row.nonfinite == pytest.approx(1 / 8)
    assert row.entropy == pytest.approx([1.0, 1.0])
    assert all(math.isfinite(peak) for peak in row.peaks)
    assert row.head_diversity == 0.0


def test_half_precision_is_measured_in_full_precision():
    torch.manual_seed(0)
    query, key = torch.randn(2, 2, 6, 8).half() * 100, torch.randn(2, 2, 6, 8).half() * 100
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = row_of(AttentionInputs(query=query, key=key))
    full = row_of(AttentionInputs(query=query.float(), key=key.float()))
    assert half.entropy == full.entropy
    assert half.peaks == full.peaks
    assert half.nonfinite == 0.0


def test_queries_and_samples_are_thinned_out_evenly_and_leave_random_state_alone():
    torch.manual_seed(0)
    query, key = torch.randn(20, 2, 300, 8), torch.randn(20, 2, 300, 8)
    state = torch.get_rng_state()
    sums = attention_sums(AttentionInputs(query=query, key=key), max_queries=10)
    assert torch.equal(state, torch.get_rng_state())
    rows = sums.heads[0, 0].item()
    assert rows == 8 * 10
    long = torch.randn(4, 8, 2000, 4)
    assert attention_sums(AttentionInputs(query=long, key=long)).heads[0, 0].item() * 8 * 2000 <= MOST_LOGITS
    full = (query.double() @ key.double().mT / math.sqrt(8)).softmax(-1)
    sampled = AttentionRow.from_flat(sums.flat().tolist(), 2).entropy
    assert sampled == pytest.approx(entropy_oracle(full), abs=0.01)


@pytest.mark.parametrize(("count", "most"), [(10, 10), (10, 3), (5, 8), (1, 1), (512, 64)])
def test_evenly_spaced_indices_are_distinct_and_reach_both_ends(count, most):
    indices = evenly_spaced(count, most, torch.device("cpu")).tolist()
    assert len(set(indices)) == len(indices) == min(count, most)
    assert indices[0] == 0
    assert indices[-1] == count - 1


def test_merging_calls_adds_their_rows():
    torch.manual_seed(0)
    first, second = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5) * 4
    together = of_logits(torch.cat([first, second]))
    a, b = (attention_sums(AttentionInputs(logits=logits)) for logits in (first, second))
    merged = AttentionRow.from_flat(a.merge(b).flat().tolist(), 3)
    assert merged.entropy == pytest.approx(together.entropy)
    assert merged.peaks == pytest.approx(together.peaks)
    rows = of_logits(first).merge(of_logits(second))
    assert rows.entropy == pytest.approx(merged.entropy)
    assert rows.head_diversity == pytest.approx(merged.head_diversity)


@pytest.mark.parametrize("temperature", [1e-3, 0.1, 1.0, 4.0, 16.0])
@pytest.mark.parametrize("heads", [2, 8])
def test_head_diversity_is_zero_for_equal_and_near_one_for_independent_heads_at_any_temperature(temperature, heads):
    torch.manual_seed(0)
    logits = torch.randn(2, heads, 16, 64) * temperature
    assert of_logits(logits).head_diversity > 0.7
    same = logits[:, :1].expand_as(logits)
    assert of_logits(same).head_diversity == pytest.approx(0.0, abs=1e-6)


def test_heads_on_different_positions_have_divergence_one():
    logits = torch.zeros(1, 4, 3, 8)
    for head in range(4):
        logits[:, head, :, head] = 300.0
    row = of_logits(logits)
    assert row.head_divergence == pytest.approx(1.0)
    assert row.head_diversity == pytest.approx(1.0)


def test_two_heads_divergence_in_closed_form():
    """Heads (a, 1-a) and (1-a, a): the mean is uniform, so the divergence is ln 2 minus the entropy of a coin."""
    a = 0.8
    weights = torch.tensor([[a, 1 - a], [1 - a, a]])[None, :, None]
    coin = -a * math.log(a) - (1 - a) * math.log(1 - a)
    assert of_logits(weights.log()).head_divergence == pytest.approx(1 - coin / math.log(2), rel=1e-5)


def test_a_sink_that_all_heads_share_does_not_make_them_redundant():
    torch.manual_seed(0)
    logits = torch.randn(2, 8, 16, 128)
    logits[..., 0] += 14.0
    row = of_logits(logits)
    assert row.head_divergence < 0.01
    assert row.head_diversity > 0.7
    assert max(row.entropy) < 0.1
    assert max(row.freezing) < 1.0  # the bulk of the logits is as it was


def test_a_bias_that_all_heads_share_does_not_make_them_redundant():
    torch.manual_seed(0)
    query, key = torch.randn(2, 4, 12, 8) * 0.05, torch.randn(2, 4, 12, 8) * 0.05
    distance = (torch.arange(12) - torch.arange(12)[:, None]).abs()
    row = row_of(AttentionInputs(query=query, key=key, mask=-8.0 * distance))
    assert row.head_diversity > 0.7
    assert max(row.peaks) < 1.0


def test_one_head_has_no_diversity():
    row = of_logits(torch.randn(2, 1, 4, 5))
    assert row.head_diversity is None
    assert row.head_divergence is None


def spread_of(tokens, padding=None):
    samples, spread, similarity = token_sums(tokens, padding).tolist()
    return spread / samples, similarity / samples


def test_token_spread_in_closed_form():
    assert spread_of(torch.ones(2, 5, 3)) == pytest.approx((0.0, 1.0), abs=1e-6)
    opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])[None]
    assert spread_of(opposite) == pytest.approx((1.0, -1.0))
    n = 6
    assert spread_of(torch.eye(n)[None]) == pytest.approx((math.sqrt(1 - 1 / n), 0.0), abs=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_token_spread_does_not_depend_on_scale(scale):
    torch.manual_seed(0)
    tokens = torch.randn(2, 5, 3)
    assert spread_of(tokens * scale) == pytest.approx(spread_of(tokens), rel=1e-5)


def test_padding_does_not_count_as_tokens():
    torch.manual_seed(0)
    tokens = torch.randn(2, 6, 4)
    tokens[:, 4:] = 100.0
    allowed = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    allowed[..., 4:] = False
    zeros = torch.zeros(2, 1, 6, 4)
    padding = attention_sums(AttentionInputs(query=zeros, key=zeros, mask=allowed)).padding
    assert spread_of(tokens, padding) == pytest.approx(spread_of(tokens[:, :4]), rel=1e-5)


def test_one_token_or_non_finite_tokens_have_no_spread():
    assert token_sums(torch.randn(3, 1, 4)).tolist() == [0.0, 0.0, 0.0]
    assert token_sums(torch.full((1, 3, 4), math.nan)).tolist() == [0.0, 0.0, 0.0]
    assert token_sums(torch.zeros(1, 3, 4)).tolist() == [0.0, 0.0, 0.0]


def several_calls():
    """Layers alike and others between them: causal or not, masked, with a bias per head, with NaN, of another shape."""
    torch.manual_seed(0)
    query, key = torch.randn(4, 6, 40, 16), torch.randn(4, 6, 40, 16)
    bad = query.clone()
    bad[0, 0, 0] = math.nan
    return [
        AttentionInputs(query=query, key=key, is_causal=True),
        AttentionInputs(query=query, key=key),
        AttentionInputs(query=3 * query, key=key, is_causal=True),
        AttentionInputs(query=query, key=key, mask=torch.rand(4, 1, 40, 40) > 0.3),
        AttentionInputs(query=query, key=key[:, :2], mask=torch.randn(4, 6, 40, 40)),
        AttentionInputs(logits=torch.randn(2, 1, 5, 7)),
        AttentionInputs(query=bad, key=key, is_causal=True),
    ]


def test_calls_that_are_reduced_together_give_what_each_gives_alone():
    calls = several_calls()
    for together, inputs in zip(sums_of([some_logits(each) for each in calls]), calls, strict=True):
        alone = attention_sums(inputs)
        torch.testing.assert_close(together.flat(), alone.flat(), equal_nan=True)
        assert (together.padding is None) == (alone.padding is None)


def test_tokens_that_are_reduced_together_give_what_each_block_gives_alone():
    torch.manual_seed(0)
    blocks = [torch.randn(5, 30, 8), torch.zeros(5, 30, 8), torch.randn(2, 70, 8), torch.full((5, 30, 8), math.nan)]
    for together, tokens in zip(sums_of_tokens([some_tokens(each) for each in blocks]), blocks, strict=True):
        torch.testing.assert_close(together, token_sums(tokens))


def test_no_more_than_a_bounded_number_of_elements_waits():
    reduced: list[list[int]] = []

    def reduce(samples):
        reduced.append(list(samples))
        return [-each for each in samples]

    waiting = Together(reduce, lambda size: size)
    sizes = [MOST_HELD // 2, MOST_HELD // 3, MOST_HELD // 3, 5]
    found = [waiting.add(size) for size in sizes]
    assert reduced == [sizes[:3]]
    waiting.finish()
    assert [each.value for each in found] == [-size for size in sizes]
