"""Prompts and numbers are what they were: a change to either is a decision, not an accident."""

import json

from peergrad import dump, read_file
from tests.golden.make import SCORES, TRANSCRIPTS, as_text, scores, transcripts


def test_prompts_and_replies_are_as_recorded():
    assert transcripts() == TRANSCRIPTS.read_text(encoding="utf-8")


def test_recorded_transcripts_load_without_loss():
    lines = TRANSCRIPTS.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    assert [dump(debate) for debate in read_file(TRANSCRIPTS)] == lines


def test_scores_are_as_recorded():
    golden = json.loads(SCORES.read_text(encoding="utf-8"))
    assert json.loads(as_text(scores())) == golden
    assert len(golden) == 7
    assert all(len(by_rule) == 24 for by_rule in golden.values())
