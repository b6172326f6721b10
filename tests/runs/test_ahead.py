"""A run that samples ahead (``max_staleness``) and is killed ends with the same bytes as one that is not."""

import os
import signal

import pytest

from peergrad.runs.folder import Run
from tests.runs.killing import adapter, child, train, wait

AHEAD = ["--max-staleness", "1", "--warm-steps", "0", "--eval-questions", "0", "--eval-debates", "0", "--eval-every", "0"]


def killed_while_it_samples_ahead(out, log):
    """Train until step 2 is saved, and die there as if the batch of step 3, begun by the policy of step 1, were not done."""

    def work():
        real = Run.thin_checkpoints

        def thinned(self, *args):
            real(self, *args)
            if self.checkpoints()[-1].step == 2:
                for file in (self.path / "debates").glob("step_000003*"):
                    file.unlink()
                os.kill(os.getpid(), signal.SIGKILL)

        Run.thin_checkpoints = thinned
        return train(out, AHEAD)

    return wait(child(work, log))


@pytest.mark.slow
@pytest.mark.parametrize("older", ["there", "gone"])
def test_a_batch_sampled_ahead_is_sampled_again_by_the_policy_that_began_it(tmp_path, older):
    log = tmp_path / "log"
    assert wait(child(lambda: train(tmp_path / "whole", AHEAD), log)) == 0, log.read_text()
    assert killed_while_it_samples_ahead(tmp_path / "killed", log) == -signal.SIGKILL
    if older == "gone":  # as a run from before, which kept fewer
        (tmp_path / "killed" / "checkpoints" / "step_000001" / "state.json").unlink()
    assert wait(child(lambda: train(tmp_path / "killed", AHEAD), log)) == 0, log.read_text()
    assert (adapter(tmp_path / "killed") == adapter(tmp_path / "whole")) == (older == "there")
    assert ("is sampled by the policy of now" in " ".join(log.read_text().split())) == (older == "gone")
