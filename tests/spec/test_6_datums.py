"""SPEC 6: from debate to datums."""

import json
from dataclasses import replace

import numpy as np
import pytest

from peergrad import Question, dump, load
from peergrad.debate.ballot import Ballot
from peergrad.debate.contract import SHORT, read
from peergrad.debate.errors import UserError
from peergrad.debate.protocols import Direct, Parallel, Sequential
from peergrad.debate.types import Tokens, Usage
from peergrad.engines.base import decode
from peergrad.learn.data import advantages, credit, credited, datums, section_tokens, training_data
from peergrad.reward.rewards import RewardRules, nobody_knows, score
from peergrad.reward.streams import Stream
from tests.helpers import full, parallel, played, short


def votes(ask):
    return "Agent 1 > Agent 2" if ask.agent == 0 and ask.turn >= 3 else "N/A"


GROWING = played(Parallel(agents=3, max_rounds=3), lambda ask: short(votes(ask), solution="é"))


def trained(debate, rules=None):
    scored = score(debate, rules)
    return datums(debate, credit(debate, scored.streams, advantages([scored])[0]))


def test_6_1_turns_are_joined_while_prompts_extend():  # SPEC 6.1
    assert [datum.turns for datum in trained(GROWING)] == [(0, 3, 6), (1, 4, 7), (2, 5, 8)]
    rerendered = played(Sequential(agents=2, max_rounds=2), lambda ask: full())
    assert [datum.turns for datum in trained(rerendered)] == [(0,), (2,), (1,), (3,)]
    # One changed token in the history closes the sequence.
    turn = GROWING.turns[6]
    prompt_T = turn.tokens.prompt_T.copy()
    prompt_T[5] += 1
    changed = replace(turn, tokens=replace(turn.tokens, prompt_T=prompt_T))
    other = replace(GROWING, turns=(*GROWING.turns[:6], changed, *GROWING.turns[7:]))
    assert [datum.turns for datum in trained(other)] == [(0, 3), (6,), (1, 4, 7), (2, 5, 8)]


def test_6_2_arrays_are_aligned_and_shifted():  # SPEC 6.2
    datum = trained(GROWING)[0]
    last = GROWING.turns[6].tokens
    whole = np.concatenate((last.prompt_T, last.ids_T))
    assert np.array_equal(datum.inputs_T, whole[:-1])
    assert np.array_equal(datum.targets_T, whole[1:])
    for array in (datum.logprobs_T, datum.advantages_T, datum.mask_T, datum.temperatures_T):
        assert len(array) == len(datum)
    said = datum.mask_T == 1
    assert np.array_equal(datum.targets_T[said], np.concatenate([GROWING.turns[t].tokens.ids_T for t in datum.turns]))
    assert not datum.logprobs_T[~said].any()
    assert not datum.advantages_T[~said].any()


def test_6_3_pairwise_advantage_on_all_action_tokens():  # SPEC 6.3
    made = trained(GROWING, RewardRules(reward="win_rate"))
    for datum, value in zip(made, (-1 / 3, 2 / 3, -1 / 3), strict=True):
        assert datum.advantages_T[datum.mask_T == 1] == pytest.approx(value)


def test_6_4_section_credit():  # SPEC 6.4
    debate = GROWING
    gen = Stream("gen", "turn", (0.0,) * 9, ("solution", "evaluation"), weight=2.0)
    judge = Stream("judge", "turn", (0.0,) * 9, ("comparison",), weight=3.0)
    form = Stream("format", "turn", (0.0,) * 9)
    values = [(0.5,) * 9, (0.25,) * 9, (0.125,) * 9]
    per_token = credit(debate, (gen, judge, form), values)[3]
    text, starts = debate.turns[3].text.encode(), debate.turns[3].tokens.starts_T
    first, between, _ = text.partition(b"</solution>\n")
    evaluation_end = text.index(b"\n<comparison>")
    for token, start in enumerate(starts):  # the line feeds between sections and the end of turn belong to none
        in_gen = start < evaluation_end and start != len(first + between) - 1
        in_judge = evaluation_end < start < len(text)
        assert per_token[token] == pytest.approx(0.125 + 1.0 * in_gen + 0.75 * in_judge), (token, start)
    rules = RewardRules(lambda_gen=0.5, lambda_judge=1.5)
    assert [stream.weight for stream in score(debate, rules).streams] == [0.5, 1.5, 1.0]
    # A turn without the sections gets nothing from the stream, a unit without signal nothing at all.
    unreadable = played(Parallel(agents=1, max_rounds=1, reading="strict"), lambda ask: "hm")
    assert credit(unreadable, (gen, form), [(0.5,), (0.125,)])[0] == pytest.approx(0.125)
    assert not credit(debate, (gen,), [(None,) * 9])[0].any()


def test_6_5_bytes_decide_which_token_is_where():  # SPEC 6.5
    pieces = [b"<solution>\xc3", b"\xa9</solution><eval", b"uation></evaluation>", b"<comparison></comparison>", b""]
    text, starts = decode(pieces)
    assert starts == [0, 11, 28, 48, 73]
    debate = parallel(1, ["N/A"])
    parsed = read(text, SHORT)
    tokens = Tokens.of([1], range(5), [0.0] * 5, starts)
    turn = replace(debate.turns[0], text=text, parsed=parsed, tokens=tokens)
    where = {name: section_tokens(turn, name) for name in ("solution", "evaluation", "comparison")}
    # The second token holds the end of the solution and the start of the evaluation: its first byte is the solution's.
    assert where == {"solution": slice(0, 2), "evaluation": slice(2, 3), "comparison": slice(3, 4)}
    assert decode([b"a\xe2", b"b", b"\x82", b"\xf0\x9f", b"\x98\x80c"]) == ("a\ufffdb\ufffd😀c", [0, 4, 5, 8, 10])
    assert decode([b"\xed\xa0", b"<"]) == ("\ufffd\ufffd<", [0, 6])
    assert decode([b"a\xe2", b"", b""]) == ("a\ufffd", [0, 4, 4])


@pytest.mark.parametrize("protocol", [Parallel(agents=3, max_rounds=3), Sequential(agents=3, history_rounds=1)])
def test_6_6_every_sampled_token_once(protocol):  # SPEC 6.6
    def said(ask):
        text = f"{ask.turn} é"
        return short(votes(ask), text) if isinstance(protocol, Parallel) else full("N/A", text)

    debate = played(protocol, said)
    made = trained(debate)
    turns = [turn for datum in made for turn in datum.turns]
    assert sorted(turns) == list(range(len(debate.turns)))
    sampled = np.concatenate([debate.turns[t].tokens.ids_T for t in turns])
    assert np.array_equal(np.concatenate([datum.targets_T[datum.mask_T == 1] for datum in made]), sampled)


def test_6_7_each_token_keeps_its_temperature():  # SPEC 6.7
    for datum, temperature in zip(trained(GROWING), (0.6, 1.0, 0.9), strict=True):
        assert datum.temperatures_T[datum.mask_T == 1] == pytest.approx(temperature)
        assert (datum.temperatures_T[datum.mask_T == 0] == 1).all()


def test_6_8_only_what_is_credited_is_trained_on():  # SPEC 6.8
    datum = trained(GROWING)[0]
    some = np.zeros(len(datum), np.float32)
    some[[3, 7]] = 0.5, -0.5
    cut = credited(replace(datum, advantages_T=some))
    assert len(cut) == 8
    for name in ("inputs_T", "targets_T", "logprobs_T", "advantages_T", "mask_T", "temperatures_T"):
        assert np.array_equal(getattr(cut, name), getattr(replace(datum, advantages_T=some), name)[:8])
    assert credited(replace(datum, advantages_T=0 * some)) is None
    # Soft votes: answers are trained on, choices are in no datum.
    debate = played(
        Ballot(agents=3),
        lambda ask: f"\\boxed{{{ask.agent}}}",
        Question("q", "?", style="boxed"),
        likely=lambda ask, options: (0.75, 0.25) if " 0." in ask.messages[-1].text else (0.25, 0.75),
    )
    batch = training_data([debate], RewardRules(reward="borda"), lambda _: nobody_knows)
    assert [datum.turns for datum in batch.data] == [(0,), (1,), (2,)]
    assert sorted({*batch.data[0].advantages_T.tolist()}) == pytest.approx([0, 0.8])  # odds of 9 to 1
    assert all(datum.advantages_T[-1] for datum in batch.data)
    equal = training_data([GROWING], RewardRules(), lambda _: nobody_knows)
    assert all(datum.advantages_T.any() for datum in equal.data)


def test_6_8_an_empty_reply_is_no_choice():  # SPEC 3.18, 6.8
    debate = played(Direct(agents=3), lambda ask: "")
    empty = replace(debate, turns=tuple(replace(turn, tokens=None, usage=Usage(7, 0)) for turn in debate.turns))
    with pytest.raises(UserError, match="no tokens were kept"):
        datums(empty, credit(empty, (), ()))
    soft = played(Ballot(agents=3), lambda ask: "x", likely=lambda ask, options: (0.5, 0.5))
    assert [turn.chosen for turn in load(dump(soft)).turns] == [False] * 3 + [True] * 3
    assert load(dump(soft)) == soft
    line = json.loads(dump(soft))
    line["turns"][3]["chosen"] = False
    assert load(dump(load(json.dumps(line)))).turns[3].chosen is False


def test_a_debate_without_tokens_cannot_be_trained_on():
    debate = parallel(3, ["N/A"] * 3)
    with pytest.raises(UserError, match=r"no tokens were kept.*warm_from"):
        datums(debate, credit(debate, (), ()))
