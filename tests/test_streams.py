"""What becomes of stdout is no trouble of the run: a reader that leaves, a disk that is full, a stream that was closed."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinyexp.streams import take_output

ROOT = Path(__file__).parents[1]


@pytest.fixture(params=["closed pipe", "full disk"])
def lost(request):
    """A descriptor that takes nothing, and why."""
    if request.param == "full disk":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, descriptor = os.pipe()
        os.close(reader)
    yield descriptor, request.param
    os.close(descriptor)


def python(code: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False, **options)


def test_a_text_that_a_stream_has_no_bytes_for_is_printed_all_the_same(monkeypatch):
    screens = {name: io.TextIOWrapper(io.BytesIO(), encoding="ascii") for name in ("stdout", "stderr")}
    for name, screen in screens.items():
        monkeypatch.setattr(sys, name, screen)
    take_output()
    for screen in screens.values():
        print("d\xe9j\xe0", "caf\udce9.png", file=screen, flush=True)
        assert screen.buffer.getvalue() == b"d\\xe9j\\xe0 caf\\udce9.png\n"


def test_a_command_whose_output_is_lost_goes_on(lost):
    code = (
        "import sys\n"
        "from rich.console import Console\n"
        "from tinyexp.streams import lost_output, take_output\n"
        "take_output()\n"
        "for _ in range(3): print('a line' * 5000, flush=True)\n"
        "Console().print('a table')\n"
        "print(lost_output().strerror, 'went on', file=sys.stderr)\n"
    )
    done = python(code, stdout=lost[0])
    reason = {"closed pipe": "Broken pipe", "full disk": "No space left on device"}[lost[1]]
    assert (done.returncode, done.stderr) == (0, f"{reason} went on\n")


def test_a_command_that_is_there_to_print_ends_in_silence_without_reader_and_with_one_message_without_room(lost):
    code = "import sys\nfrom tinyexp.streams import end_of_output\nwith end_of_output():\n    print('a page')\n    sys.exit({})\n"
    message = "error: stdout cannot be written: No space left on device\n"
    done = python(code.format(0), stdout=lost[0])
    assert (done.returncode, done.stderr) == {"closed pipe": (141, ""), "full disk": (5, message)}[lost[1]]
    assert python(code.format(3), stdout=lost[0]).returncode == 3  # that it failed comes before


def test_room_that_comes_back_gets_the_lines_from_then_on(tmp_path):
    code = (
        "import os\n"
        "from tinyexp.streams import take_output\n"
        "take_output()\n"
        "print('lost', flush=True)\n"
        f"os.dup2(os.open({str(tmp_path / 'log')!r}, os.O_WRONLY | os.O_CREAT), 1)\n"
        "print('kept', flush=True)\n"
    )
    with open("/dev/full", "w") as full:
        assert python(code, stdout=full).returncode == 0
    assert (tmp_path / "log").read_text() == "kept\n"


def test_a_file_of_a_command_never_gets_the_number_of_a_stream_that_was_closed():
    code = "from tinyexp.streams import take_output\ntake_output()\nprint('nothing')\nassert open('/dev/null').fileno() > 2\n"
    shell = [f'exec "$0" -c "$1" {closed}' for closed in (">&-", ">&- 2>&- <&-")]
    for line in shell:
        assert subprocess.run(["bash", "-c", line, sys.executable, code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("command", ["tinyexp.__main__", "tinyexp.data.digits"])
def test_a_command_says_in_one_line_that_its_page_could_not_be_printed(command):
    with open("/dev/full", "w") as full:
        page = [sys.executable, "-m", command, "--help"]
        done = subprocess.run(page, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (5, "error: stdout cannot be written: No space left on device\n")


def test_every_command_that_is_there_to_print_is_guarded_so():
    for name in ("__main__", "data/check", "data/digits", "data/shards", "report/write"):
        main = (ROOT / "tinyexp" / f"{name}.py").read_text().partition('\nif __name__ == "__main__":\n')[2]
        assert main.startswith("    with end_of_output():\n"), name
