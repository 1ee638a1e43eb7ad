"""Who reads which images, and who draws which random numbers: cases A07 and A08."""

from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
import torch
from timm.layers.drop import DropPath
from torch import Tensor

from tests.conftest import write_toy_split
from tests.helpers.ranks import build_accelerator, run_on_ranks
from tinyexp.accelerators.base import Accelerator
from tinyexp.accelerators.cpu import CPUAccelerator
from tinyexp.data.batches import PaddedBatches
from tinyexp.data.decoding import decode_rgb
from tinyexp.data.loaders import DataLoaderCfg
from tinyexp.data.sharing import Share
from tinyexp.examples.vit_tp_exp import VitTpExp
from tinyexp.models.vit.build import ModuleCfg
from tinyexp.training.epoch import train_step

LAYOUTS = ["sharded", "replicated"]


def digits_model(drop_path_rate: float) -> VitTpExp:
    return VitTpExp(
        exp_name="replicas",
        module_cfg=ModuleCfg("deit_digits_patch8_32", img_size=32, num_classes=10, drop_path_rate=drop_path_rate),
    )


def random_batches(replica_rank: int, steps: int = 5) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(replica_rank)
    return [(torch.randn(4, 3, 32, 32, generator=generator), torch.randint(10, (4,), generator=generator)) for _ in range(steps)]


@dataclass
class Trained:
    losses: list[float]
    replicated_before: dict[str, Tensor]
    replicated_after: dict[str, Tensor]
    masks: list[tuple[bool, ...]]
    ratios: list[float]


def five_mixed_steps(accelerator: Accelerator, drop_path_rate: float) -> Trained:
    torch.set_num_threads(1)
    experiment = digits_model(drop_path_rate)
    state = experiment.build_state(accelerator)
    mixer, criterion = experiment.loss_cfg.build(10)
    assert mixer is not None
    masks: list[tuple[bool, ...]] = []
    for module in accelerator.model.modules():
        if isinstance(module, DropPath):
            module.register_forward_hook(lambda _, __, out: masks.append(tuple((out.flatten(1) != 0).any(1).tolist())))
    parameters = accelerator.parameters
    names = parameters.by_name.keys() - parameters.cuts.keys()

    def replicated() -> dict[str, Tensor]:
        return {name: parameters.by_name[name].detach().clone() for name in names}

    before, losses, ratios = replicated(), [], []
    for images, classes in random_batches(accelerator.replica.rank):
        accelerator.training_model.train()
        mixed, targets = mixer(images.clone(), classes)
        ratios.append(targets.max().item())
        losses.append(train_step(state, mixed, targets, criterion=criterion))
    return Trained(losses, before, replicated(), masks, ratios)


def on_mesh(settings: dict[str, object], drop_path_rate: float) -> Trained:
    return five_mixed_steps(build_accelerator(**settings), drop_path_rate)


@pytest.mark.parametrize("activations", LAYOUTS)
def test_replicated_parameters_stay_bit_equal_over_a_tp_group(activations):  # A07 (a)
    first, second = run_on_ranks(on_mesh, 2, {"activations": activations}, 0.1)
    for one, other in (
        (first.replicated_before, second.replicated_before),
        (first.replicated_after, second.replicated_after),
    ):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(first.replicated_before["head.weight"], first.replicated_after["head.weight"])


def test_a_replicated_group_draws_the_drop_paths_of_one_process():  # A07 (b)
    expected = five_mixed_steps(CPUAccelerator(), 0.5)
    assert any(not all(mask) for mask in expected.masks)
    for found in run_on_ranks(on_mesh, 2, {"activations": "replicated"}, 0.5):
        assert found.masks == expected.masks
        assert found.losses == pytest.approx(expected.losses, abs=1e-5)


def test_sharded_tp_2_draws_and_loses_what_ddp_2_does_and_replicas_differ():  # A07 (c)
    sharded = run_on_ranks(on_mesh, 2, {"activations": "sharded"}, 0.5)
    ddp = run_on_ranks(on_mesh, 2, {"accelerator": "ddp"}, 0.5)
    for ours, theirs in zip(sharded, ddp, strict=True):
        assert ours.masks == theirs.masks
        assert ours.ratios == theirs.ratios
        assert ours.losses == pytest.approx(theirs.losses, abs=1e-5)
    assert sharded[0].masks != sharded[1].masks
    assert sharded[0].ratios != sharded[1].ratios
    for name, value in ddp[0].replicated_before.items():
        assert torch.equal(value, ddp[1].replicated_before[name])


def epoch_of_names(settings: dict[str, object], toy_set: Path) -> tuple[list[str], int, float, int]:
    accelerator = build_accelerator(**settings)
    experiment = VitTpExp(
        exp_name="replicas",
        module_cfg=ModuleCfg(depth=2, img_size=64, num_classes=4),
        dataloader_cfg=DataLoaderCfg(
            data_root=str(toy_set), input_size=64, train_batch_size_per_device=8, num_workers=0, repeated_aug=False
        ),
    )
    experiment.lr_scheduler_cfg.warmup_epochs = 0
    state = experiment.build_state(accelerator)
    loader = experiment.dataloader_cfg.build_train(accelerator.replica, num_classes=4, seed=0, device_type="cpu")
    loader.start_epoch(0)
    names = [loader.dataset.images.files.name(key.index) for key in loader.sampler]  # pyright: ignore[reportAttributeAccessIssue]
    return names, len(loader), state.lr, 8 * accelerator.replica.size


def test_a_replicated_group_reads_every_image_once_in_one_order(toy_set):  # A08
    first, second = run_on_ranks(epoch_of_names, 2, {"activations": "replicated"}, toy_set)
    assert first == second
    names, steps, lr, global_batch = first
    assert len(set(names)) == len(names) == 64
    assert (steps, global_batch) == (8, 8)
    assert lr == 7.8125e-06


def test_sharded_tp_2_and_ddp_2_read_the_same_disjoint_halves(toy_set):  # A08
    sharded = run_on_ranks(epoch_of_names, 2, {"activations": "sharded"}, toy_set)
    ddp = run_on_ranks(epoch_of_names, 2, {"accelerator": "ddp"}, toy_set)
    assert sharded == ddp
    (first, steps, lr, global_batch), (second, *_) = sharded
    assert set(first).isdisjoint(second)
    assert len(set(first) | set(second)) == 64
    assert (steps, global_batch) == (4, 16)
    assert lr == 1.5625e-05


@dataclass
class Read:
    train: list[tuple[Tensor, Tensor]]
    val: list[tuple[Tensor, Tensor]]
    decoded: int


def batches_of(accelerator: Accelerator, root: Path, batch: int) -> Read:
    """Two epochs of training, the second from its second batch on, and the validation set, with damaged images left out."""
    decoded = []
    cfg = DataLoaderCfg(
        data_root=str(root),
        input_size=32,
        train_batch_size_per_device=batch,
        val_batch_size_per_device=batch,
        num_workers=0,
        on_bad_image="skip",
        auto_augment="",
        repeated_aug=False,
    )
    replica, share = accelerator.replica, Share(accelerator.readers, accelerator.gather_rows)
    with mock.patch("tinyexp.data.images.decode_rgb", lambda *a, **k: decoded.append(k["path"]) or decode_rgb(*a, **k)):
        loader = cfg.build_train(replica, num_classes=2, seed=3, device_type="cpu", share=share)
        loader.start_epoch(0)
        train = list(loader)
        loader.start_epoch(1, first_batch=1)
        train += list(loader)
        val = list(PaddedBatches(cfg.build_val(replica, num_classes=2, device_type="cpu", share=share)))
    return Read(train, val, len(decoded))


def batches_on_mesh(root: Path, batches: tuple[int, ...]) -> list[Read]:
    torch.set_num_threads(1)
    accelerator = build_accelerator(activations="replicated")
    return [batches_of(accelerator, root, batch) for batch in batches]


@pytest.fixture(scope="module")
def small_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("small")
    write_toy_split(root / "train", (10, 9), side=32)
    write_toy_split(root / "val", (3, 4), side=32, seed=1)
    for damaged in ("train/c0/3.JPEG", "val/c1/2.JPEG"):
        (root / damaged).write_bytes(b"")
    return root


@pytest.mark.parametrize(("size", "batches"), [(2, (4, 5, 1)), (3, (4,))])
def test_a_replicated_group_decodes_each_image_once_and_gets_the_batches_of_one_process(small_set, size, batches):
    found = run_on_ranks(batches_on_mesh, size, small_set, batches)
    for number, batch in enumerate(batches):
        want = batches_of(CPUAccelerator(), small_set, batch)
        for rank in found:
            for ours, theirs in ((rank[number].train, want.train), (rank[number].val, want.val)):
                assert len(ours) == len(theirs)
                for (images, classes), (other_images, other_classes) in zip(ours, theirs, strict=True):
                    assert torch.equal(images, other_images)
                    assert torch.equal(classes, other_classes)
        together = sum(rank[number].decoded for rank in found)
        assert together == want.decoded * (1 if batch >= size else size)  # a batch smaller than the group is read by each
