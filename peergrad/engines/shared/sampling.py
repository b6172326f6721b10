"""What every engine does alike: the seed of an ask, the text of sampled tokens, and what a server may not do."""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import itertools
from collections.abc import Sequence

from peergrad.debate.errors import UserError
from peergrad.debate.types import Ask


def seed_name(ask: Ask, seed: int) -> str:
    """What the random numbers of an ask follow from: the same for the same ask, whoever else is being sampled."""
    return f"{seed}\n{ask.debate}\n{ask.agent}\n{ask.turn}"


def seed_of(ask: Ask, seed: int) -> int:
    """The same as a number. Not all servers take more than 31 bits."""
    name = seed_name(ask, seed).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=4).digest(), "big") >> 1


def no_logprobs(server: str, why: str = "") -> UserError:
    """What to say where a server can't tell how likely words are, which soft votes are made of."""
    return UserError(f"ballot_form: {server} gives no log-probabilities{why}; take verdicts, ranking or pairs")


def decode(pieces: Sequence[bytes]) -> tuple[str, list[int]]:
    """The text of a reply from its tokens' bytes, and where each token starts in the text's UTF-8 bytes (SPEC 6.5).

    Tokens may cut characters; bytes that are no character become U+FFFD and the starts follow the text, not the bytes.

    Example: ``decode([b"a", b"\\xc3", b"\\xa9"]) == ("aé", [0, 1, 2])``
    """
    whole = b"".join(pieces)
    with contextlib.suppress(UnicodeDecodeError):  # nearly always the bytes are text, and starts are theirs
        return whole.decode("utf-8"), [0, *itertools.accumulate(map(len, pieces))][: len(pieces)]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text: list[str] = []
    starts: list[int] = []
    length = 0
    for piece in pieces:
        pending = decoder.getstate()[0]
        # A character begun by earlier tokens and not continued by this one turns into U+FFFD.
        broken = piece and not 0x80 <= piece[0] < 0xC0
        starts.append(length + len(pending.decode("utf-8", "replace").encode() if broken else pending))
        text.append(decoder.decode(piece))
        length += len(text[-1].encode("utf-8"))
    text.append(decoder.decode(b"", final=True))
    length += len(text[-1].encode("utf-8"))
    for index in reversed(range(len(pieces))):  # what has no text and comes last starts at the very end
        if pieces[index]:
            break
        starts[index] = length
    return "".join(text), starts
