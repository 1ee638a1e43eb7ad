"""Tensor parallelism over a slow link, small enough for two CPU cores: two ranks in two network namespaces, joined by a wire
whose rate is set.

    python -m benchmarks.link.run

The rate is first set so that the layout of stock PyTorch styles (see `stock_layout`) reaches 17 % of data parallelism, as
was published for DeiT-S on two cards over PCIe; then everything takes turns at that rate, at twice and at five times of it,
and without a limit. Root and iproute2 are needed. Writes benchmarks/results/link.json and link.png.
"""

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.helpers.hosts import ROOT, missing, two_hosts

RESULTS = Path(__file__).parents[1] / "results"
STOCK_SHARE = 0.17  # 304 of 1737 images/s is 17.5 %; the published reading is 17 %
PORT = 29431


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--depth", type=int, default=2, help="blocks")
    parser.add_argument("--batch", type=int, default=128, help="images of a group; embed_dim is 3 / 2 of it")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--factors", type=float, nargs="*", default=[1.0, 2.0, 5.0])
    parser.add_argument("--only", nargs="*", help="subjects to keep besides stock and ddp, as printed")
    arguments = parser.parse_args()
    if reason := missing():
        sys.exit(f"this benchmark needs two hosts: {reason}")
    result = measure_on_two_hosts(arguments)
    result["at_stock_share"] = at_stock_share(result["rows"])
    show(result["rows"], result["plan"])
    for line in result["at_stock_share"]:
        print("{layout}, {overlap_chunks} chunks, tail {tail}: {ratio_to_ddp:.1%}".format(**line))
    (RESULTS / "link.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(result["rows"], RESULTS / "link.png")


def subjects(only: list[str] | None) -> list[dict[str, Any]]:
    """The lines of the table."""
    found: list[dict[str, Any]] = [{"layout": "ddp", "tail": tail} for tail in (False, True)] + [{"layout": "stock"}]
    for layout in ("sharded", "replicated"):
        found += [{"layout": layout, "overlap_chunks": chunks} for chunks in (1, 2, 4)]
        found.append({"layout": layout, "overlap_chunks": 4, "tail": True})
    if only is None:
        return found
    from benchmarks.link.subjects import Subject

    return [each for each in found if each["layout"] in ("ddp", "stock") or str(Subject(**each)) in only]


def measure_on_two_hosts(arguments: argparse.Namespace) -> dict[str, Any]:
    dim = arguments.batch * 3 // 2
    shape = {"patch_size": 16, "embed_dim": dim, "depth": arguments.depth, "num_heads": 6}
    with tempfile.TemporaryDirectory() as folder, two_hosts() as hosts:
        plan = {
            "shape": shape,
            "batch": arguments.batch,
            "precision": arguments.precision,
            "rounds": arguments.rounds,
            "factors": arguments.factors,
            "stock_share": STOCK_SHARE,
            "subjects": subjects(arguments.only),
            "namespaces": [host.namespace for host in hosts],
        }
        (Path(folder) / "plan.json").write_text(json.dumps(plan))
        command = [sys.executable, "-m", "benchmarks.link.rank", f"{folder}/plan.json", f"{folder}/result.json"]
        ranks = [
            host.start(
                command,
                folder=ROOT,
                RANK=str(rank),
                WORLD_SIZE="2",
                LOCAL_RANK="0",
                LOCAL_WORLD_SIZE="1",
                MASTER_ADDR=hosts[0].address,
                MASTER_PORT=str(PORT),
                GLOO_SOCKET_IFNAME="wire",
                OMP_NUM_THREADS="1",
            )
            for rank, host in enumerate(hosts)
        ]
        assert ranks[0].stdout is not None
        for line in ranks[0].stdout:
            print(line, end="", flush=True)
        errors = [rank.communicate()[1] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            sys.exit("\n".join(errors))
        return {"plan": {key: plan[key] for key in ("shape", "batch", "precision", "rounds")}} | json.loads(
            (Path(folder) / "result.json").read_text()
        )


def show(rows: list[dict[str, Any]], plan: dict[str, Any]) -> None:
    """Shares of data parallelism, one line a subject, one column a rate; in brackets what the link allows."""
    rates = _rates(rows)
    table = Table(title=f"images/s as a share of data parallelism over two ranks: {plan}")
    for column in ("layout", "chunks", "tail", "MB sent", *(f"{rate:.0f} Mbit/s (limit)" for rate in rates)):
        table.add_column(column, justify="right")
    for key, found in _by_subject(rows).items():
        cells = [f"{found[rate]['ratio_to_ddp']:.1%} ({found[rate]['limit_ratio']:.0%})" for rate in rates]
        table.add_row(*map(str, key), f"{found[rates[0]]['sent_bytes'] / 1e6:.1f}", *cells)
    Console(width=150).print(table)


def at_stock_share(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every subject's share at the rate where the stock layout has exactly its own, from the two lowest rates.

    The calibrated rate meets that share within the noise of a step; shares follow the rate as a power, here that of a straight
    line between logarithms.
    """
    low, high, *_ = _rates(rows)
    found = _by_subject(rows)
    step = math.log(high / low)

    def slope(which: dict[float, dict[str, Any]]) -> float:
        return math.log(which[high]["ratio_to_ddp"] / which[low]["ratio_to_ddp"]) / step

    stock = found["stock", 1, False]
    away = math.log(STOCK_SHARE / stock[low]["ratio_to_ddp"]) / slope(stock)  # logarithm of the wanted rate over the lowest
    return [
        {"layout": layout, "overlap_chunks": chunks, "tail": tail, "rate_mbit": low * math.exp(away)}
        | {"ratio_to_ddp": which[low]["ratio_to_ddp"] * math.exp(slope(which) * away)}
        for (layout, chunks, tail), which in found.items()
    ]


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Shares of data parallelism over the rate, one line a subject without the tail."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rates = _rates(rows)
    ticks = [*rates[:-1], rates[-2] * 2.5]  # no limit stands at the right end
    figure, axes = plt.subplots(figsize=(8, 4.5))
    colours = {"stock": "0.4", "sharded": "C0", "replicated": "C1"}
    styles = {1: "--", 2: "-.", 4: "-"}
    for (layout, chunks, tail), found in _by_subject(rows).items():
        if layout == "ddp" or tail:
            continue
        label = f"{layout}, {chunks} chunk{'s' if chunks > 1 else ''}"
        shares = [found[rate]["ratio_to_ddp"] for rate in rates]
        axes.plot(ticks, shares, styles[chunks], marker="o", color=colours[layout], label=label)
    axes.axhline(1.0, color="k", linewidth=0.5)
    axes.set_xscale("log")
    axes.set_xticks(ticks, [*(f"{rate:.0f}" for rate in rates[:-1]), "no limit"])
    axes.minorticks_off()
    axes.set_ylim(0, 1.2)
    axes.set_xlabel("rate of the link, Mbit/s")
    axes.set_ylabel("images/s as a share of data parallelism")
    axes.legend(loc="upper left", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _rates(rows: list[dict[str, Any]]) -> list[float]:
    """Ascending, without a limit last, as infinity."""
    return sorted({row["rate_mbit"] or math.inf for row in rows})


def _by_subject(rows: list[dict[str, Any]]) -> dict[tuple[str, int, bool], dict[float, dict[str, Any]]]:
    found: dict[tuple[str, int, bool], dict[float, dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["layout"], row["overlap_chunks"], row["tail"]), {})[row["rate_mbit"] or math.inf] = row
    return found


if __name__ == "__main__":
    main()
