"""A metric and an alarm of one's own: plain functions, of the debates of a step and of what was measured so far.

peergrad train --preset demo-parallel --metrics my_metrics:vote_length --alarms my_metrics:too_long    # in the folder of this file
"""

from __future__ import annotations

from peergrad.learn.train import Step
from peergrad.measure.alarms import Alarm, History
from peergrad.measure.metrics import DebateBatch


def vote_length(batch: DebateBatch) -> dict[str, float]:
    """How long the sections are that hold the votes, in characters; nothing where no reply can be read."""
    turns = [turn for scored in batch.scored for turn in scored.debate.turns if not turn.parsed.error]
    lengths = [len(turn.section("comparison")) for turn in turns]
    return {"votes/length": sum(lengths) / len(lengths)} if lengths else {}


def too_long(history: History, step: Step) -> Alarm | None:
    """Votes have become three times as long as they were in the first step that had some."""
    lengths = [line["votes/length"] for line in history if line.get("votes/length")]
    if not lengths or lengths[-1] < 3 * lengths[0]:
        return None
    return Alarm(
        "votes too long",
        f"sections with votes have {lengths[-1]:.0f} characters, from {lengths[0]:.0f} in the beginning",
        "Read some debates; a lower learning rate may help.",
        tuple(scored.debate.id for scored in step.scored[:3]),
    )
