"""peergrad: train one language model by self-play debate, with the debaters' votes as the only reward."""

from peergrad.config import TrainConfig, preset, with_protocol
from peergrad.debate.ballot import Ballot
from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.play import Played, play, play_all
from peergrad.debate.protocol import BaseProtocol
from peergrad.debate.protocols import Direct, Parallel, Sequential
from peergrad.debate.question import Question, Style, last_boxed
from peergrad.debate.quote import quote
from peergrad.debate.sampler import Batcher, Seats
from peergrad.debate.transcript import dump, load, read_file
from peergrad.debate.types import Ask, Contract, Debate, Message, Parsed, Reply, Turn
from peergrad.engines.scripted import Scripted
from peergrad.learn.data import advantages, credit, datums
from peergrad.reward.rewards import RewardRules, Scored, Truth, score
from peergrad.reward.streams import Stream
from peergrad.reward.tally import Tally, Vote
from peergrad.runs.folder import Run
from peergrad.runs.training import train_run
from peergrad.tasks.base import UNANSWERED, Grade, Questions, Task
from peergrad.tasks.pool import Pool

__version__ = "0.1.0"

__all__ = [
    "UNANSWERED", "Ask", "Ballot", "BaseProtocol", "Batcher", "Contract", "Debate", "Direct", "EngineError", "Grade",
    "Message", "Parallel", "Parsed", "Played", "Pool", "Question", "Questions", "Reply", "RewardRules", "Run", "Scored",
    "Scripted", "Seats", "Sequential", "Stream", "Style", "Tally", "Task", "TrainConfig", "Truth", "Turn", "UserError",
    "Vote", "advantages", "credit", "datums", "dump", "last_boxed", "load", "play", "play_all", "preset", "quote",
    "read_file", "score", "train_run", "with_protocol"
]  # fmt: skip
