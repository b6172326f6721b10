import os

import torch

# Set deliberately: more threads than cores cost a factor of ten.
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else min(2, os.cpu_count() or 1))
