"""Output of the measurements: tables in the terminal, a JSON file, and a plot."""

from __future__ import annotations

from pathlib import Path

from benchmarks.speed.cases import Bar, Case, Measurements
from matrix_adagrad.files import write
from matrix_adagrad.optional import OptionalOutput
from matrix_adagrad.text import json_text

__all__ = ["PICTURE", "print_bars", "print_case", "save"]

PICTURE = OptionalOutput("bench.png", ("matplotlib",), "bench")


def print_case(case: Case, copy_bytes_a_second: float) -> None:
    """Print the table of one case."""
    size = case.parameter_bytes
    has_memory = any(row.state is not None for row in case.rows)
    print(f"\n{case.title}" + (f": {size / 2**20:.1f} MiB of parameters" if size else ""))
    over = "× " + case.baseline.removeprefix("torch ")
    memory = f"{'of a copy':>11}{'peak extra':>12}{'state':>9}" if has_memory else ""
    print(f"  {'':<32}{'ms':>9}{over:>22}{memory}")
    for row in case.rows:
        if row.gap is not None:
            print(f"  {row.name:<32}{'gap':>9}  {row.gap[:90]}")
            continue
        line = f"  {row.name:<32}{row.median * 1e3:>9.2f}{f'{row.ratio:.2f} ({row.low:.2f}–{row.high:.2f})':>22}"
        if has_memory and row.bytes_a_second is not None and row.peak_extra is not None and row.state is not None:
            share = row.bytes_a_second / copy_bytes_a_second
            line += f"{share:>10.0%} {row.peak_extra / size:>12.3f}{row.state / size:>9.4f}"
        print(line, flush=True)


def print_bars(bars: list[Bar]) -> None:
    """Print the bars, and whether they were met."""
    print("\nThe bars")
    words = {True: "met", False: "NOT MET", None: "gap"}
    for bar in bars:
        measured = "–" if bar.measured is None else f"{bar.measured:.2f}"
        print(f"  {words[bar.met]:<9}{measured:>7}   {bar.bar:<52}{bar.work}")


def save(measured: Measurements, folder: Path) -> list[Path]:
    """Write ``bench.json`` and, where matplotlib is installed, ``bench.png``; returns what was written."""
    written = [write(folder / "bench.json", json_text(measured.as_dict()))]
    if PICTURE.missing:
        return written
    _draw(measured, folder / PICTURE.name)
    return [*written, folder / PICTURE.name]


def _draw(measured: Measurements, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5), layout="constrained")
    for name, points in measured.sizes.items():
        ours = not name.startswith("torch")
        entries = list(points)
        left.plot(entries, [points[n] * 1e6 for n in entries], marker=".", label=name, linestyle="-" if ours else "--")
    left.set(
        xscale="log", yscale="log", xlabel="entries of a square matrix", ylabel="µs per step", title="Time of a step"
    )
    left.legend(frameon=False)
    case = measured.cases[0]
    rows = [row for row in case.rows if row.bytes_a_second and row.state is not None]
    shares = [(row.bytes_a_second or 0) / 1e9 for row in rows]
    colours = ["tab:gray" if row.name.startswith(("torch", "Torch", "pytorch")) else "tab:blue" for row in rows]
    right.barh([row.name for row in rows][::-1], shares[::-1], color=colours[::-1])
    right.axvline(measured.copy_bytes_a_second / 1e9, color="tab:red", linewidth=1)
    right.annotate(
        "a copy", (measured.copy_bytes_a_second / 1e9, len(rows) - 0.6), color="tab:red", ha="right", va="bottom"
    )
    right.set(xlabel="GB/s of the traffic a step cannot avoid", title=f"Roofline, {case.title}")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    machine = measured.machine
    figure.suptitle(
        f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}", fontsize=9, color="gray"
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)
