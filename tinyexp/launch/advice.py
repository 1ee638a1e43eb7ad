"""What to do about errors of torch that say what happened, but not why it happens to a rank of several."""

ADVICE = (
    (
        ("shapes cannot be multiplied", "must have same reduction dim"),
        "where the model is sharded, a layer gets a part of its features because its plan and its neighbours' do not fit: shard "
        "in pairs, column-wise then row-wise, over ranks whose number divides the features (see tinyexp.parallel.check)",
    ),
    (
        ("expected all tensors to be on the same device", "input type (torch.floattensor) and weight type (torch.cuda"),
        "model and batch must lie on this rank's device, accelerator.device: accelerator.prepare(model) moves the model, "
        "batch.to(accelerator.device) a batch; without an accelerator call torch.cuda.set_device first",
    ),
    (
        ("no backend type associated with device type", "tensors must be cuda and dense"),
        "gloo exchanges tensors of CPUs and nccl those of GPUs; move the tensor to accelerator.device, the group's",
    ),
    (
        ("default process group has not been initialized",),
        "the ranks have not met: AcceleratorCfg.build joins the process group, and nothing can be sent before it or after close",
    ),
)


def advice(error: BaseException) -> str:
    """One sentence for an error of torch in which ranks of their own loop are often caught; empty for all others."""
    text = str(error).lower()
    if not isinstance(error, (RuntimeError, ValueError)):
        return ""
    return next((sentence for phrases, sentence in ADVICE if any(phrase in text for phrase in phrases)), "")
