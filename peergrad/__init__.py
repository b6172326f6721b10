"""peergrad: train one language model by self-play debate, with the debaters' votes as the only reward."""

from peergrad.config import TrainConfig, preset, with_protocol
from peergrad.debate.errors import EngineError, UserError
from peergrad.debate.play import Played, play, play_all
from peergrad.debate.protocol import BaseProtocol
from peergrad.debate.protocols import Parallel, Sequential
from peergrad.debate.sampler import Batcher, Seats
from peergrad.debate.transcript import dump, load, read_file
from peergrad.debate.types import Debate, Question
from peergrad.engines.scripted import Scripted
from peergrad.learn.advantages import advantages
from peergrad.learn.data import credit, datums
from peergrad.reward.rewards import RewardRules, score
from peergrad.runs.folder import Run
from peergrad.runs.training import train_run

__version__ = "0.1.0"

__all__ = [
    "BaseProtocol", "Batcher", "Debate", "EngineError", "Parallel", "Played", "Question", "RewardRules", "Run",
    "Scripted", "Seats", "Sequential", "TrainConfig", "UserError", "advantages", "credit", "datums", "dump", "load",
    "play", "play_all", "preset", "read_file", "score", "train_run", "with_protocol"
]  # fmt: skip
