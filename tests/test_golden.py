"""Prompts and numbers are what they were: a change to either is a decision, not an accident."""

import json

from peergrad import dump, load, read_file
from tests.golden.make import (
    BEFORE,
    BEFORE_RULES,
    BEFORE_SCORES,
    DEBATES,
    RULES,
    SCORES,
    TRANSCRIPTS,
    as_text,
    scores,
    transcripts,
)


def test_prompts_and_replies_are_as_recorded():
    assert transcripts() == TRANSCRIPTS.read_text(encoding="utf-8")


def test_recorded_transcripts_load_without_loss():
    lines = TRANSCRIPTS.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    assert [dump(debate) for debate in read_file(TRANSCRIPTS)] == lines


def test_scores_are_as_recorded():
    golden = json.loads(SCORES.read_text(encoding="utf-8"))
    assert json.loads(as_text(scores())) == golden
    assert len(golden) == 2 + len(DEBATES)
    assert all(len(by_rule) == len(RULES) for by_rule in golden.values())


def test_transcripts_from_before_there_were_these_options_mean_what_they_did():
    debates = list(read_file(BEFORE))
    assert len(debates) == 5
    for debate in debates:
        assert (debate.protocol.reading, debate.protocol.order_shown) == ("strict", "seat")
        assert load(dump(debate)) == debate
        assert all(turn.asked and not turn.parsed.tolerated for turn in debate.turns)
    assert any(turn.parsed.error for debate in debates for turn in debate.turns)
    golden = json.loads(BEFORE_SCORES.read_text(encoding="utf-8"))
    assert json.loads(as_text(scores(BEFORE, BEFORE_RULES))) == golden
