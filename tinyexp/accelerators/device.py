"""Which device a rank computes on."""

import torch

from tinyexp.errors import MachineError
from tinyexp.process import Environment


def take_device(environment: Environment, *, asked: str) -> torch.device:
    """This rank's own CUDA device, which becomes the current one of the process, or the CPU.

    `asked` is auto, cpu or cuda. Without the current device set, every rank of a node would compute on its first GPU.
    Raises: MachineError where the node has fewer devices than ranks.
    """
    num_devices = torch.cuda.device_count()
    if asked == "cpu" or (asked == "auto" and num_devices == 0):
        return torch.device("cpu")
    index = 0 if environment.owns_devices else environment.local.rank
    if index >= num_devices:
        raise MachineError(
            f"device={asked}: {environment.local.size} ranks on this node ask for a CUDA device each, "
            f"{num_devices} available; use fewer processes, or ray_cfg.ray_num_gpus_per_worker=0.0 for the CPU"
        )
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device
