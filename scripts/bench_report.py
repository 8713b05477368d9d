# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The tables, the JSON and the plots that scripts/bench makes of its runs."""

import os

import bench_page
import bench_programs
import benchlib
from benchlib import geometric_mean, median

MEASURES = ("time", "cpu", "memory")
TITLES = {"time": "Time", "cpu": "CPU time", "memory": "Peak memory"}
FAR = 1.15  # more over the best is counted


def figures(case, name):
    """The figures of one program under one allocator; None if it did not run or failed."""
    results = case.results.get(name)
    if not results or name in case.failures:
        return None
    live = [bench_programs.of_live(result) for result in results]
    return {
        "figure": benchlib.summary([case.program.figure(result) for result in results]),
        "seconds": benchlib.summary([result.seconds for result in results]),
        "cpu": benchlib.summary([case.program.cpu(result) for result in results]),
        "user": median([result.user for result in results]),
        "system": median([result.system for result in results]),
        # None if the program ended before its memory was looked at.
        "peak_bytes": median([result.peak for result in results]) or None,
        "peak_of_live": median(live) if None not in live else None,
    }


class Comparison:
    """The figures of all cases, and how they compare."""

    def __init__(self, variants, cases):
        self.cases = cases
        self.names = [variant.name for variant in variants]
        self.base = benchlib.LIBC if benchlib.LIBC in self.names else self.names[0]
        self.rivals = [
            v.name for v in variants if v.name not in benchlib.PERSISTENT and not v.adapter
        ]
        self.data = {
            case.name: {name: figures(case, name) for name in self.names} for case in cases
        }

    def value(self, case, name, what):
        """what: one of MEASURES."""
        data = self.data[case.name][name]
        if not data:
            return None
        if what == "cpu":
            # Other work only adds to it: the caches are shared.
            return data["cpu"]["min"]
        return data["figure"]["median"] if what == "time" else data["peak_bytes"]

    def over_base(self, case, name, what):
        value, base = self.value(case, name, what), self.value(case, self.base, what)
        return value / base if value and base else None

    def best(self, case, what):
        """(name, value) of the best allocator that is neither ours nor an adapter."""
        known = [(self.value(case, name, what), name) for name in self.rivals]
        known = [pair for pair in known if pair[0]]
        return min(known)[::-1] if known else (None, None)

    def over_best(self, case, name, what):
        value, (_, best) = self.value(case, name, what), self.best(case, what)
        return value / best if value and best else None

    def means(self, what, group=None):
        """{allocator: geometric mean over base}, of the programs that ran under both."""
        cases = [case for case in self.cases if group in (None, case.program.group)]
        ratios = {n: [self.over_base(case, n, what) for case in cases] for n in self.names}
        return {n: geometric_mean(filter(None, r)) for n, r in ratios.items() if any(r)}

    def worst(self, name, what, ratio):
        """(ratio, program) where the ratio, over_base or over_best, is the highest."""
        known = [(ratio(case, name, what), case.name) for case in self.cases]
        return max((pair for pair in known if pair[0]), default=(None, "-"))


# ---- Tables.


def number(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


def ratios(comparison, what):
    """One line for each program: what it took with the base, and the others over that."""
    others = [name for name in comparison.names if name != comparison.base]
    ours = [name for name in comparison.names if name in (benchlib.OURS, benchlib.VOLATILE)]
    unit = " MB" if what == "memory" else ""
    header = ["program", comparison.base + unit, *(f"{name}/" for name in others), "best"]
    header += [f"{name}/best" for name in ours]
    rows = []
    for case in comparison.cases:
        base = comparison.value(case, comparison.base, what)
        if what == "time":
            shown = f"{number(base, 3)} {'ns' if case.program.per_operation() else 's'}"
        elif what == "cpu":
            shown = f"{number(base, 3)} {'ns' if case.program.lasts else 's'}"
        else:
            shown = number(base and base / 1e6, 1)
        row = [case.name, shown]
        row += [number(comparison.over_base(case, name, what)) for name in others]
        row += [comparison.best(case, what)[0] or "-"]
        rows.append(row + [number(comparison.over_best(case, name, what)) for name in ours])
    groups = [
        g for g in bench_programs.GROUPS if any(c.program.group == g for c in comparison.cases)
    ]
    for group in groups + ([None] if len(groups) > 1 else []):
        means = comparison.means(what, group)
        label = f"geometric mean, {group or 'all'}"
        rows.append(
            [label, "", *(number(means.get(name)) for name in others), ""] + [""] * len(ours)
        )
    return benchlib.table(header, rows)


def standing(comparison):
    """A line for each allocator: CPU time and memory of all programs together.

    The best is the best of the allocators that are not ours, program by program, or by the mean.
    """
    base, means = comparison.base, {what: comparison.means(what) for what in ("cpu", "memory")}
    best = min((means["cpu"][n] for n in comparison.rivals if n in means["cpu"]), default=None)
    header = ["allocator", f"CPU/{base}", "/best", "most over best", "in", f"over {FAR}"]
    header += [f"memory/{base}", "most", "of"]
    rows = []
    for name in comparison.names:
        cpu, memory = means["cpu"].get(name), means["memory"].get(name)
        over = [comparison.over_best(case, name, "cpu") for case in comparison.cases]
        most, where = comparison.worst(name, "cpu", comparison.over_best)
        peak, whose = comparison.worst(name, "memory", comparison.over_base)
        row = [name, number(cpu, 3), number(cpu / best if cpu and best else None, 3)]
        row += [number(most), where, sum(1 for ratio in over if ratio and ratio > FAR)]
        rows.append(row + [number(memory, 3), number(peak), whose])
    return benchlib.table(header, rows)


def every_figure(comparison):
    header = ["program", "allocator", "median", f"/{comparison.base}", "/best", "spread"]
    header += ["user s", "sys s", "peak MB", "peak/live"]
    rows = []
    for case in comparison.cases:
        for name, data in comparison.data[case.name].items():
            if not data:
                continue
            unit = "ns/op" if case.program.per_operation() else "s"
            rows.append(
                [
                    case.name,
                    name,
                    f"{data['figure']['median']:.3f} {unit}",
                    number(comparison.over_base(case, name, "time"), 3),
                    number(comparison.over_best(case, name, "time"), 3),
                    f"{data['figure']['spread']:.1%}",
                    number(data["user"]),
                    number(data["system"]),
                    number(data["peak_bytes"] and data["peak_bytes"] / 1e6, 1),
                    number(data["peak_of_live"], 3),
                ]
            )
    return benchlib.table(header, rows)


def of_live(comparison):
    """Peak memory over live bytes of the programs that count them, or "" if there are none."""
    rows = []
    for case in comparison.cases:
        data = comparison.data[case.name]
        cells = [data[name] and data[name]["peak_of_live"] for name in comparison.names]
        if any(cells):
            rows.append([case.name, *(number(cell, 3) for cell in cells)])
    return benchlib.table(["peak memory over live bytes", *comparison.names], rows) if rows else ""


def failures(cases):
    return [
        f"{case.name}: {name}: FAILED: {why}"
        for case in cases
        for name, why in case.failures.items()
    ]


# ---- Plots.

MARKERS = "oDs^vP*X<>"


def plot(comparison, what, title, path):
    """A line a program, a mark an allocator, over the base."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = [c for c in comparison.cases if comparison.value(c, comparison.base, what)]
    if not cases:
        return
    figure, axes = pyplot.subplots(figsize=(8, 1.6 + 0.24 * len(cases)), layout="constrained")
    for index, name in enumerate(comparison.names):
        points = [(comparison.over_base(c, name, what), y) for y, c in enumerate(cases)]
        points = [point for point in points if point[0]]
        if points:
            emphasis = {"s": 48, "zorder": 3} if name == benchlib.OURS else {"s": 28, "zorder": 2}
            axes.scatter(
                *zip(*points), label=name, marker=MARKERS[index % len(MARKERS)], **emphasis
            )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(cases)), [case.name for case in cases])
    axes.invert_yaxis()
    axes.grid(axis="both", linewidth=0.3)
    measured = "time" if what == "time" else "peak memory"
    axes.set_xlabel(f"{measured}, {comparison.base} = 1; left is better")
    figure.suptitle(title, fontsize=6)
    axes.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(comparison.names), fontsize=8
    )
    for kind in ("png", "svg"):
        figure.savefig(f"{path}.{kind}", dpi=150)
    pyplot.close(figure)


# ---- All of it.


class Output:
    """The directory of results. It is made before the first run: a failure here wastes no run."""

    def __init__(self, options):
        self.folder = options.output or str(benchlib.build_dir() / "results")
        self.machine, self.facts = benchlib.machine_line(), benchlib.machine()
        try:
            os.makedirs(self.folder, exist_ok=True)
        except OSError as error:
            raise benchlib.Failure(f"cannot make {self.folder}: {error.strerror}") from error
        self.plots = not options.no_plots
        try:
            import matplotlib as _
        except ImportError:
            if self.plots:
                print(
                    "no plots: python3-matplotlib is missing, scripts/bootstrap --bench installs it"
                )
            self.plots = False

    def path(self, name):
        return os.path.join(self.folder, name)

    def how(self, options):
        warm = f"; {options.warm >> 20} MB touched before each" if options.warm else ""
        return f"{options.runs} runs each, medians; scale {options.scale}{warm}"

    def page(self, options, variants, comparison):
        base = comparison.base
        sections = [
            *((f"{TITLES[what]} over {base}", ratios(comparison, what)) for what in MEASURES),
            ("All programs together", standing(comparison)),
            ("Peak memory over live bytes", of_live(comparison)),
            ("Every figure", every_figure(comparison)),
            ("Runs that do not count", "\n".join(failures(comparison.cases))),
        ]
        drawn = ("time", "memory") if self.plots else ()
        plots = {f"{TITLES[what]} over {base}": f"{what}.svg" for what in drawn}
        versions = {variant.name: benchlib.version(variant) for variant in variants}
        return bench_page.page(self.facts, versions, self.how(options), sections, plots)

    def text(self, options, variants, comparison, full):
        lines = [self.machine]
        lines += [f"{variant.name}: {benchlib.version(variant)}" for variant in variants]
        lines += [self.how(options), ""]
        if full:
            lines += [every_figure(comparison), ""]
        for what in MEASURES:
            lines += [f"{TITLES[what]} over {comparison.base}", ratios(comparison, what), ""]
        lines += ["All programs together", standing(comparison)]
        lines += ["", of_live(comparison)] if of_live(comparison) else []
        return "\n".join(lines + failures(comparison.cases)) + "\n"

    def put(self, name, text):
        try:
            with open(self.path(name), "w", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise benchlib.Failure(f"cannot write {self.path(name)}: {error.strerror}") from error

    def write(self, options, variants, cases):
        comparison = Comparison(variants, cases)
        print(self.text(options, variants, comparison, full=False), end="")
        self.put("table.txt", self.text(options, variants, comparison, full=True))
        self.put("README.md", self.page(options, variants, comparison))
        benchlib.write_json(self.path("results.json"), self.data(options, variants, comparison))
        if self.plots:
            plot(comparison, "time", self.machine, self.path("time"))
            plot(comparison, "memory", self.machine, self.path("memory"))
        print(f"Every figure is in {self.folder}")

    def data(self, options, variants, comparison):
        return {
            "runs": options.runs,
            "scale": options.scale,
            "warm_bytes": options.warm,
            "settings": dict(options.settings),
            "allocators": {variant.name: benchlib.version(variant) for variant in variants},
            "base": comparison.base,
            "programs": {
                case.name: {
                    "group": case.program.group,
                    "threads": case.threads,
                    "unit": "ns/op" if case.program.per_operation() else "s",
                    "allocators": comparison.data[case.name],
                    "failures": case.failures,
                }
                for case in comparison.cases
            },
            "geometric_means": {what: comparison.means(what) for what in MEASURES},
        }
