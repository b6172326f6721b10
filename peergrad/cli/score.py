"""The command ``peergrad score``."""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import tyro

from peergrad.cli.flags import Flag, Inline
from peergrad.debate.errors import UserError
from peergrad.debate.transcript import read_file
from peergrad.learn.advantages import Center, Values, advantages
from peergrad.reward.rewards import RewardRules, Scored, score
from peergrad.reward.tally import Vote

_COUNTS = ("self_votes", "malformed", "repeated", "contradictory", "missing", "parse_errors")


def command(
    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE")],
    /,
    rules: Annotated[RewardRules, Inline] = RewardRules(),  # noqa: B008 (frozen)
    center: Center = "group",
    json: Flag = False,
) -> None:
    """Score the debates of transcript files: valid votes, rewards and advantages.

    Args:
        files: Transcript files, one debate per line (docs/reference/transcript.md). Together they are one batch.
        rules: How votes become reward.
        center: What the baseline is a mean over: one debate, the whole batch, or one seat across the batch.
        json: Print one JSON object instead of tables.
    """
    if not files:
        raise UserError("FILE: is missing; give at least one transcript file")
    batch = [score(debate, rules) for path in files for debate in read_file(path)]
    centred = advantages(batch, center=center)
    if json:
        print(json_module.dumps({"debates": [_as_object(*one) for one in zip(batch, centred, strict=True)]}))
    else:
        from peergrad.terminal.tables import print_scores  # brings rich, which --json does not need

        print_scores(batch, centred)


def _as_object(scored: Scored, advantages: Sequence[Values]) -> dict[str, Any]:
    """One debate's votes, counts and streams; a unit without signal is null."""
    return {
        "id": scored.debate.id,
        "votes": [_vote(vote) for vote in scored.tally.votes],
        "counts": {name: getattr(scored.tally.counts, name) for name in _COUNTS},
        "streams": [
            {"name": stream.name, "unit": stream.unit, "values": stream.values, "advantages": values}
            for stream, values in zip(scored.streams, advantages, strict=True)
        ],
    }


def _vote(vote: Vote) -> dict[str, Any]:
    """A vote; how strong it is only of a soft one."""
    line = asdict(vote) | {"judged": vote.judged or (None, None)}
    return {name: value for name, value in line.items() if name != "strength" or value != 1}
