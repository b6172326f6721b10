"""A tokenizer and its chat template: messages to tokens, and tokens to text with byte offsets.

A conversation is never rendered twice. The prompt after an agent's own reply is the prompt and reply it was sampled with,
token by token, and then what the template puts after an assistant's words (SPEC 3.7). So no template can drop or rewrite
what was said. The words inside messages are text: special tokens in them stay text (SPEC 3.8).

To that end the tokenizer is copied and made blind to its own special tokens; those of the template are replaced by marks
that nobody can write. So it treats the text around them as it always does: blanks, first words, all of it.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer

from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.types import Ids, Message, Tokens
from peergrad.engines.base import decode, first_line
from peergrad.engines.shared.template_worker import HOLE
from peergrad.engines.shared.templates import Template, template_of

_HOLES = re.compile("\ue000(\\d+)\ue001")


def load_chat(name: str) -> Chat:
    """The tokenizer of a Hugging Face folder or hub id, and the tokens that end a reply. Needs no torch and no weights."""
    from transformers import AutoTokenizer
    from transformers.utils.hub import cached_file

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        listed = cached_file(name, "generation_config.json", _raise_exceptions_for_missing_entries=False)
    except Exception as error:  # no such model, files missing or damaged, no network, …: each raises in its own way
        raise UserError(f"model: transformers can't load the tokenizer of {name!r} ({why_not_loaded(error)})") from None
    return Chat(tokenizer, _listed_ends(Path(listed)) if listed else ())


def why_not_loaded(error: Exception) -> str:
    """Why transformers could not load something, as part of a sentence."""
    own_code = "trust_remote_code" in str(error)
    return "it needs Python code that it brings along, auto_map, which is never run" if own_code else first_line(error)


def _listed_ends(path: Path) -> list[int]:
    try:
        ends = json.loads(path.read_bytes()).get("eos_token_id")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"model: {path} can't be read ({error})") from None
    return [end for end in (ends if isinstance(ends, list) else [ends]) if isinstance(end, int) and 0 <= end < 2**31]


class Chat:
    """Turns messages into prompts and sampled tokens into text, for one tokenizer."""

    def __init__(self, tokenizer: Any, ends: Sequence[int] = ()) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise UserError("model: its tokenizer has no chat template; use an instruction-tuned model")
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        self._special = {str(token): id for id, token in added.items() if token.special}
        self._special_in = _any_of(self._special)
        words = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)
        # <think> and the like are no words either. Runs of blanks are, and so is what was there when words were learned.
        markup = {str(t): id for id, t in added.items() if str(t) not in words and str(t).strip()} | self._special
        self._markup, self._markup_in = markup, _any_of(markup)
        self._plain = _blind(tokenizer.backend_tokenizer, markup)
        strips = {str(token): (token.lstrip, token.rstrip) for token in added.values()}
        marks = {sides: f"\ue002{secrets.token_hex(8)}" for sides in {(False, False), *strips.values()}}
        self._plain.add_tokens(
            [AddedToken(mark, lstrip=left, rstrip=right, normalized=False) for (left, right), mark in marks.items()]
        )
        self._mark = {name: marks[strips[name]] for name in markup} | {"": marks[False, False]}
        self._mark_ids = {self._plain.token_to_id(mark) for mark in marks.values()}
        # A vocabulary of whole pieces has special tokens among them and finds them in text; they are spelled out instead.
        letters = {id: map(self._plain.token_to_id, name) for name, id in markup.items() if id != tokenizer.unk_token_id}
        self._spelled = {id: [letter for letter in spelling if letter is not None] for id, spelling in letters.items()}
        self._odd = self._mark_ids | self._spelled.keys()
        self._pieces = _pieces(tokenizer)
        self._template = _template(tokenizer)
        self._template.render(("system", "user"), True)
        after = self._after_hole(("user", "assistant"), 1, False)
        closing = self._special_in.match(after)
        own = [tokenizer.eos_token_id, self._special[closing[0]] if closing else None]
        self.ends = frozenset(id for id in (*ends, *own) if id is not None)
        self._end = [id for id in reversed(own) if id is not None][:1]  # as the template ends a turn

    def check_ids(self, vocabulary: int) -> None:
        """Refuse a tokenizer with words, ends of turns or marks of its template that a model of this size has no id for."""
        words = self._tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False).values()
        used = [*words, *self.ends, *self.prompt((Message("system", "."), Message("user", "."))).tolist()]
        if used and not 0 <= min(used) <= max(used) < vocabulary:
            raise UserError(f"model: its tokenizer has ids up to {max(used)}, the model {vocabulary} tokens; get it again")

    def prompt(self, messages: Sequence[Message]) -> Ids:
        """The tokens a reply to these messages is sampled after."""
        roles = [message.role for message in messages]
        last = max((i for i, message in enumerate(messages) if message.tokens is not None), default=None)
        if last is None:
            return np.array(self._encode(self._template.render(roles, True), messages), np.int32)
        tokens = messages[last].tokens
        assert tokens is not None
        after = self._after_hole(roles, last, True)
        closing, before = self._special_in.match(after), ""
        if closing and self._special[closing[0]] in self.ends and len(tokens.ids_T) and int(tokens.ids_T[-1]) in self.ends:
            after, before = after[closing.end() :], closing[0]  # the reply ended its turn itself
        new = np.array(self._encode(after, messages, before), np.int32)
        return np.concatenate((tokens.prompt_T, tokens.ids_T, new))

    def tokens(self, messages: Sequence[Message], text: str, temperature: float, *, ends: bool = False) -> Tokens:
        """Somebody else's words as the tokens of a reply to these messages, with log-probability 0.

        ``ends``: the reply ends its turn by itself, as one that no stop text ends.
        """
        prompt_T, ids = self.prompt(messages), self._encode(HOLE.format(0), [Message("assistant", text)], "")
        if ends:
            ids = [*ids, *self._end]
        return Tokens.of(prompt_T.tolist(), ids, [0.0] * len(ids), self.text(ids)[1], temperature)

    def first_tokens(self, options: Sequence[str]) -> list[int]:
        """The token that a reply of each option begins with. Raises ``EngineError`` if two begin with the same."""
        tokens = [int(self.tokens((Message("user", "."),), option, 1.0).ids_T[0]) for option in options]
        if len({*tokens}) < len(tokens):
            raise EngineError(f"the options {', '.join(options)} begin with the same token in this model's vocabulary")
        return tokens

    def text(self, ids: Sequence[int]) -> tuple[str, list[int]]:
        """The text of sampled tokens and where each starts in its bytes; a final end of turn has no text."""
        pieces = [self.piece(id) for id in ids]
        if ids and ids[-1] in self.ends:
            pieces[-1] = b""
        return decode(pieces)

    def piece(self, id: int) -> bytes:
        """The bytes a token stands for. A model may have more outputs than its tokenizer has tokens; those are empty."""
        return self._pieces[id] if id < len(self._pieces) else b""

    def _after_hole(self, roles: Sequence[str], index: int, generate: bool) -> str:
        """What the template puts after the words of a message. Templates that drop old turns are asked about newer ones."""
        for start in range(index + 1):
            rendered, hole = self._template.render(roles[start:], generate), HOLE.format(index - start)
            if hole in rendered:
                after = rendered.rpartition(hole)[2]
                return _HOLES.sub(lambda found, start=start: HOLE.format(int(found[1]) + start), after)
        raise UserError("model: its chat template drops what the assistant said, so a dialogue can't go on from it")

    def _encode(self, rendered: str, messages: Sequence[Message], before: str | None = None) -> list[int]:
        """Template text with its special tokens as tokens, and messages' words filled into the holes as plain text.

        ``before`` is the special token the text goes on from, empty for any other; None: this is the beginning.
        """
        marked: list[int] = []

        def mark(name: re.Match[str]) -> str:
            marked.append(self._markup[name[0]])
            return self._mark[name[0]]

        holes = _HOLES.split(rendered)  # template, index, template, index, …, template
        texts = [messages[int(part)].text if i % 2 else self._markup_in.sub(mark, part) for i, part in enumerate(holes)]
        start = "" if before is None else self._mark[before]
        # Half a surrogate pair is no text a tokenizer could take.
        clean = (start + "".join(texts)).encode("utf-8", "replace").decode("utf-8")
        ids = self._plain.encode(clean, add_special_tokens=False).ids[before is not None :]
        back, whole, last = iter(marked), list[int](), 0
        for place in [place for place, id in enumerate(ids) if id in self._odd]:
            id = ids[place]
            whole += ids[last:place]
            whole += [next(back)] if id in self._mark_ids else self._spelled[id]
            last = place + 1
        return whole + ids[last:]


def _template(tokenizer: Any) -> Template:
    try:
        text = tokenizer.get_chat_template()
    except ValueError as error:  # several, and none of them the usual one
        raise UserError(f"model: its tokenizer has no chat template to go by ({first_line(error)})") from None
    if not isinstance(text, str):
        raise UserError(f"model: its tokenizer's chat_template is no text but {type(text).__name__}; get the model again")
    names = tokenizer.special_tokens_map | {"enable_thinking": False}
    return template_of(text, json.dumps(names, default=str))


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    # Longest first, so that a token that begins with another is found whole.
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)")


def _blind(backend: Any, names: Collection[str]) -> Any:
    """A copy of a tokenizer for which these added tokens are text."""
    content = json.loads(backend.to_str())
    for token in content["added_tokens"]:
        token["special"] = token["content"] in names
    blind = Tokenizer.from_str(json.dumps(content))
    blind.encode_special_tokens = True
    blind.no_truncation()
    blind.no_padding()
    return blind


def _pieces(tokenizer: Any) -> list[bytes]:
    """The bytes each token stands for."""
    decoder = json.loads(tokenizer.backend_tokenizer.to_str())["decoder"]
    byte_level = "ByteLevel" in json.dumps(decoder)
    bytes_of = {char: byte for byte, char in _byte_characters().items()}
    added = {id: str(token).encode() for id, token in tokenizer.added_tokens_decoder.items()}
    pieces: list[bytes] = []
    for id, name in enumerate(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))):
        if id in added:
            pieces.append(added[id])
        elif name is None:
            pieces.append(b"")
        elif byte_level:
            pieces.append(bytes(bytes_of[char] for char in name if char in bytes_of))
        elif byte := re.fullmatch(r"<0x([0-9A-F]{2})>", name):
            pieces.append(bytes([int(byte[1], 16)]))
        else:
            pieces.append(name.replace("\u2581", " ").encode())
    return pieces


def _byte_characters() -> dict[int, str]:
    """The printable character that byte-level tokenizers write for each byte: itself, or one from 256 up."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    rest = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(rest)}
