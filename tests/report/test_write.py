"""The page of a run: what it says, that it says it safely, and how a browser shows it."""

import csv
import itertools
import json
import os
import shlex
import shutil
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from tests.conftest import write_toy_split
from tests.helpers.traced import TracedExp, run_here
from tinyexp.errors import ConfigError
from tinyexp.experiment.overrides import compose
from tinyexp.experiment.run_folder import owned
from tinyexp.report import write
from tinyexp.report.run_files import read_run
from tinyexp.report.samples import samples, spread
from tinyexp.report.write import main, write_report

HANGS_MS = 180_000  # a browser on a cold disk takes long to start
CLASSES = ["<img src=x onerror=alert(1)>", "<script>alert(2)", "\"' & {{ 7*7 }}", "déjà"]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """The toy set, with class names that a page must not take for its own markup."""
    root = tmp_path_factory.mktemp("odd")
    for split, counts in (("train", (16, 16, 16, 16)), ("val", (3, 3, 3, 2))):
        write_toy_split(root / split, counts, seed=len(split))
        for label, name in enumerate(CLASSES):
            (root / split / f"c{label}").rename(root / split / name)
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory, data) -> Path:
    """The folder of a run of three epochs at tp=2 and of an evaluation of its weights, after another run had used it."""
    root = tmp_path_factory.mktemp("runs")
    earlier = root / "run"
    earlier.mkdir()
    for name in ("eval.json", "report.html", "worst.png"):
        (earlier / name).write_text("of an earlier run")
    settings = [f'dataloader_cfg.data_root="{data}"', "optimizer_cfg.lr=0.05", "report_images=8"]
    assert run_here(root, *settings) == 0
    assert run_here(root, *settings, "mode=eval", f'resume_from="{root}/run/best.ckpt"') == 0
    steps = (
        {"step": step, "images_per_s": 100.0 + step, "step_s": 0.1, "data_s": 0.02, "link_share": None} for step in range(12)
    )
    lines = [*map(json.dumps, steps), '{"step": 12, "images_per_s": null}', '{"step": 13, "ima']
    (root / "run" / "metrics.jsonl").write_text("\n".join(lines))
    return root / "run"


@pytest.fixture(scope="module")
def page(folder) -> Path:
    return write_report(folder)


class Markup(HTMLParser):
    """The tags of a page, their attributes and the text in them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.tags[-1][0] if self.tags else "", []).append(data.strip())

    @property
    def text(self) -> str:
        return "\n".join(text for tag, texts in self.texts.items() if tag not in ("style", "script") for text in texts if text)


def copied(folder: Path, target: Path, *left_out: str) -> Path:
    return shutil.copytree(folder, target, ignore=shutil.ignore_patterns("earlier-*", *left_out))


def test_the_page_asks_nothing_of_anywhere_else_and_forbids_itself_to(page):
    markup = Markup(page)
    addresses = [value or "" for _, attributes in markup.tags for name, value in attributes.items() if name in ("src", "href")]
    assert len(addresses) > 20
    assert all(address.startswith("data:") for address in addresses)
    (policy,) = [each["content"] or "" for tag, each in markup.tags if tag == "meta" and "http-equiv" in each]
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy
    assert page.stat().st_size < 3_000_000


def test_values_from_files_are_text_and_never_markup(page):
    markup = Markup(page)
    assert not [attributes for _, attributes in markup.tags if any(name.startswith("on") for name in attributes)]
    assert [tag for tag, _ in markup.tags].count("script") == 1
    for name in CLASSES:
        assert name in markup.text


def test_everyone_can_read_it(page):
    markup = Markup(page)
    tags = [tag for tag, _ in markup.tags]
    assert markup.texts["title"][0] == "run: deit_small_patch16_224"
    assert tags.count("h1") == 1
    assert tags.count("h2") >= 9
    assert all(attributes.get("alt") for tag, attributes in markup.tags if tag == "img")
    assert all(attributes["aria-label"] for tag, attributes in markup.tags if attributes.get("role") == "img")


def test_it_says_what_the_run_reached_how_it_was_sharded_and_what_it_sent(page, folder):
    text = Markup(page).text
    rows = [json.loads(line) for line in (folder / "log.txt").read_text().splitlines()]
    assert f"{max(row['test_acc1'] for row in rows):.2f} %" in text
    assert f"{max(row['ema_test_acc1'] for row in rows):.2f} %" in text
    told = json.loads((folder / "run.json").read_text())
    assert "finished" in text and "3 of 3 epochs" in text
    assert "dp=1 tp=2" in text and "blocks.*.mlp.fc1" in text and "ColwiseShard" in text
    for line in told["parallelism"]["traffic"]:
        assert f"{line['sent_bytes'] / 1e6:,.2f}" in text
    assert {line["purpose"] for line in told["parallelism"]["traffic"]} == {"activations", "gradients"}
    assert all(line in text for line in told["departures"])
    assert told["changed"]["optimizer_cfg.lr"] == ["0.05", "0.0005"]
    assert "Throughput" in text and "waiting for data" in text


def test_its_command_composes_to_the_configuration_of_the_run(page, folder):
    words = shlex.split("".join(Markup(page).texts["pre"]))
    assert words[:3] == ["python", "-m", "tests.helpers.traced"]
    plain, _ = compose(TracedExp, words[3:])
    assert plain == json.loads((folder / "run.json").read_text())["config"]


def test_its_predictions_are_those_of_the_evaluation_on_the_mesh(folder):
    run = read_run(folder)
    found = samples(str(folder / "best.ckpt"), run.record["config"], 8)
    with open(folder / "predictions.csv", newline="", encoding="utf-8") as file:
        rows = {row["file"]: row for row in csv.DictReader(file)}
    assert {each.true_class for each in found[:4]} == set(CLASSES)
    for each in found:
        row = rows[each.file]
        assert each.true_class == row["target_name"]
        assert each.answers[0] == (row["predicted_name"], pytest.approx(float(row["probability"]), abs=1e-5))
        assert len(each.pictures) == 3


def test_what_an_earlier_run_left_is_set_aside_and_not_shown_as_this_one(folder):
    assert {path.name for path in (folder / "earlier-1").iterdir()} == {"eval.json", "report.html", "worst.png"}


def test_samples_are_spread_over_the_classes():
    assert spread([0] * 3 + [1] * 3 + [2] * 3 + [3])[:5] == [0, 6, 3, 9, 1]
    first = spread([number // 50 for number in range(50_000)])[:12]
    classes = sorted(position // 50 for position in first)
    assert max(b - a for a, b in itertools.pairwise(classes)) <= 130
    assert sorted(spread([2, 0, 2, 1, 0])) == [0, 1, 2, 3, 4]


def test_a_run_without_its_summary_has_stopped_or_is_running(folder, tmp_path):
    stopped = copied(folder, tmp_path / "run", "summary.json", "eval.json", "*.ckpt", "*.csv")
    text = Markup(write_report(stopped)).text
    assert "stopped" in text and "resume_from=auto" in text and "There is no checkpoint yet." in text
    child = os.fork()
    if child == 0:
        with owned(stopped):
            (stopped / "owns").touch()
            time.sleep(60)
    try:
        while not (stopped / "owns").exists():
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
            time.sleep(0.02)
        assert "running" in Markup(write_report(stopped)).text
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_images_that_are_gone_are_said_on_the_page_and_in_a_warning(folder, tmp_path, caplog):
    moved = copied(folder, tmp_path / "run", "*.csv")
    record = json.loads((moved / "run.json").read_text())
    record["config"]["dataloader_cfg"]["data_root"] = str(tmp_path / "gone")
    (moved / "run.json").write_text(json.dumps(record))
    text = Markup(write_report(moved)).text
    assert "They could not be computed:" in text and str(tmp_path / "gone") in text
    assert "the report has no sample predictions" in caplog.text


def test_a_set_of_which_no_image_can_be_read_is_said_on_the_page_and_in_a_warning(folder, data, tmp_path, caplog):
    moved = copied(folder, tmp_path / "run", "*.csv")
    shutil.copytree(data / "val", tmp_path / "data" / "val")
    for path in (tmp_path / "data" / "val").glob("*/*.JPEG"):
        path.write_bytes(b"")
    record = json.loads((moved / "run.json").read_text())
    record["config"]["dataloader_cfg"]["data_root"] = str(tmp_path / "data")
    (moved / "run.json").write_text(json.dumps(record))
    text = Markup(write_report(moved)).text
    assert "They could not be computed: none of the 11 validation images can be read" in text
    assert "the report has no sample predictions" in caplog.text


def test_a_folder_without_its_record_takes_the_configuration_from_a_checkpoint_that_is_whole(folder, tmp_path, caplog):
    bare = copied(folder, tmp_path / "run", "*.json", "*.csv")
    assert CLASSES[0] in Markup(write_report(bare)).text
    (bare / "best.ckpt").write_bytes((folder / "best.ckpt").read_bytes()[:100_000])
    assert "best.ckpt is incomplete or corrupt" in Markup(write_report(bare)).text
    assert "the report has no sample predictions" in caplog.text


def test_a_folder_of_an_evaluation_alone_has_a_page(folder, tmp_path):
    names = ("eval.json", "per_class.csv", "predictions.csv", "confusion.png", "worst.png")
    (tmp_path / "run").mkdir()
    for name in names:
        shutil.copy(folder / name, tmp_path / "run")
    markup = Markup(write_report(tmp_path / "run"))
    assert "evaluated" in markup.text and "Sample predictions" in markup.text and "Accuracy by class" in markup.text


def test_lines_that_are_no_records_and_a_record_of_another_version_leave_a_page_that_says_what_it_lacks(tmp_path, caplog):
    (tmp_path / "log.txt").write_bytes(b'[1]\n7\n{"epoch": 0, "test_acc1": 12.5, "note": "caf\xe9"}\n"text"\n{"other": 1}\n')
    (tmp_path / "metrics.jsonl").write_bytes(b'null\n{"step": 0, "images_per_s": "many", "step_s": 0.1}\n\xff\n')
    record = {"config": {"epochs": 3, "checkpoint_cfg": {}}, "mesh": {"dp": 1}, "parallelism": {"label": "dp"}, "command": "x"}
    (tmp_path / "run.json").write_text(json.dumps(record))
    (tmp_path / "summary.json").write_text('{"started": "then"}')
    text = Markup(write_report(tmp_path)).text
    for part in ("KeyError: 'tp'", "KeyError: 'best_ckpt_name'", "KeyError: 'environment'", "KeyError: 'departures'"):
        assert part in text
    assert "Top-1 accuracy" in text and "Files" in text
    assert "the report lacks a part" in caplog.text


def test_a_model_that_does_not_take_the_images_is_told_and_ends_no_page(folder, tmp_path, monkeypatch):
    def refuses(*_: object) -> None:
        raise RuntimeError("sizes that differ")

    monkeypatch.setattr("tinyexp.report.samples.class_attention", refuses)
    assert "sizes that differ" in Markup(write_report(copied(folder, tmp_path / "run"))).text


def test_the_table_of_epochs_ends_somewhere(tmp_path):
    (tmp_path / "log.txt").write_text("".join(f'{{"epoch": {epoch}, "test_acc1": 1.5}}\n' for epoch in range(1500)))
    markup = Markup(write_report(tmp_path))
    assert "The last 1,000 of 1,500 epochs in numbers" in markup.text
    assert 1000 <= [tag for tag, _ in markup.tags].count("tr") < 1020
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".tmp")] == []


@pytest.mark.parametrize(("name", "said"), [("nowhere", "is no folder"), ("", "holds no run")])
def test_a_folder_without_a_run_is_one_message(tmp_path, name, said, capsys):
    assert main([str(tmp_path / name)]) == ConfigError.exit_status
    shown = capsys.readouterr()
    assert said in shown.err and "<output_root>/<exp_name>" in shown.err
    assert not shown.out


def test_the_table_of_a_run_names_its_report(folder, tmp_path, capsys):
    copied(folder, tmp_path / "run", "*.ckpt", "report.html")
    experiment = TracedExp(output_root=str(tmp_path), write_report=True)
    experiment.report(json.loads((folder / "summary.json").read_text()))
    assert "report" in capsys.readouterr().out
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_report_that_fails_fails_no_run_and_says_how_to_try_again(folder, tmp_path, capsys, caplog, monkeypatch):
    def fails(_: Path) -> Path:
        raise RuntimeError("no room")

    monkeypatch.setattr(write, "write_report", fails)
    experiment = TracedExp(output_root=str(tmp_path / "a b"), write_report=True)
    experiment.report(json.loads((folder / "summary.json").read_text()))
    assert "top-1" in capsys.readouterr().out
    assert "the report could not be written: RuntimeError: no room; " in caplog.text
    assert f"python -m tinyexp report '{tmp_path}/a b/run'" in caplog.text


# --- as a browser shows it


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_browser_shows_it_without_an_error_a_request_or_a_word_cut_off(page):
    from playwright.sync_api import sync_playwright

    complaints: list[str] = []
    requests: list[str] = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"], timeout=HANGS_MS)
        tab = browser.new_page()
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("request", lambda request: requests.append(request.url))
        for width in (390, 1280):
            tab.set_viewport_size({"width": width, "height": 800})
            tab.goto(page.as_uri(), timeout=HANGS_MS)
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
        lengths = tab.evaluate("[...document.querySelectorAll('figure.chart path[d*=L]')].map(path => path.getTotalLength())")
        images = tab.evaluate("[...document.images].map(image => image.complete && image.naturalWidth)")
        tab.hover("figure.chart >> nth=0 >> css=svg >> nth=0", position={"x": 60, "y": 60})
        said = tab.inner_text("figure.chart >> nth=0 >> css=output")
        browser.close()
    assert complaints == []
    assert {address for address in requests if not address.startswith("data:")} == {page.as_uri()}
    assert len(lengths) >= 8
    assert sum(length > 100 for length in lengths) >= 6
    assert len(images) == 8 * 3 + 2
    assert all(images)
    assert said.startswith("epoch 0") and "training: " in said
