"""The parts of a run's page that are told from its files alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from tinyexp.observability.evaluation import PER_CLASS, PREDICTIONS
from tinyexp.report.charts import Curve, chart, points
from tinyexp.report.page import Section, Table, Tile
from tinyexp.report.run_files import RunFolder

MOST_EPOCHS = 1000  # that the table of epochs shows

FILES = {  # of a run folder, and what each is
    "log.txt": "an epoch a line, as the official code writes it",
    "metrics.jsonl": "a step a line",
    "summary.json": "what the run reached",
    "run.json": "what the run was asked and what ran it",
    "curves.png": "loss, top-1 and learning rate as a picture",
    "eval.json": "the score of mode=eval",
    PREDICTIONS: "each validation image: true class, predicted class, probability, loss",
    PER_CLASS: "the accuracy of each class",
    "confusion.png": "which class is taken for which",
    "worst.png": "the images with the highest loss",
}


def headline(run: RunFolder) -> tuple[str, str, str, list[Tile]]:
    """Title, status in a word and in a sentence, and the numbers that are looked for first."""
    record, rows, scores = run.record, run.rows, run.scores
    name = record.get("exp_name") or run.path.absolute().name
    title = f"{name}: {record['model']}" if "model" in record else name
    tiles = [
        Tile(label, f"{best:.2f} %", f"last {last:.2f} %" if last is not None else "")
        for label, key in (("best top-1", "test_acc1"), ("best top-1, averaged weights", "ema_test_acc1"))
        for best, last in [_best_and_last(rows, key)]
        if best is not None
    ]
    if not rows and scores:
        keys = (("top-1", "test_acc1"), ("top-5", "test_acc5"), ("top-1, averaged weights", "ema_test_acc1"))
        tiles += [Tile(label, f"{scores[key]:.2f} %") for label, key in keys if scores.get(key) is not None]
    if mesh := record.get("mesh") or scores.get("mesh"):
        tiles.append(Tile("mesh", "dp={dp} tp={tp}".format(**mesh), record.get("parallelism", {}).get("label", "")))
    if "parallelism" in record:
        tiles.append(Tile("parameters", f"{record['parallelism']['parameters']:,}"))
    if run.summary.get("images_per_s"):
        tiles.append(Tile("speed", f"{run.summary['images_per_s']:,.0f} images/s", f"over {run.summary['train_seconds']:,.0f} s"))
    return title, *_status(run), tiles


def _best_and_last(rows: Sequence[Mapping[str, Any]], key: str) -> tuple[float | None, float | None]:
    known = [row[key] for row in rows if row.get(key) is not None]
    return (max(known), known[-1]) if known else (None, None)


def _status(run: RunFolder) -> tuple[str, str]:
    asked = run.record.get("config", {}).get("epochs")
    of = f" of {asked}" if asked else ""
    done = f"{run.rows[-1].get('epoch', -1) + 1 if run.rows else 0}{of} epochs in log.txt"
    since = f", started {run.record['started'].replace('T', ' ').replace('+00:00', ' UTC')}" if "started" in run.record else ""
    if run.summary:
        return "finished", f"{run.summary.get('steps', 0):,} steps, {done}{since}"
    if run.is_running:
        return "running", f"{done}{since}"
    if not run.rows and run.scores:
        return "evaluated", f"{run.scores.get('test_images', '')} validation images".strip() + since
    return "stopped", f"{done}{since}; resume_from=auto continues it"


def curves(run: RunFolder) -> Section | None:
    """Loss, accuracy and learning rate over epochs, speed over steps."""
    rows, steps = run.rows, run.steps

    def epochs(key: str, label: str, colour: int) -> Curve:
        return Curve(label, points(rows, "epoch", key), colour)

    val, averaged, train = ("validation", 1), ("validation, averaged weights", 2), ("training", 3)
    charts = [
        chart("Loss", [epochs("train_loss", *train), epochs("test_loss", *val), epochs("ema_test_loss", *averaged)]),
        chart("Top-1 accuracy", [epochs("test_acc1", *val), epochs("ema_test_acc1", *averaged)], unit="%"),
        chart("Learning rate", [epochs("train_lr", "training", 3)], from_zero=True),
        chart(
            "Throughput",
            [Curve("training", points(steps, "step", "images_per_s"), 3)],
            unit="images/s",
            axis="step",
            from_zero=True,
        ),
        chart(
            "Share of a step",
            [Curve("waiting for data", _shares(steps), 1), Curve("link", _percent(steps, "link_share"), 2)],
            unit="%",
            axis="step",
            from_zero=True,
        ),
    ]
    shown = [each for each in charts if each is not None]
    if not shown:
        return None
    return Section("Curves", text=_about_losses(run) if rows else [], charts=shown, tables=_epochs(rows))


def _about_losses(run: RunFolder) -> list[str]:
    """Why the losses of training and evaluation differ, as the recipe of the run makes them."""
    recipe = run.record.get("config", {}).get("loss_cfg", {"mixup": 1, "smoothing": 1})
    is_done = {"mixed": recipe.get("mixup") or recipe.get("cutmix"), "smoothed": recipe.get("smoothing")}
    if not (done := " and ".join(word for word, is_so in is_done.items() if is_so)):
        return []
    return [f"Training losses are those of {done} targets, and so above the others where a model has learnt."]


def _shares(steps: Sequence[Mapping[str, Any]]) -> list[tuple[float, float | None]]:
    known = (row for row in steps if row["step"] is not None)
    return [
        (row["step"], 100 * row["data_s"] / row["step_s"] if row["step_s"] and row["data_s"] is not None else None)
        for row in known
    ]


def _percent(steps: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float | None]]:
    return [(step, None if value is None else 100 * value) for step, value in points(steps, "step", key)]


def _epochs(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    columns = {
        "epoch": "epoch",
        "train_lr": "lr",
        "train_loss": "training loss",
        "test_loss": "validation loss",
        "test_acc1": "top-1 %",
        "test_acc5": "top-5 %",
        "ema_test_loss": "loss, averaged",
        "ema_test_acc1": "top-1 %, averaged",
    }
    shown = {key: name for key, name in columns.items() if any(row.get(key) is not None for row in rows)}
    if not shown:
        return []
    cells = [[cell(row.get(key)) for key in shown] for row in rows[-MOST_EPOCHS:]]
    which = "Every epoch" if len(rows) <= MOST_EPOCHS else f"The last {MOST_EPOCHS:,} of {len(rows):,} epochs"
    return [Table(f"{which} in numbers", list(shown.values()), cells, numbers=range(len(shown)), folded=True)]


def parallelism(run: RunFolder) -> list[Section]:
    """The mesh, the plan, what lies on each rank and what a step sends."""
    told = run.record.get("parallelism")
    if not told:
        return []
    text = [
        f"{told['label']}: {run.record['environment']['processes']} processes, {told['global_batch']} images in a step. "
        f"A rank holds {told['parameters_on_a_rank']:,} of {told['parameters']:,} numbers."
    ]
    tables = []
    if told["plan"]:
        tables.append(Table("The plan", ["module", "style"], list(told["plan"].items())))
        columns = ["name", "tensors", "whole", "on each rank"]
        if any(row["padding"] for row in told["sharding"]):
            columns.append("padding")
        rows = [list(map(str, row.values()))[: len(columns)] for row in told["sharding"]]
        tables.append(Table("Parameters", columns, rows, numbers=(1,)))
    else:
        text.append("Every process holds the whole model: no module is sharded.")
    rows = [[line["purpose"], line["kind"], str(line["calls"]), f"{line['sent_bytes'] / 1e6:,.2f}"] for line in told["traffic"]]
    if rows:
        tables.append(Table("One step sends, from each rank", ["for", "collective", "calls", "MB"], rows, numbers=(2, 3)))
    else:
        text.append("A step sends nothing.")
    return [Section("Mesh, plan and exchanges", text=text, tables=tables)]


def configuration(run: RunFolder) -> list[Section]:
    """Where the run is not the recipe, and not the experiment's defaults."""
    if "config" not in run.record:
        return []
    departures, changed = run.record["departures"], run.record["changed"]
    rows = [[key, value, default] for key, (value, default) in changed.items()]
    return [
        Section("Departures from the official recipe", lines=departures, text=[] if departures else ["None."]),
        Section(
            "Configuration",
            text=[f"{run.record['experiment']}; all other keys have its defaults."],
            tables=[Table("Keys that differ from the defaults", ["key", "value", "default"], rows)] if rows else [],
        ),
    ]


def environment(run: RunFolder) -> Section | None:
    """Versions, device, cores."""
    facts = {name: str(value) for name, value in run.record.get("environment", {}).items()}
    return Section("Environment", facts=facts) if facts else None


def files(run: RunFolder) -> Section:
    """What lies in the folder."""
    checkpoints = {path.name: "a checkpoint in the official DeiT layout" for path in sorted(run.path.glob("*.ckpt"))}
    rows = [
        [name, meaning, _size((run.path / name).stat().st_size)]
        for name, meaning in (checkpoints | FILES).items()
        if (run.path / name).is_file()
    ]
    table = Table(f"In {run.path.absolute()}", ["file", "what it is", "size"], rows, numbers=(2,))
    return Section("Files", tables=[table])


def repetition(run: RunFolder) -> Section | None:
    """The command that runs it again."""
    if "command" not in run.record:
        return None
    text = [
        f"In {run.record['working_folder']}, from the start. It uses the same run folder, where it sets aside what it finds; "
        "exp_name=<name> takes another one."
    ]
    return Section("Run it again", text=text, code=run.record["command"])


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e3:,.1f} kB"


def cell(value: Any) -> str:
    """A value of a table: four digits, nothing for what is not known."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
