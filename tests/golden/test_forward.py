"""One batch forwards and backwards, the optimizer's groups, and the models themselves."""

import numpy as np
import pytest
import torch

from tests.golden.bounds import BOUNDS, of_norms, of_sums
from tests.golden.forward import ForwardCase, GroupsCase, Passes
from tests.golden.record import FOLDER, load


def by_replica(found: list[Passes]) -> list[Passes]:
    """One rank of each replica."""
    first = {passes.replica: passes for passes in reversed(found)}
    return [first[replica] for replica in sorted(first)]


def test_logits_and_loss_are_the_official_ones(forward_case: ForwardCase, found_by, worst):
    recorded, bound = forward_case.recorded, BOUNDS[forward_case.dtype].logits
    replicas = by_replica(found_by(forward_case))
    logits = torch.cat([passes.logits for passes in replicas]).double()
    difference = (logits - torch.tensor(recorded["logits"], dtype=torch.float64)).abs().max().item()
    worst.check(forward_case.mesh.name, forward_case.dtype, f"{forward_case.model}: logits", difference, bound)
    difference = abs(sum(passes.loss for passes in replicas) / len(replicas) - recorded["loss"])
    worst.check(forward_case.mesh.name, forward_case.dtype, f"{forward_case.model}: loss", difference, bound)


def test_every_module_puts_out_the_official_activations(forward_case: ForwardCase, found_by, worst):
    if forward_case.mesh.replicas > 1:
        return  # the record has checksums of the whole batch, of which a replica sees a part
    mesh, dtype, bounds = forward_case.mesh.name, forward_case.dtype, BOUNDS[forward_case.dtype]
    for passes in found_by(forward_case):
        found = passes.activations
        recorded = {name: value for name, value in forward_case.recorded["activations"].items() if name in found}
        assert len(recorded) == (2 if forward_case.mesh.num_ranks > 1 else len(forward_case.recorded["activations"]))
        worst.check(mesh, dtype, f"{forward_case.model}: activations, relative", of_norms(found, recorded), bounds.norm)
        worst.check(mesh, dtype, f"{forward_case.model}: sums of activations", of_sums(found, recorded), bounds.sum)


def test_every_rank_has_the_official_gradients(forward_case: ForwardCase, found_by, worst):
    mesh, dtype, bounds = forward_case.mesh.name, forward_case.dtype, BOUNDS[forward_case.dtype]
    for passes in found_by(forward_case):
        found, recorded = passes.gradients, forward_case.recorded["grads"]
        worst.check(mesh, dtype, f"{forward_case.model}: gradients, relative", of_norms(found, recorded), bounds.gradients)
        worst.check(mesh, dtype, f"{forward_case.model}: sums of gradients", of_sums(found, recorded), bounds.sum)
        difference = abs(passes.gradient_norm / forward_case.recorded["grad_total_l2"] - 1)
        worst.check(mesh, dtype, f"{forward_case.model}: whole gradient, relative", difference, bounds.gradient_norm)


def test_every_number_of_the_small_gradients_is_the_official_one(forward_case: ForwardCase, found_by, worst):
    if forward_case.model != "golden_small":
        return  # of the larger model the record has checksums only
    official = {name: torch.from_numpy(value) for name, value in np.load(FOLDER / "forward_grads_small_f64.npz").items()}
    for passes in found_by(forward_case):
        assert passes.small_gradients.keys() == official.keys()
        for name, value in official.items():
            difference = passes.small_gradients[name].double() - value
            far = difference.abs().max() if forward_case.dtype == "f64" else difference.norm() / value.norm()
            worst.check(
                forward_case.mesh.name,
                forward_case.dtype,
                f"golden_small: a gradient, {'absolute' if forward_case.dtype == 'f64' else 'relative'}",
                far.item(),
                BOUNDS[forward_case.dtype].gradients,
            )


@pytest.mark.parametrize("release", ["timm_1.0.31", "timm_0.3.2"])
def test_102_tensors_are_not_decayed_and_50_are_at_every_mesh(groups_case: GroupsCase, found_by, release):
    official = load("param_groups")[release]["deit_small_patch16_224"]["groups"]
    assert [len(group["names"]) for group in official] == [102, 50]
    for groups in found_by(groups_case):
        for group, expected in zip(groups, official, strict=True):
            assert group["names"] == expected["names"]
            assert group["n_elements"] == expected["n_elements"]
            hyper = {**expected["hyper"], "betas": tuple(expected["hyper"]["betas"])}
            assert {name: group[name] for name in hyper} == hyper
