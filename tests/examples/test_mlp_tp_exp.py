"""The small example on real processes, however they are started, and its mistakes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tinyexp.examples.mlp_tp_exp import MlpTpExp
from tinyexp.experiment import entry
from tinyexp.launch.rendezvous import LOOPBACK, listen

MODULE = "tinyexp.examples.mlp_tp_exp"
COMMAND = (sys.executable, "-m", MODULE)
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", MODULE)
LINES_OF_TWO = """\
2 ranks, cpu; rank 0 holds
  fc1.weight  Shard(dim=0)  (512, 1024) of (1024, 1024)
  fc1.bias    Shard(dim=0)  (512,) of (1024,)
  fc2.weight  Shard(dim=1)  (1024, 512) of (1024, 1024)
  fc2.bias    Replicate()   (1024,) of (1024,)
"""


def start(*command: str, folder: Path, **variables: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"} | variables
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)


def output_of(*command: str, folder: Path) -> str:
    process = start(*command, folder=folder)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert list(folder.iterdir()) == []
    return output


def check_output(output: str, *, sent_bytes: str = "262,144") -> None:
    """One collective a step, the losses of one process, and weights that are its weights."""
    steps = re.findall(r"^step \d: loss (\S+), one process (\S+); (.+)$", output, re.MULTILINE)
    assert [collectives for _, _, collectives in steps] == [f"1 all-reduce ({sent_bytes} bytes sent)"] * 3
    assert all(float(loss) == pytest.approx(float(whole), abs=2e-6) for loss, whole, _ in steps)
    assert float(steps[-1][0]) < float(steps[0][0]) / 1.5
    assert re.search(
        r"^gather: the shards as whole weights are those of one process within \d+e-1[5-9] of the largest$", output, re.MULTILINE
    )
    assert re.search(r"^scatter: the weights of one process as shards are the model's within ", output, re.MULTILINE)


def test_two_ranks_of_this_command_share_the_layers_and_train_as_one_process(tmp_path):
    output = output_of(*COMMAND, "launcher=local", folder=tmp_path)
    assert output.startswith(LINES_OF_TWO)
    check_output(output)


def test_four_ranks_hold_a_quarter_each(tmp_path):
    output = output_of(*COMMAND, "launcher=local", "ray_cfg.ray_num_worker=4", folder=tmp_path)
    assert "  fc1.weight  Shard(dim=0)  (256, 1024) of (1024, 1024)\n" in output
    assert "  fc2.weight  Shard(dim=1)  (1024, 256) of (1024, 1024)\n" in output
    check_output(output, sent_bytes="393,216")


def test_steps_in_which_weights_grow_are_no_false_alarm(tmp_path):
    output = output_of(*COMMAND, "launcher=local", "hidden_size=64", "steps=8", folder=tmp_path)
    assert re.search(r"^gather: .* within \d+e-1\d of the largest$", output, re.MULTILINE)


def test_training_that_diverges_is_said_as_such(tmp_path):
    process = start(*COMMAND, "launcher=local", "hidden_size=64", "lr=100", "steps=30", folder=tmp_path)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 6
    assert " of 2: training diverges: after 30 steps the weights of one process are not finite" in errors
    assert "set a smaller lr" in errors
    assert "those of one process, allowed" not in errors


def test_torchrun_starts_it(tmp_path):
    output = output_of(*TORCHRUN, folder=tmp_path)
    assert output.startswith(LINES_OF_TWO)
    check_output(output)


@pytest.mark.ray
def test_ray_starts_it(tmp_path):
    output = output_of(*COMMAND, folder=tmp_path)
    assert output.startswith(LINES_OF_TWO)
    check_output(output)


def test_four_variables_set_by_hand_start_it(tmp_path):
    with listen(LOOPBACK) as probe:
        port = probe.getsockname()[1]
    address = {"WORLD_SIZE": "2", "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)}
    ranks = [start(*COMMAND, folder=tmp_path, RANK=str(rank), **address) for rank in range(2)]
    (output, errors), (nothing, _) = (rank.communicate(timeout=120) for rank in ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    assert output.startswith(LINES_OF_TWO)
    check_output(output)
    assert nothing == ""


def test_a_rank_that_never_comes_is_named(tmp_path):
    with listen(LOOPBACK) as probe:
        port = probe.getsockname()[1]
    address = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)}
    alone = start(*COMMAND, "timeout_s=1", folder=tmp_path, **address)
    _, errors = alone.communicate(timeout=120)
    assert alone.returncode == 5
    assert f"rank 1 of 2 did not come to MASTER_ADDR:MASTER_PORT=127.0.0.1:{port} within timeout_s=1; start one" in errors
    assert "Traceback" not in errors


MISTAKES = {
    "a size that does not divide": (
        ["hidden_size=1023"],
        ["fc1: 1023 output features are not equal parts on 2 ranks; use 3, 11"],
    ),
    "one process": (["ray_cfg.ray_num_worker=1"], ["one process has nothing to share; set ray_cfg.ray_num_worker=2"]),
    "sizes below 1": (
        ["hidden_size=0", "steps=-1", "lr=nan"],
        ["hidden_size=0: a number from 1", "steps=-1: a number", "lr=nan"],
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_in_one_message_before_any_process_starts(name, monkeypatch, capsys):
    arguments, parts = MISTAKES[name]
    for launcher in ("run_ray", "run_local", "run_external"):
        monkeypatch.setattr(entry, launcher, lambda *_, **__: pytest.fail("a process was started"))
    assert entry.run_command(MlpTpExp, arguments) == 2
    message = capsys.readouterr().err
    assert message.count("error: ") == 1
    for part in parts:
        assert part in message


def test_weights_that_are_not_those_of_one_process_end_the_run(tmp_path):
    spoilt = (
        "import torch.distributed.tensor as tensor\n"
        "from tinyexp.examples import mlp_tp_exp\n"
        "mlp_tp_exp.build_plan = lambda: {'fc1': mlp_tp_exp.ColwiseParallel(),\n"
        "    'fc2': mlp_tp_exp.RowwiseParallel(output_layouts=tensor.Partial(), use_local_output=True)}\n"
        "mlp_tp_exp.store_and_run_exp(mlp_tp_exp.MlpTpExp, ['launcher=local'])\n"
    )
    process = start(sys.executable, "-c", spoilt, folder=tmp_path)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1, errors
    assert re.search(r"of 2: weights are \d+e(-0\d|\+\d+) of the largest from one process, allowed is 7e-12", errors)
