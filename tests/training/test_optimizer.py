import pytest
import torch

from tinyexp.models.vit.build import deit_small_patch16_224
from tinyexp.models.vit.convert import convert_split_qkv_to_fused
from tinyexp.parallel.apply import Parameters, assert_owns
from tinyexp.training.optimizer import OptimizerCfg


def test_biases_norms_class_token_and_position_embedding_are_not_decayed():
    with torch.device("meta"):
        model = deit_small_patch16_224()
    parameters = Parameters(model)
    optimizer = OptimizerCfg().build(model, global_batch=512)
    names = {id(parameter): name for name, parameter in parameters.by_name.items()}
    no_decay, decay = ([names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.05]
    fused = [list(convert_split_qkv_to_fused({name: torch.empty(1) for name in group})) for group in (no_decay, decay)]
    assert [len(group) for group in fused] == [102, 50]
    assert {"cls_token", "pos_embed"} <= set(no_decay)
    assert all(name.endswith("weight") for name in decay)
    assert not any("norm" in name for name in decay)


@pytest.mark.parametrize(("global_batch", "lr"), [(8, 7.8125e-06), (16, 1.5625e-05), (512, 5e-4), (1024, 1e-3), (2048, 2e-3)])
def test_the_learning_rate_counts_images(global_batch, lr):
    assert OptimizerCfg().scaled_lr(global_batch) == lr


def test_values_that_no_optimizer_can_have_are_named():
    problems = "\n".join(OptimizerCfg(lr=-1, clip_grad=-2.0).problems())
    assert "optimizer_cfg.lr=-1" in problems
    assert "optimizer_cfg.clip_grad=-2.0" in problems
    assert OptimizerCfg(clip_grad=0).problems() == []


def test_an_optimizer_of_other_tensors_is_caught():
    model = torch.nn.Linear(3, 2)
    assert_owns(torch.optim.SGD(model.parameters(), lr=1.0), model)
    with pytest.raises(AssertionError, match=r"does not own 2 parameters of the model \(weight, bias"):
        assert_owns(torch.optim.SGD(torch.nn.Linear(3, 2).parameters(), lr=1.0), model)
    with pytest.raises(AssertionError, match=r"does not own 1 parameters of the model \(bias"):
        assert_owns(torch.optim.SGD([model.weight], lr=1.0), model)
