"""The moving average after 50 steps, and what it costs the step in collectives."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tests.golden.experiment import experiment_of, recorded_world
from tests.golden.jobs import Job
from tests.golden.record import forward_batch
from tests.golden.recorder import Recorder
from tinyexp.parallel.report import TrafficCounter
from tinyexp.training.epoch import train_step
from tinyexp.training.state import TrainState

STEPS = 50
COMMAND = ["--model", "golden_nano", "--input-size", "32", "--batch-size", "8", "--epochs", "8", "--lr", "8e-3"]
COMMAND += ["--warmup-epochs", "0", "--num_workers", "0", "--drop-path", "0.1"]


@dataclass
class Averaged:
    """What one rank found."""

    averages: dict[str, dict[str, Tensor]]  # whole tensors by decay and name
    moved: float  # how far the weights are from the fast average at most
    collectives: dict[str, int]  # of a step with an average
    collectives_without: dict[str, int]


@dataclass(frozen=True)
class AverageCase(Job):
    """50 steps of the recipe in float32 on a tiny model."""

    def run(self, folder: Path) -> Averaged:
        accelerator = self.mesh.build("f32")
        experiment = experiment_of(COMMAND, output_root=folder)
        experiment.max_train_steps = STEPS
        recorder = Recorder(experiment)
        with recorded_world(), recorder.watching():
            experiment.train(accelerator)
        assert recorder.state is not None and recorder.state.step == STEPS
        whole = {name: accelerator.whole_like_weights(average.average) for name, average in recorder.averages.items()}
        # On a CPU a whole tensor may be the live one, which the steps below move on.
        averages = {name: {key: value.clone() for key, value in average.items()} for name, average in whole.items()}
        weights = accelerator.whole_weights()
        moved = max((weights[key] - value).abs().max().item() for key, value in averages["ema0.9"].items())
        with_average = _collectives_of_a_step(recorder.state)
        recorder.state.ema = None
        return Averaged(
            averages=averages,
            moved=moved,
            collectives=with_average,
            collectives_without=_collectives_of_a_step(recorder.state),
        )

    def __str__(self) -> str:
        return self.mesh.name


def _collectives_of_a_step(state: TrainState) -> dict[str, int]:
    images, classes = forward_batch("golden_small")
    with TrafficCounter() as counter:
        train_step(state, images.to(state.accelerator.dtype), classes, criterion=torch.nn.CrossEntropyLoss())
    return {line.kind: line.calls for line in counter.traffic}
