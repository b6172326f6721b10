"""The things that can go wrong and are not our bug (a model's bad reply is neither: it is data on the turn)."""


class UserError(Exception):
    """A person's input can't be used. The message says what, where, and what would be right; exit code 2."""


class EngineError(Exception):
    """The world failed an ask (time-out, connection, memory). Its debate is dropped whole, counted, never rewarded."""


class Halted(EngineError):  # noqa: N818 (nothing is broken)
    """Nobody will answer any more: a budget or a credit is spent, or a service is gone. What is done is kept, and what is
    not can be played another time.
    """
