"""`pytest tests/golden` covers every mechanism of the recipe; with --golden-all, every recorded run on every mesh."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from tests.golden.bounds import Worst
from tests.golden.forward import forward_cases, groups_cases
from tests.golden.jobs import Job, run_jobs
from tests.golden.resumed import resume_cases
from tests.golden.runs import EACH_MECHANISM, Case, Run, every_case

WORST = pytest.StashKey[Worst]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden-all", action="store_true", help="every recorded run on every mesh, in minutes")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[WORST] = Worst()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, jobs in _jobs(metafunc.config).items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, jobs, ids=str)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _everything(config):
        terminalreporter.section("largest differences from the official code")
        for line in config.stash[WORST].table():
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def worst(pytestconfig: pytest.Config) -> Worst:
    return pytestconfig.stash[WORST]


@pytest.fixture(scope="session")
def found_by(request: pytest.FixtureRequest) -> Callable[[Job], list[Any]]:
    """What a job found, in rank order. The first question about a number of processes runs all jobs of that number."""
    parameters = [getattr(item, "callspec", None) for item in request.session.items]  # of the tests that were selected
    values = [value for callspec in parameters if callspec for value in callspec.params.values()]
    jobs = dict.fromkeys(value for value in values if isinstance(value, Job))

    @functools.cache
    def found_together(group: tuple[Job, ...]) -> dict[Job, list[Any]] | Exception:
        try:
            return run_jobs(group)
        except Exception as error:  # every test that asks shall fail with it, and none launch the processes again
            return error

    def found_by_job(job: Job) -> list[Any]:
        launched = tuple(other for other in jobs if other.mesh.num_ranks == job.mesh.num_ranks)
        found = found_together(launched if job.mesh.num_ranks > 1 else (job,))
        if isinstance(found, Exception):
            raise found
        return found[job]

    return found_by_job


@pytest.fixture
def runs(case: Case, found_by: Callable[[Job], list[Any]]) -> list[Run]:
    return found_by(case)


@pytest.fixture
def whole_runs(whole_case: Case, found_by: Callable[[Job], list[Any]]) -> list[Run]:
    return found_by(whole_case)


def _everything(config: pytest.Config) -> bool:
    # A session that was started above this folder does not know the option.
    return bool(config.getoption("golden_all", default=False))


def _jobs(config: pytest.Config) -> dict[str, list[Any]]:
    """The jobs of the session by the argument under which a test takes one."""
    everything = _everything(config)
    cases = every_case() if everything else EACH_MECHANISM
    return {
        "case": cases,
        "whole_case": [case for case in cases if case.is_whole],
        "forward_case": forward_cases(everything=everything),
        "groups_case": groups_cases(),
        "resume_case": resume_cases(),
    }
