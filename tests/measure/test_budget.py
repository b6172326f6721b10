"""Equal cost: what is counted, and that a baseline spends what the debate did."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peergrad import Parallel, Sequential
from peergrad.debate.protocols import Direct
from peergrad.debate.transcript import dump, load
from peergrad.measure.outcome import affordable, cost, draws
from tests.helpers import full, parallel, played, short


def test_a_growing_dialogue_is_counted_once():
    debate = played(Parallel(agents=3, max_rounds=2), lambda ask: short("Agent 0 > Agent 1" if ask.agent == 2 else "N/A"))
    used = [(len(turn.tokens.prompt_T), len(turn.tokens.ids_T)) for turn in debate.turns]
    assert cost(debate, "sampled") == sum(sampled for _, sampled in used)
    assert cost(debate) == sum(prompt + sampled for prompt, sampled in used[3:])
    # The second prompt holds the first prompt and reply, so each token was counted once.
    for agent in range(3):
        assert used[3 + agent][0] > sum(used[agent])
    thin = load(dump(debate, thin=True))
    assert all(turn.tokens is None for turn in thin.turns)
    assert (cost(thin), cost(thin, "sampled")) == (cost(debate), cost(debate, "sampled"))


def test_other_prompts_are_counted_in_full():
    in_turn = played(Sequential(agents=2, max_rounds=2), lambda _: full())
    assert cost(in_turn) == sum(len(turn.tokens.prompt_T) + len(turn.tokens.ids_T) for turn in in_turn.turns)
    alone = played(Direct(agents=3, temperature=0.7), lambda ask: "x" * (ask.agent + 1))
    prompt = len(alone.turns[0].tokens.prompt_T)
    assert cost(alone) == 3 * prompt + 2 + 3 + 4
    assert cost(parallel(3, ["N/A"] * 3)) is None  # nobody counted


PRICES = st.lists(st.lists(st.integers(1, 400), min_size=1, max_size=60), min_size=1, max_size=30)


@given(PRICES, st.data())
def test_over_all_questions_less_than_one_answer_is_spent_too_much_or_too_little(spent, data):
    budgets = [data.draw(st.integers(prices[0], sum(prices))) for prices in spent]
    counted = affordable(spent, budgets)
    paid = sum(sum(prices[:count]) for prices, count in zip(spent, counted, strict=True))
    assert all(1 <= count <= len(prices) for count, prices in zip(counted, spent, strict=True))
    # Where a question has too few answers to make up for the ones before, the debt is handed on.
    debt = 0
    for prices, budget, count in zip(spent, budgets, counted, strict=True):
        debt += budget - sum(prices[:count])
        if count < len(prices):
            assert abs(debt) <= max(map(max, spent))
    assert paid == sum(budgets) - debt


@pytest.mark.parametrize("ratio", [2.5, 8, 30])
def test_drawing_until_the_money_is_spent(ratio):
    rng = random.Random(ratio)
    price = lambda: rng.randint(60, 300)  # noqa: E731
    budgets = [int(180 * ratio * rng.uniform(0.7, 1.3)) for _ in range(50)]
    spent = [[] for _ in budgets]
    waves = 0
    while any(more := draws(spent, budgets, least=3)):
        waves += 1
        for prices, count in zip(spent, more, strict=True):
            prices += [price() for _ in range(count)]
    assert waves < 15
    assert all(sum(prices) >= budget and len(prices) >= 3 for prices, budget in zip(spent, budgets, strict=True))
    assert sum(map(sum, spent)) < 1.25 * sum(max(b, 900) for b in budgets)  # little is drawn in vain
    paid = sum(sum(prices[:count]) for prices, count in zip(spent, affordable(spent, budgets), strict=True))
    assert paid == pytest.approx(sum(budgets), rel=0.05)
