"""The seed of an ask: every engine samples the same ask with the same random numbers each time."""

from __future__ import annotations

import hashlib

from peergrad.debate.types import Ask


def seed_name(ask: Ask, seed: int) -> str:
    """What the random numbers of an ask follow from: the same for the same ask, whoever else is being sampled."""
    return f"{seed}\n{ask.debate}\n{ask.agent}\n{ask.turn}"


def seed_of(ask: Ask, seed: int) -> int:
    """The same as a number. Not all servers take more than 31 bits."""
    name = seed_name(ask, seed).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=4).digest(), "big") >> 1
