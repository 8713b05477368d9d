# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What scripts/papers writes of its runs: the page, the claims, the JSON and the plots."""

import json
import os

import bench_page
import benchlib

# Of scripts/bench: what a view looks at, and in which unit a plot shows it.
VIEWS = {
    "time": ("time", "ns an operation, or seconds", lambda row: row["figure"]["median"]),
    "memory": ("peak memory", "MB", lambda row: row["peak_bytes"] and row["peak_bytes"] / 1e6),
    "live": ("peak memory over live bytes", "", lambda row: row["peak_of_live"]),
}


def load(file):
    """The figures that a run has written, or None if it ended before."""
    try:
        with open(file, encoding="utf-8") as text:
            return json.load(text)
    except (OSError, ValueError):
        return None


# ---- What was seen, in a line for each run.


def between(values):
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def seen_of_bench(data, view):
    """Each other allocator over PMAlloc: from which program and number of threads to which."""
    what, _, value = VIEWS[view]
    ratios, own = {}, []
    for row in data["programs"].values():
        values = {name: figures and value(figures) for name, figures in row["allocators"].items()}
        ours = values.pop(benchlib.OURS, None)
        own += [ours] if ours else []
        for name, other in values.items():
            if ours and other:
                ratios.setdefault(name, []).append(other / ours)
    others = ", ".join(f"{name} {between(values)}" for name, values in ratios.items())
    if view == "live":
        return f"{what} {between(own)}; over it {others or 'nothing'}" if own else ""
    return f"{what} of {others} times PMAlloc's" if others else ""


def seen_of_counters(data):
    named = data["counters"].items()
    return ", ".join(
        f"{name} {cells[benchlib.OURS]:.3g}" for name, cells in named if benchlib.OURS in cells
    )


def seen_of_recovery(data):
    of_all = {benchlib.OURS: next(iter(data["recovery"].values()))} | data["others"]
    seconds = {}
    for name, of in of_all.items():
        medians = {what: of[what]["median"] for what in ("seconds", "collection") if what in of}
        if "slower" in of:
            medians["on slower media"] = of["slower"]["seconds"]
        seconds |= {f"{name} {what}".removesuffix(" seconds"): s for what, s in medians.items()}
    times = ", ".join(f"{name} {value * 1e3:.3g} ms" for name, value in seconds.items())
    return f"{data['nodes']:,} nodes: {times}"


def seen_of_morphing(data):
    rows = {}
    for row in data["figures"]:
        rows.setdefault(row["workload"].upper(), []).append(
            f"{row['memory']:.2f} at {row['percent']} ({row['morphed']} morphed, {row['ended']} "
            "ended)"
        )
    return "memory over live bytes by PMALLOC_MORPH: " + "; ".join(
        f"{name} " + ", ".join(cells) for name, cells in rows.items()
    )


def seen_of_study(data):
    """Each figure but a series, from one program to another."""
    cells = {}
    for of in data["programs"].values():
        for name, figures in of.items():
            for what, value in figures.items():
                if isinstance(value, (int, float)):
                    cells.setdefault(name, {}).setdefault(what, []).append(value)
    return "; ".join(
        f"{name}: " + ", ".join(f"{what} {between(values)}" for what, values in figures.items())
        for name, figures in cells.items()
    )


SEEN = {
    "study": seen_of_study,
    "counters": seen_of_counters,
    "recovery-bench": seen_of_recovery,
    "morph-study": seen_of_morphing,
}


def seen(result, view):
    """A line, or why there is none."""
    if not result["data"]:
        line = " ".join(result["output"].strip().splitlines()[-1:])
    elif result["script"] == "bench":
        line = seen_of_bench(result["data"], view)
    else:
        line = SEEN[result["script"]](result["data"])
    if result["status"]:
        return f"FAILED ({result['why']})" + (f"; {line}" if result["data"] and line else "")
    return line or "nothing to compare with"


# ---- Plots: {(title, axis, unit): {line: [(x, y)]}}. A title has the run's name, because several
# runs of a figure may have the same programs.


def panels_of_bench(result, view):
    panels = {}
    _, unit, value = VIEWS[view]
    for case, row in result["data"]["programs"].items():
        program, run = case.partition("/")[0], result["run"]
        title = program if program == run else f"{program} ({run})"
        for name, figures in row["allocators"].items():
            if figures and value(figures):
                lines = panels.setdefault((title, "threads", unit), {})
                lines.setdefault(name, []).append((row["threads"], value(figures)))
    return panels


def panels_of_recovery(result, _view):
    data = result["data"]
    ms = next(iter(data["recovery"].values()))["seconds"]["median"] * 1e3
    medians = {name: of["seconds"]["median"] * 1e3 for name, of in data["others"].items()}
    lines = {benchlib.OURS: ms} | medians
    points = {name: [(data["nodes"], value)] for name, value in lines.items()}
    return {("recovery", "nodes", "ms"): points}


def panels_of_morphing(result, _view):
    panels = {}
    for row in result["data"]["figures"]:
        panel = (row["workload"], "PMALLOC_MORPH", "memory over live")
        points = panels.setdefault(panel, {}).setdefault(benchlib.OURS, [])
        points.append((row["percent"], row["memory"]))
    return panels


def panels_of_course(result, _view):
    """Of programs with large blocks the log's length, of others the slabs."""
    panels, data = {}, result["data"]
    for program, of in data["programs"].items():
        slabs = program.startswith("fragbench")
        for name, figures in of.items():
            for what in ("low", "middle", "high", "morphing") if slabs else ("active",):
                panel = (program, "ms", "slabs" if slabs else "chunks of the log")
                points = [(point["ms"], point[what]) for point in figures.get("points", ())]
                panels.setdefault(panel, {})[f"{name} {what}" if slabs else name] = points
    return panels if data["study"] == "course" else {}


PANELS = {
    "bench": panels_of_bench,
    "recovery-bench": panels_of_recovery,
    "morph-study": panels_of_morphing,
    "study": panels_of_course,
}


def panels_of(figure, results):
    """Those of all runs; runs that have a panel in common have points in it."""
    panels = {}
    for result in results:
        if result["data"] and result["script"] in PANELS:
            for panel, lines in PANELS[result["script"]](result, figure.view).items():
                for name, points in lines.items():
                    panels.setdefault(panel, {}).setdefault(name, []).extend(points)
    return panels


def plot(figure, results, folder):
    """The plot's name, or None for a figure without an axis."""
    panels = panels_of(figure, results)
    if not panels:
        return None
    pyplot = benchlib.pyplot()
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    drawing, axes = pyplot.subplots(
        rows, columns, figsize=(4 * columns, 3 * rows), layout="constrained", squeeze=False
    )
    for place, ((title, axis, unit), allocators) in zip(axes.flat, panels.items()):
        for name, points in allocators.items():
            place.plot(*zip(*sorted(points)), marker="" if axis == "ms" else "o", label=name)
        place.set(title=title, xlabel=axis, ylabel=unit)
        if axis != "ms":
            place.set_xticks(sorted({at for points in allocators.values() for at, _ in points}))
        place.set_ylim(bottom=0)
        place.legend(fontsize=7)
    for place in list(axes.flat)[len(panels) :]:
        place.remove()
    name = figure.name.replace(":", "-")
    benchlib.save_plot(drawing, os.path.join(folder, name))
    pyplot.close(drawing)
    return f"{name}.svg"


# ---- The pages.


def reason(figure):
    return figure.missing or figure.never


def section(figure, results, drawing):
    lines = ["", f"## {figure.name}: {figure.shows}", ""]
    lines += [f"- The paper: {figure.found}"] if figure.found else []
    for result in results:
        lines.append(f"- Here, {result['run']}: {seen(result, figure.view)}")
        lines.append(f"  `{result['command']}`, {result['seconds']} s")
    lines += [f"- Lacks: {figure.lacks}"] if figure.lacks else []
    lines += [f"- Needs: {figure.needs}"] if figure.needs else []
    lines += [f"- {figure.state().capitalize()}: {reason(figure)}"] if reason(figure) else []
    lines += ["", f"![{figure.name}]({drawing})"] if drawing else []
    return lines


def page(figures, of_figure, drawings):
    lines = ["# The papers' figures, measured here", "", f"Made by `{bench_page.command()}`."]
    lines += ["", benchlib.machine_line(), "", "A figure is the median of a run's repetitions. "]
    lines[-1] += "An allocator's range is from one program and number of threads to another."
    for figure in figures:
        lines += section(figure, of_figure[figure.name], drawings.get(figure.name))
    return "\n".join(lines) + "\n"


def claims(figures, of_figure):
    lines = ["# What the papers found, and what was seen here", "", benchlib.machine_line(), ""]
    lines += ["| figure | what | the paper | here |", "|---|---|---|---|"]
    for figure in figures:
        if not figure.found:
            continue
        here = [seen(result, figure.view) for result in of_figure[figure.name]]
        here = here or [f"{figure.state()}: {reason(figure)}"]
        cells = [figure.name, figure.shows, figure.found, "<br>".join(here)]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def put(folder, name, text):
    try:
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise benchlib.Failure(f"cannot write {folder}/{name}: {error.strerror}") from error


def last_claims(folder):
    try:
        with open(os.path.join(folder, "claims.md"), encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise benchlib.Failure(f"{folder} has no claims.md: run scripts/papers first") from error


def write(folder, figures, of_figure, plots):
    drawings = {f.name: plot(f, of_figure[f.name], folder) for f in figures} if plots else {}
    put(folder, "README.md", page(figures, of_figure, drawings))
    put(folder, "claims.md", claims(figures, of_figure))
    benchlib.write_json(
        os.path.join(folder, "results.json"),
        {
            "command": bench_page.command(),
            "figures": {
                figure.name: {
                    "state": figure.state(),
                    "paper": figure.found,
                    "runs": [
                        {key: value for key, value in result.items() if key != "output"}
                        | {"seen": seen(result, figure.view)}
                        for result in of_figure[figure.name]
                    ],
                    "plot": drawings.get(figure.name),
                }
                for figure in figures
            },
        },
    )
