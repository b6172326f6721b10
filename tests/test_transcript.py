"""The transcript format: what loads, and what a person is told when it does not."""

import json
from pathlib import Path

import pytest

from peergrad import Question, UserError, dump, load, read_file
from peergrad.debate.protocols import Direct, Parallel, Sequential
from peergrad.debate.question import Style
from peergrad.measure.ending import ending
from peergrad.terminal.debate import outcome
from tests.helpers import full, parallel, played, short

TURN = {"agent": 0, "text": short()}
LINE = {"id": "x", "question": "?", "agents": 3, "protocol": "parallel", "turns": [TURN]}
TOKENS = {"prompt": [1], "ids": [2, 3], "logprobs": [-1.0, -0.5], "starts": [0, 4], "temperature": 0.6}


def test_a_minimal_line_loads_and_seen_is_derived():
    turns = [{"agent": agent, "text": short()} for agent in (0, 1, 2, 0, 1)]
    debate = load(json.dumps(LINE | {"turns": turns}))
    assert [turn.seen for turn in debate.turns] == [0, 0, 0, 3, 3]
    assert (debate.agents, debate.question.id, debate.question.style.name) == (3, "x", "open")
    in_turn = load(json.dumps(LINE | {"turns": turns, "protocol": "sequential"}))
    assert [turn.seen for turn in in_turn.turns] == [0, 1, 2, 3, 4]
    windowed = load(json.dumps(LINE | {"turns": turns, "protocol": "sequential", "settings": {"history_rounds": 1}}))
    assert [(turn.since, turn.seen) for turn in windowed.turns] == [(0, 0), (0, 1), (0, 2), (3, 3), (3, 4)]
    shuffled = [{"agent": agent, "text": short()} for agent in (2, 0, 1, 1, 2, 0)]
    assert [turn.agent for turn in load(json.dumps(LINE | {"turns": shuffled})).turns] == [2, 0, 1, 1, 2, 0]
    assert load(json.dumps(LINE | {"turns": [], "note": "unknown fields are passed over"})).turns == ()


def test_a_style_of_somebodys_own_loads_and_can_not_be_compared():
    own = Style("code", "Write a function.", find=str.strip)
    debate = played(Parallel(agents=3, max_rounds=1), lambda ask: short(), question=Question("d", "?", style=own))
    assert "Write a function." in debate.turns[0].asked[-1].text
    loaded = load(dump(debate))
    assert loaded == debate
    assert (loaded.question.style.name, loaded.question.style.find) == ("code", None)
    assert dump(loaded) == dump(debate)
    assert [final.answer for final in ending(debate).finals] == ["42"] * 3
    assert [final.answer for final in ending(loaded).finals] == [None] * 3
    assert "can't be compared" in outcome(ending(loaded))


@pytest.mark.parametrize(
    ("style", "why"),
    [("open", "as numbers (--style number)"), ("boxed", "no reply has an answer in the form that was asked for")],
)
def test_no_winner_is_explained_by_what_was_asked_for(style, why):
    question = Question("d", "?", style=style)
    end = ending(played(Direct(agents=3), lambda ask: "I can't say", question=question))
    assert outcome(end).endswith(f"{why}.")


PAYLOAD = {"tokens": {"ids": [1, 2]}, "tests": [["f(1)", "2"], 0.5, None, True, "\ud800"], "turns": [{}]}


def test_a_payload_is_kept_and_no_agent_is_shown_it():
    question = Question("d", "?", payload=PAYLOAD)
    assert question.payload["tests"][0] == ("f(1)", "2")
    assert hash(question) == hash(Question("d", "?", payload=json.loads(json.dumps(PAYLOAD))))
    assert question != Question("d", "?", payload=PAYLOAD | {"tests": []})
    with pytest.raises(TypeError):
        question.payload["tests"] = ()
    debate = played(Parallel(agents=3, max_rounds=2), lambda ask: short(), question=question)
    assert not any("tests" in message.text for turn in debate.turns for message in turn.asked)
    line = dump(debate)
    assert load(line) == debate
    assert load(line.encode(), thin=True).question == load(dump(debate, thin=True)).question == question
    assert "payload" not in json.loads(dump(load(json.dumps(LINE))))


@pytest.mark.parametrize("payload", [{1: 2}, {"a": {3}}, float("inf"), [object()], b"x"])
def test_what_is_no_json_is_no_payload(payload):
    with pytest.raises(UserError, match=r"payload: .*JSON can hold"):
        Question("d", "?", payload=payload)


def test_a_payload_without_end_is_refused():
    deep = "[" * 500 + "]" * 500
    with pytest.raises(UserError, match="x, payload: is nested more than 100 deep"):
        load(json.dumps(LINE | {"payload": json.loads(deep)}), "x")


def test_what_rewards_need_is_read_without_prompts_and_tokens(tmp_path):
    decoy = 'see "tokens": {"ids": [1, 2]} and \\"tokens\\": {} \\\\'
    debate = played(Parallel(agents=3, max_rounds=2), lambda ask: short("Agent 0 > Agent 1", decoy))
    line = dump(debate).encode()
    assert load(line, thin=True) == load(line.decode(), thin=True) == load(json.dumps(without(json.loads(line))))
    assert all(turn.tokens is None and turn.asked == () for turn in load(line, thin=True).turns)
    path = tmp_path / "debates.jsonl"
    path.write_bytes(line + b"\n")
    assert list(read_file(path, thin=True)) == [load(line, thin=True)]
    for odd in (
        {"a": "}"},
        {"a": "{"},
        {"a": {"b": [1]}, "c": "}"},
        {"a": '"}'},
        {"a": "\\"},
        {"tokens": {"ids": []}},
        3,
        {},
    ):
        text = json.dumps(LINE | {"turns": [TURN | {"tokens": odd}, TURN | {"agent": 1, "tokens": TOKENS}], "tokens": odd})
        assert load(text.encode(), thin=True) == load(text, thin=True)
    # Tokens that could not be used are not looked at; anything else is still refused, and where it is.
    spoilt = json.dumps(LINE | {"turns": [TURN | {"tokens": TOKENS | {"ids": [2]}, "asked": 3}]})
    assert len(load(spoilt.encode(), thin=True).turns) == 1
    torn = line[: line.rindex(b"</comparison>")]
    with pytest.raises(UserError) as as_it_is:
        load(torn)
    with pytest.raises(UserError) as thin:
        load(torn, thin=True)
    assert str(thin.value) == str(as_it_is.value)


def without(line):
    for turn in line["turns"]:
        del turn["tokens"], turn["asked"]
    return line


def test_text_that_is_no_text_survives():
    debate = parallel(2, ["\ud800 half a pair", "\u2028 \x00 \x1b[31m"])
    assert "\ufffd half a pair" in debate.turns[0].text
    joined = played(Parallel(agents=1, max_rounds=1), lambda ask: "\ud83d\ude00")  # two halves that JSON would join
    assert load(dump(joined)) == joined
    line = dump(debate)
    assert load(line.encode()) == debate
    assert len(line.split("\n")) == 1


def test_dialogues_are_written_once():
    debate = played(Parallel(agents=3, max_rounds=3), lambda ask: short(solution="x" * 1000))
    line = json.loads(dump(debate))
    assert line["turns"][8]["asked"][0] == {"continues": 5}
    assert line["turns"][8]["tokens"]["continues"] == 5
    assert len(line["turns"][8]["asked"]) == 2
    assert load(dump(debate)) == debate
    in_turn = played(Sequential(agents=2, max_rounds=2), lambda ask: full())
    assert "continues" not in dump(in_turn)
    assert load(dump(in_turn)) == in_turn


def turn(**changes):
    return {"turns": [TURN | changes]}


BAD = [
    ({"agents": 0}, "agents: 0 is not possible; give a whole number from 1 to 1000"),
    ({"agents": True}, "agents: true is not possible"),
    ({"agents": "3"}, 'agents: "3" is not possible'),
    ({"agents": 2.5}, "agents: 2.5 is not possible"),
    ({"agents": None}, "agents: null is not possible"),
    ({"protocol": "paralel"}, "protocol: \"paralel\" is not known; did you mean 'parallel'?"),
    ({"protocol": 7}, "protocol: 7 is not known; it may be 'sequential', 'parallel'"),
    ({"protocol": {}}, "protocol: {} is not known"),
    ({"id": 5}, "id: 5 is not text; write it in quotes"),
    ({"question": ["?"]}, 'question: ["?"] is not text'),
    ({"answer": 42}, "answer: 42 is not text"),
    ({"style": 3}, "style: 3 is not text"),
    ({"payload": {"x": float("nan")}}, "payload: 'nan' (float) is nothing that JSON can hold"),
    ({"turns": {}}, "turns: {} is not a list"),
    ({"turns": ["hm"]}, 'turns[0]: "hm" is not an object'),
    ({"turns": [{"text": "x"}]}, "turns[0].agent: is missing"),
    ({"turns": [{"agent": 0}]}, "turns[0].text: is missing"),
    (turn(agent=7), "turns[0].agent: 7 is not possible; give a whole number from 0 to 2: this debate has 3 agents"),
    (turn(agent=-1), "turns[0].agent: -1 is not possible"),
    ({"turns": [TURN, TURN]}, "turns[1].agent: agent 0 has already spoken in round 1; each speaks once a round"),
    (turn(text=None), "turns[0].text: null is not text"),
    (turn(seen=1), "turns[0].seen: 1 is not possible; give a whole number from 0 to 0"),
    (turn(since=1), "turns[0].since: 1 is not possible"),
    (turn(truncated="no"), 'turns[0].truncated: "no" is not true or false'),
    (turn(asked=[{"continues": 0}]), "turns[0].asked[0].continues: the first turn continues none"),
    (turn(asked=[{"role": "boss", "text": ""}]), 'turns[0].asked[0].role: "boss" is not known'),
    (turn(asked=["hm"]), 'turns[0].asked[0]: "hm" is not an object'),
    (turn(tokens=[]), "turns[0].tokens: [] is not an object"),
    (turn(tokens=TOKENS | {"ids": [2]}), "turns[0].tokens: 1 ids, 2 logprobs and 2 starts"),
    (turn(tokens=TOKENS | {"ids": [2, -3]}), "turns[0].tokens.ids[1]: -3 is not possible"),
    (turn(tokens=TOKENS | {"ids": [2, 2**40]}), "turns[0].tokens.ids[1]: 1099511627776 is not possible"),
    (turn(tokens=TOKENS | {"starts": [4, 0]}), "turns[0].tokens.starts: must not decrease"),
    (turn(tokens=TOKENS | {"starts": [0, 999]}), "turns[0].tokens.starts[1]: 999 is not possible"),
    (turn(tokens=TOKENS | {"logprobs": [None, 0]}), "turns[0].tokens.logprobs[0]: null is not a number"),
    (turn(tokens=TOKENS | {"logprobs": [1e300, 0.0]}), "turns[0].tokens.logprobs[0]: 1e+300 is not a number, or too large"),
    (turn(tokens=TOKENS | {"temperature": 10**400}), "is not a number, or too large"),
    (turn(tokens=TOKENS | {"prompt": []}), "turns[0].tokens.prompt: is empty"),
    (turn(tokens=TOKENS | {"temperature": "hot"}), 'turns[0].tokens.temperature: "hot" is not a number'),
    (turn(tokens=TOKENS | {"continues": 0}), "turns[0].tokens.continues: the first turn continues none"),
    ({"turns": [TURN, {"agent": 1, "text": "", "asked": [{"continues": 0}]}]}, "that turn has no messages to continue"),
    ({"turns": [TURN, {"agent": 1, "text": "", "tokens": TOKENS | {"starts": [0, 0], "continues": 0}}]}, "has no tokens"),
    (
        {"protocol": "sequential", "settings": {"temperature": -1}},
        "settings.temperature: -1 is not possible; give 0 or more",
    ),
    ({"settings": []}, "settings: [] is not an object"),
    ({"settings": {"max_round": 3}}, "settings.max_round: no such setting; did you mean 'max_rounds'?"),
    ({"settings": {"max_rounds": 0}}, "settings.max_rounds: 0 is not possible"),
    ({"settings": {"order": "none"}}, 'settings.order: "none" is not known'),
    ({"settings": {"personas": []}}, "settings.personas: at least one is needed"),
    ({"settings": {"personas": [{"name": "x"}]}}, "settings.personas[0].style: is missing"),
    ({"settings": {"history_rounds": 2}}, "settings.history_rounds: no such setting"),
    ({"protocol": "sequential", "settings": {"history_rounds": -2}}, "settings.history_rounds: -2 is not possible"),
]


@pytest.mark.parametrize(("change", "says"), BAD)
def test_an_impossible_value_is_named(change, says):
    with pytest.raises(UserError) as error:
        load(json.dumps(LINE | change), "file.jsonl, line 3")
    assert str(error.value).startswith("file.jsonl, line 3, ")
    assert says in str(error.value)


@pytest.mark.parametrize("name", list(LINE))
def test_a_missing_field_is_named(name):
    with pytest.raises(UserError, match=f"line 3, {name}: is missing"):
        load(json.dumps({key: value for key, value in LINE.items() if key != name}), "file.jsonl, line 3")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (json.dumps(LINE)[:-20].encode(), "the line is torn or not JSON"),
        (b"{", "the line is torn or not JSON"),
        (b"[1, 2]", "[1, 2] is not an object"),
        (b"null", "null is not an object"),
        (b'{"id": "\xff"}', "not UTF-8"),
        (b"[" * 100_000, "can't be read as JSON"),
        (b'{"agents": ' + b"9" * 5000 + b"}", "can't be read as JSON"),
        (b'{"agents": NaN, "protocol": "parallel"}', "agents: NaN is not possible"),
    ],
)
def test_a_torn_or_foreign_line_is_named(tmp_path: Path, line, says):
    path = tmp_path / "debates.jsonl"
    path.write_bytes(json.dumps(LINE).encode() + b"\n\n" + line + b"\n")
    with pytest.raises(UserError) as error:
        list(read_file(path))
    assert str(error.value).startswith(f"{path}, line 3")
    assert says in str(error.value)


def test_files_that_are_not_there(tmp_path: Path):
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(UserError, match="can't be read"):
            list(read_file(path))
    (tmp_path / "bom.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(LINE).encode())
    assert [debate.id for debate in read_file(tmp_path / "bom.jsonl")] == ["x"]


@pytest.mark.parametrize(
    "make", [lambda: Parallel(agents=0), lambda: Sequential(max_rounds=0), lambda: Sequential(history_rounds=-2)]
)
def test_impossible_protocols_are_refused(make):
    with pytest.raises(UserError, match="is not possible"):
        make()
