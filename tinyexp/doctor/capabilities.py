"""What a user wants to know: which runs work on this machine, and why the others do not."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tinyexp.doctor.finding import LIMITED, MISSING, OK, Finding

SOFTWARE = ("Python", "packages", "memory", "loopback", "backends")
RANKS = (*SOFTWARE, "2 ranks, gloo")
MAIN_JOB = (*RANKS, "output folder")


@dataclass(frozen=True)
class Capability:
    """A kind of run, and whether it works here. `because` names what limits or prevents it."""

    what: str
    verdict: str
    because: str = ""


def capabilities(findings: Sequence[Finding]) -> Iterator[Capability]:
    """What works, from what was found."""
    by_name = {finding.check: finding for finding in findings}

    def needs(what: str, *checks: str) -> Capability:
        used = [by_name[check] for check in checks]
        absent = [each for each in used if each.verdict == MISSING]
        weak = [each for each in used if each.verdict == LIMITED]
        if absent:
            return Capability(what, MISSING, "; ".join(f"{each.check}: {each.found}" for each in absent))
        return Capability(what, LIMITED, f"see {', '.join(each.check for each in weak)}") if weak else Capability(what, OK)

    yield needs("tp=2 on CPUs", *RANKS, "output folder", "cores")
    gpus = needs("tp=2 on GPUs", *RANKS, "GPUs", "2 ranks, nccl", "output folder")
    if gpus.verdict == LIMITED and by_name["2 ranks, nccl"].verdict != OK:  # one GPU is not half of two
        gpus = Capability(gpus.what, MISSING, f"GPUs: {by_name['GPUs'].found}; two are needed")
    yield gpus
    yield needs("launcher=ray", "Ray")
    yield needs("launcher=local", *RANKS)
    yield needs("loader processes", "shared memory")
    yield needs("data on disk", "data folder")
    yield needs("byte cache", "redis-server")
    yield needs("several machines", "network")


def obstacles(findings: Sequence[Finding]) -> list[str]:
    """The checks that keep the main job, training with tp=2 on the devices that are here, from running at all."""
    return [finding.check for finding in findings if finding.check in MAIN_JOB and finding.verdict == MISSING]


def can_run(findings: Sequence[Finding]) -> bool:
    """Whether nothing keeps the main job from running."""
    return not obstacles(findings)


def first_commands(findings: Sequence[Finding]) -> list[str]:
    """What to type next on this machine."""
    by_name = {finding.check: finding for finding in findings}
    if not can_run(findings):
        return []
    launcher = "" if by_name["Ray"].verdict != MISSING else " launcher=local"
    demo = ["python -m tinyexp.data.digits data/digits", f"python -m tinyexp.examples.digits_demo{launcher}"]
    if by_name["data folder"].verdict == MISSING:
        return demo
    on_gpus = by_name["2 ranks, nccl"].verdict == OK
    recipe = "python -m tinyexp.examples.vit_tp_exp" + launcher + ("" if on_gpus else " ray_cfg.ray_num_gpus_per_worker=0.0")
    return [recipe]
