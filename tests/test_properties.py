"""What must hold for every debate, whatever was said."""

import asyncio
import json
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peergrad import Parallel, Question, Sequential, advantages, credit, datums, dump, load, play, score
from peergrad.debate.ballot import BALLOT, Ballot
from peergrad.debate.contract import FULL, SHORT, read
from peergrad.debate.protocols import Direct
from peergrad.debate.types import Ask, Debate, Parsed, Tokens, Turn
from peergrad.engines.scripted import Scripted
from peergrad.reward.rewards import RewardRules
from tests.helpers import full, parallel, sequential, short

settings.register_profile("peergrad", max_examples=60, deadline=None)
settings.load_profile("peergrad")

RULES = [
    RewardRules(reward="win_rate"),
    RewardRules(reward="win_minus_loss", ballots="literal"),
    RewardRules(reward="win_rate", self_votes="keep"),
    RewardRules(consensus="all"),
    RewardRules(consensus="others", self_votes="keep", unjudged="literal"),
    RewardRules(ballots="literal", format_penalty=False),
    RewardRules(form="literal", voices="votes"),
    RewardRules(reward="borda"),
    RewardRules(votes="shuffled", unjudged="literal"),
    RewardRules(reward="borda", votes="majority", truth_weight=0.3),
]


@st.composite
def ballots(draw, agents):
    """A comparison section as a list of votes, some of them nonsense; or None for an unreadable reply."""
    if draw(st.integers(0, 9)) == 0:
        return None
    agent = st.integers(0, agents)  # one too many: a vote about nobody
    return draw(st.lists(st.tuples(agent, st.sampled_from("><="), agent), max_size=6))


@st.composite
def said(draw):
    """A parallel debate as agents and rounds of ballots."""
    agents = draw(st.integers(1, 5))
    rounds = draw(st.lists(st.lists(ballots(agents), min_size=agents, max_size=agents), min_size=1, max_size=3))
    return agents, rounds


def write(votes):
    return None if votes is None else "\n".join(f"Agent {a} {op} Agent {b}" for a, op, b in votes) or "N/A"


def build(agents, rounds, in_sequence=False, names=None):
    texts = [write(votes) for row in rounds for votes in row]
    base = sequential(agents, *texts) if in_sequence else parallel(agents, *batched(texts, agents))
    line = json.loads(dump(base))
    for index, turn in enumerate(line["turns"]):
        turn["agent"] = (names or range(agents))[index % agents]
    return load(json.dumps(line))


def batched(items, size):
    return [items[start : start + size] for start in range(0, len(items), size)]


def results(debate, rules):
    scored = score(debate, rules)
    return scored, advantages([scored])[0]


def assert_same(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert (a is None) == (b is None)
        assert a is None or a == pytest.approx(b, abs=1e-12)


@given(said(), st.booleans(), st.randoms(use_true_random=False))
def test_relabelling_agents_permutes_all_results(debate, in_sequence, rng):
    """Who spoke when stays; what they are called changes, in the transcript and in the votes."""
    agents, rounds = debate
    to = list(range(agents))
    rng.shuffle(to)
    new_name = {**dict(enumerate(to)), agents: agents}
    moved = [[votes and [(new_name[a], op, new_name[b]) for a, op, b in votes] for votes in row] for row in rounds]
    before, after = build(agents, rounds, in_sequence), build(agents, moved, in_sequence, names=to)
    for rules in RULES:
        (scored, centred), (scored_after, centred_after) = results(before, rules), results(after, rules)
        for index, stream in enumerate(scored.streams):
            units = to if stream.unit == "agent" else range(len(stream.values))
            for old, new in (
                (stream.values, scored_after.streams[index].values),
                (centred[index], centred_after[index]),
            ):
                assert_same(old, [new[unit] for unit in units])
        assert scored.tally.counts == scored_after.tally.counts


@given(said(), st.booleans(), st.text("ab/", max_size=3), st.sampled_from(["streams", "borda"]))
def test_shuffling_keeps_the_values_of_every_round(debate, in_sequence, name, reward):  # SPEC 4.13
    debate = replace(build(*debate, in_sequence), id=name)
    peer, shuffled = (score(debate, RewardRules(reward=reward, votes=votes)).streams for votes in ("peer", "shuffled"))
    for before, after in zip(peer, shuffled, strict=True):
        assert [value is None for value in before.values] == [value is None for value in after.values]
        for round_ in range(debate.rounds):
            turns = [index for index, turn in enumerate(debate.turns) if turn.round == round_]
            old, new = ([(stream.values[turn], stream.votes[turn]) for turn in turns] for stream in (before, after))
            assert sorted(old, key=repr) == sorted(new, key=repr)
        assert replace(after, values=before.values, votes=before.votes) == before


@given(st.lists(st.sampled_from(["1", "1.0", "2", "x", ""]), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_the_majority_is_the_same_whoever_is_who(answers, rng):  # SPEC 4.13
    def majority(order):
        texts = [rf"\boxed{{{answers[agent]}}}" if answers[agent] else "nothing" for agent in order]
        debate = asyncio.run(play(Direct(agents=len(order)), Question("q", "?"), Scripted(lambda ask: texts[ask.agent])))
        return score(debate, RewardRules(votes="majority")).streams[0].values

    order = list(range(len(answers)))
    before = majority(order)
    rng.shuffle(order)
    assert majority(order) == tuple(before[agent] for agent in order)
    assert all(value is None or -1 <= value <= 1 for value in before)
    assert (set(before) == {None}) == (not any(answers))


@given(said(), st.booleans())
def test_a_greater_b_and_b_less_a_score_alike(debate, in_sequence):
    agents, rounds = debate
    flip = {">": "<", "<": ">", "=": "="}
    flipped = [[None if votes is None else [(b, flip[op], a) for a, op, b in votes] for votes in row] for row in rounds]
    for rules in RULES:
        before, after = (results(build(agents, row, in_sequence), rules) for row in (rounds, flipped))
        for old, new in zip(before[0].streams, after[0].streams, strict=True):
            assert_same(old.values, new.values)
        for old, new in zip(before[1], after[1], strict=True):
            assert_same(old, new)


@given(said(), st.integers(2, 40), st.randoms(use_true_random=False))
def test_duplicating_a_vote_line_changes_nothing(debate, times, rng):
    agents, rounds = debate
    stuffed = [[None if v is None else rng.sample(v * times, len(v) * times) for v in row] for row in rounds]
    for rules in RULES:
        if rules.ballots == "literal":
            continue
        before, after = results(build(agents, rounds), rules), results(build(agents, stuffed), rules)
        assert [s.values for s in before[0].streams] == [s.values for s in after[0].streams]
        assert before[1] == after[1]


@given(
    st.lists(said(), min_size=1, max_size=4),
    st.sampled_from(["group", "batch", "seat"]),
    st.sampled_from(RULES),
    st.booleans(),
)
def test_advantages_sum_to_zero_per_centring_set(debates, center, rules, divide_by_std):
    batch = [score(build(*debate), rules) for debate in debates]
    centred = advantages(batch, center=center, divide_by_std=divide_by_std)
    sets = {}
    for index, (scored, streams) in enumerate(zip(batch, centred, strict=True)):
        for stream, values in zip(scored.streams, streams, strict=True):
            for unit, value in enumerate(values):
                assert (value is None) == (stream.values[unit] is None)
                agents = scored.debate.agents
                seat = unit if stream.unit == "agent" else (unit % agents, unit // agents)
                key = {"group": index, "batch": 0, "seat": seat}[center]
                sets.setdefault((stream.name, key), []).append(value or 0.0)
    assert all(abs(sum(values)) < 1e-9 for values in sets.values())


def scrambled(text, before, rng):
    """Tokens that cut the text's bytes anywhere, after a prompt that extends the agent's last turn, or does not."""
    encoded = text.encode()
    cuts = sorted({0, *(rng.randrange(len(encoded)) for _ in range(rng.randrange(1, 30)))})
    prompt = [rng.randrange(50) for _ in range(rng.randrange(1, 9))]
    if before and rng.random() < 0.6:
        prompt = [*before[-1].prompt_T.tolist(), *before[-1].ids_T.tolist(), *prompt]
    ids = [rng.randrange(50) for _ in cuts]
    return Tokens.of(prompt, ids, [-rng.random() for _ in cuts], cuts, rng.choice([0.6, 1.0]))


@given(said(), st.integers(0, 2**32), st.booleans())
def test_every_sampled_token_lands_in_exactly_one_datum_once(debate, seed, in_sequence):
    agents, rounds = debate
    rng = random.Random(seed)
    base = build(agents, rounds, in_sequence)
    turns, of = [], {agent: [] for agent in range(agents)}
    for turn in base.turns:
        of[turn.agent].append(scrambled(turn.text, of[turn.agent], rng))
        turns.append(type(turn)(turn.agent, turn.seen, turn.text, turn.parsed, tokens=of[turn.agent][-1]))
    full_debate = Debate(base.id, base.question, base.protocol, tuple(turns))
    for rules in (RULES[0], RULES[3]):
        scored, centred = results(full_debate, rules)
        per_turn = credit(full_debate, scored.streams, centred)
        made = datums(full_debate, per_turn)
        assert sorted(t for datum in made for t in datum.turns) == list(range(len(turns)))
        for datum in made:
            chosen = datum.mask_T == 1
            for array, of_turn in (
                (datum.targets_T, lambda t: turns[t].tokens.ids_T),
                (datum.logprobs_T, lambda t: turns[t].tokens.logprobs_T),
                (datum.advantages_T, per_turn.__getitem__),
            ):
                assert np.array_equal(array[chosen], np.concatenate([of_turn(t) for t in datum.turns]))
            assert not datum.advantages_T[~chosen].any()


TEXT = st.text(max_size=60)


@given(st.data(), st.booleans(), TEXT, st.one_of(st.none(), TEXT), st.booleans())
def test_json_round_trip(data, in_sequence, question, answer, tokens):
    protocol = (
        Sequential(
            agents=data.draw(st.integers(1, 3)), max_rounds=2, history_rounds=data.draw(st.integers(-1, 2)), order="any"
        )
        if in_sequence
        else Parallel(agents=data.draw(st.integers(1, 3)), max_rounds=2)
    )
    write_reply = full if in_sequence else short
    replies = data.draw(st.lists(st.one_of(TEXT, st.builds(write_reply, TEXT, TEXT, TEXT)), min_size=6, max_size=6))
    engine = Scripted(lambda ask: replies[ask.turn], tokens=tokens)
    debate = asyncio.run(play(protocol, Question("q", question, answer, "boxed", "set"), engine, id="debate 1"))
    line = dump(debate)
    assert "\n" not in line
    assert load(line) == debate
    assert dump(load(line)) == line
    thin = load(dump(debate, thin=True))
    assert [turn.text for turn in thin.turns] == [turn.text for turn in debate.turns]
    assert dump(thin, thin=True) == dump(debate, thin=True)


@given(st.data(), st.booleans())
def test_a_debate_replayed_from_its_transcript_asks_the_same_waves(data, in_sequence):
    protocol = Sequential(agents=3, max_rounds=2, history_rounds=1) if in_sequence else Parallel(agents=3, max_rounds=2)
    write_reply = full if in_sequence else short
    replies = data.draw(st.lists(st.one_of(TEXT, st.builds(write_reply, TEXT, TEXT, TEXT)), min_size=6, max_size=6))
    asked = []

    class Recorded(Scripted):
        async def sample(self, asks):
            asked.append(list(asks))
            return await super().sample(asks)

    debate = asyncio.run(play(protocol, Question("q", "?"), Recorded(lambda ask: replies[ask.turn])))
    loaded = load(dump(debate))
    minimal = json.loads(dump(debate))
    minimal["turns"] = [{"agent": turn["agent"], "text": turn["text"]} for turn in minimal["turns"]]
    for source, check in ((loaded, lambda ask: ask), (load(json.dumps(minimal)), without_tokens)):
        at = 0
        for wave in asked:
            part = Debate(source.id, source.question, source.protocol, source.turns[:at])
            assert [check(ask) for ask in part.protocol.wave(part)] == [check(ask) for ask in wave]
            at += len(wave)
        assert source.protocol.wave(source) == []


def without_tokens(ask):
    return (ask.agent, ask.turn, ask.seen, ask.since, [(m.role, m.text) for m in ask.messages], ask.temperature)


@st.composite
def soft_ballots(draw):
    """Answers, and of every voter a verdict in [-1, 1] on each two others."""
    agents = draw(st.integers(3, 5))
    strengths = st.sampled_from([-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0])
    pairs = [(voter, a, b) for voter in range(agents) for a in range(agents) for b in range(a) if voter not in (a, b)]
    values = draw(st.lists(strengths, min_size=len(pairs), max_size=len(pairs)))
    return agents, dict(zip(pairs, values, strict=True))


def with_votes(agents, votes, candidates=None):
    """A debate by ballot in which these votes were cast, whoever was shown under which letter."""
    protocol = Ballot(agents=agents, shown=max(2, agents - 1))
    answers = [Turn(agent, 0, f"\\boxed{{{agent % 2}}}", Parsed()) for agent in range(agents)]
    ballots = [
        Turn(
            voter,
            agents,
            "",
            Parsed(votes=tuple(vote for author, vote in votes if author == voter)),
            round=1,
            contract=BALLOT,
            candidates=(candidates or {}).get(voter) or tuple((agent,) for agent in range(agents) if agent != voter),
        )
        for voter in range(agents)
    ]
    return Debate("d", Question("q", "?", style="boxed"), protocol, (*answers, *ballots))


@given(soft_ballots(), st.booleans())
def test_a_soft_vote_of_one_equals_a_hard_vote(ballots, turned):
    agents, strengths = ballots
    signs = {key: (value > 0) - (value < 0) for key, value in strengths.items()}
    soft = [
        (voter, (b, -float(sign), a) if turned else (a, float(sign), b)) for (voter, a, b), sign in signs.items() if sign
    ]
    hard = [(voter, (a, ">", b) if sign > 0 else (b, ">", a)) for (voter, a, b), sign in signs.items() if sign]
    for rules in RULES:
        assert score(with_votes(agents, soft), rules).streams == score(with_votes(agents, hard), rules).streams


@given(soft_ballots(), st.randoms(use_true_random=False))
def test_letters_and_their_order_change_no_tally(ballots, rng):
    agents, strengths = ballots
    votes = [(voter, (a, value, b)) for (voter, a, b), value in strengths.items()]
    shuffled = {
        voter: tuple(rng.sample([(agent,) for agent in range(agents) if agent != voter], agents - 1))
        for voter in range(agents)
    }
    before, after = with_votes(agents, votes), with_votes(agents, votes, shuffled)
    for rules in RULES:
        assert score(before, rules).tally == score(after, rules).tally
        assert score(before, rules).streams == score(after, rules).streams


@given(st.permutations(range(4)), st.lists(st.sampled_from(["right", "wrong"]), min_size=4, max_size=4))
def test_relabelling_letters_changes_no_vote(order, verdicts):
    """The same verdicts on the same agents, whatever letters they stand under."""

    def votes(order):
        ask = Ask("", 4, 5, 5, (), (), 0, contract=BALLOT, candidates=tuple((agent,) for agent in order))
        for form, text in (
            ("verdicts", "\n".join(f"{x}: {verdicts[agent]}" for x, agent in zip("ABCD", order, strict=True))),
            ("soft-verdict", "\n".join(f"Yes {verdicts[agent] == 'right':.6f} No 0.000000" for agent in order)),
        ):
            for a, op, b in Ballot(agents=5, ballot_form=form).read(ask, text).votes:
                verdict = op if isinstance(op, float) else float(op == ">")
                yield (form, a, b, verdict) if a < b else (form, b, a, 0.0 - verdict)

    assert sorted(votes(order)) == sorted(votes(range(4)))


@given(
    st.one_of(st.text(max_size=200), st.lists(st.sampled_from([*FULL.tags, "x", "Agent 0 > Agent 1", "</think>", "&gt;"])))
)
def test_tolerant_reading_keeps_to_the_text(text):
    text = text if isinstance(text, str) else " ".join(text)
    for contract in (FULL, SHORT):
        strict, parsed = read(text, contract), read(text, contract, reading="tolerant")
        assert strict.error or parsed == strict
        at = 0
        for section in parsed.sections:
            assert at <= section.start <= section.inner[0] <= section.inner[1] <= section.end <= len(text)
            at = section.end


@given(said(), st.booleans(), st.sampled_from(["graded", "literal"]))
def test_form_is_never_rewarded(debate, in_sequence, form):
    agents, rounds = debate
    values = score(build(agents, rounds, in_sequence), RewardRules(form=form)).streams[-1].values
    assert all(-1 <= value <= 0 for value in values)
