"""The kernels use as many threads as torch is set to."""

import torch

from laconic.kernels.compile import use_threads


def use_torch_threads(num_elements: int) -> int:
    """Makes the next kernel use torch's number of threads, or one if it has little to do; returns the number.

    Args:
        num_elements: numbers that the kernel reads.
    """
    wanted = torch.get_num_threads()
    chosen = use_threads(wanted, num_elements)
    if torch.get_num_threads() != wanted:
        # Numba's threads start with its first kernel, and that sets OpenMP's number for torch too, once.
        torch.set_num_threads(wanted)
    return chosen
