import os

import torch

# Set deliberately: more threads than cores cost a factor of ten.
torch.set_num_threads(min(2, os.cpu_count() or 1))
