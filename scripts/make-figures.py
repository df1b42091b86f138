#!/usr/bin/env python3
"""make-figures.py: draws docs/figures/*.svg from the measured values in docs/figures/*.csv and *.jsonl.

  scripts/make-figures.py           write the SVG files
  scripts/make-figures.py --check   write nothing; exit 1 if an SVG file differs from what its CSV file gives

The output depends on these files alone. A CSV file has a header line; lines that start with # are comments. pareto.jsonl is
a result of scripts/gpu/pareto.sh. Each figure
has a background of its own and a second set of colours for dark mode. The script stops if two labels overlap, if a label
leaves the figure, or if a value lies outside the axes.
"""
import csv
import functools
import json
import math
import sys
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "figures"
WIDTH = 720
LEFT, RIGHT, TOP = 86, 34, 108  # margins around the plot area, in pixels
FONT_SIZE = {"title": 18, "axis": 13, "label": 13, "caption": 12}
LETTER_WIDTH = 0.58  # average width of a letter or digit, in units of the font size

STYLE = """
  .background { fill: #ffffff; stroke: #d0d7de }
  .grid { stroke: #e4e8ec } .base { stroke: #57606a } .reference { fill: none; stroke: #57606a; stroke-dasharray: 2 4 }
  text { fill: #1f2328; font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 13px }
  .title { font-size: 18px; font-weight: 600 } .caption { font-size: 12px } .axis, .caption { fill: #57606a }
  .line { fill: none; stroke-width: 2.5 } .dashed { stroke-dasharray: 7 5 } .hollow { fill: #ffffff; stroke-width: 2 }
  .fill-1 { fill: #0072b2 } .fill-2 { fill: #d55e00 } .stroke-1 { stroke: #0072b2 } .stroke-2 { stroke: #d55e00 }
  @media (prefers-color-scheme: dark) {
    .background { fill: #0d1117; stroke: #30363d }
    .grid { stroke: #262c34 } .base, .reference { stroke: #8b949e }
    text { fill: #e6edf3 } .axis, .caption { fill: #9aa4af } .hollow { fill: #0d1117 }
    .fill-1 { fill: #56b4e9 } .fill-2 { fill: #f0883e } .stroke-1 { stroke: #56b4e9 } .stroke-2 { stroke: #f0883e }
  }
"""


class FigureError(Exception):
    """A CSV file or a figure that cannot be used; the text says which and why."""


def read_rows(name):
    """Rows of docs/figures/NAME.csv as dictionaries of strings, without comment lines."""
    path = FOLDER / f"{name}.csv"
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip() and not line.startswith("#")]
    rows = list(csv.DictReader(lines, strict=True))
    if not rows:
        raise FigureError(f"{path.name}: no rows")
    return rows


def number(row, column):
    try:
        return float(row[column])
    except (KeyError, TypeError, ValueError) as error:
        raise FigureError(f"column {column}: no number in {dict(row)}") from error


def thousands(value):
    return f"{value:,.0f}"


def ticks(low, high, step):
    """Multiples of step from low to high, both included."""
    return [low + step * i for i in range(round((high - low) / step) + 1)]


def nice_step(span, count):
    """The smallest of 1, 2, 2.5, 5 times a power of ten that divides span into at most count parts."""
    power = 10 ** math.floor(math.log10(span / count))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if span / (factor * power) <= count)


class Figure:
    """An SVG figure with one plot area, a title, a caption and two axes in units of the data."""

    def __init__(self, title, subtitle, caption, plot_height, x_label, y_label):
        self.parts, self.boxes = [], []
        self.plot_height = plot_height
        self.bottom = TOP + plot_height
        self.height = self.bottom + 66 + 18 * len(caption)
        self.title = title
        self.description = " ".join([subtitle] + caption)
        self.text(24, 36, title, "title", anchor="start")
        self.text(24, 58, subtitle, "axis", anchor="start")
        self.text(LEFT + (WIDTH - LEFT - RIGHT) / 2, self.bottom + 44, x_label, "axis")
        self.text(20, TOP + plot_height / 2, y_label, "axis", vertical=True)
        for i, line in enumerate(caption):
            self.text(24, self.bottom + 74 + 18 * i, line, "caption", anchor="start")

    def axes(self, x_range, y_range):
        self.x_range, self.y_range = x_range, y_range

    def x(self, value):
        return self.place(value, self.x_range, LEFT, WIDTH - LEFT - RIGHT)

    def y(self, value):
        return self.bottom - self.place(value, self.y_range, 0, self.plot_height)

    @staticmethod
    def place(value, axis, start, length):
        if not axis[0] <= value <= axis[1]:
            raise FigureError(f"value {value} lies outside its axis, {axis[0]} to {axis[1]}")
        return start + length * (value - axis[0]) / (axis[1] - axis[0])

    def add(self, element):
        self.parts.append(element)

    def box(self, x, y, string, kind, anchor, vertical=False):
        """The rectangle (x0, y0, x1, y1) that a text is estimated to cover."""
        size = FONT_SIZE[kind]
        width = len(string) * size * LETTER_WIDTH
        if vertical:
            return x - size, y - width / 2, x + size * 0.3, y + width / 2
        left = x - width * {"start": 0, "middle": 0.5, "end": 1}[anchor]
        return left, y - size * 0.8, left + width, y + size * 0.25

    def is_free(self, box):
        inside = box[0] >= 2 and box[1] >= 2 and box[2] <= WIDTH - 2 and box[3] <= self.height - 2
        return inside and not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in self.boxes)

    def text(self, x, y, string, kind="label", anchor="middle", vertical=False):
        box = self.box(x, y, string, kind, anchor, vertical)
        if not self.is_free(box):
            raise FigureError(f"label {string!r} overlaps another label or leaves the figure")
        self.boxes.append(box)
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if vertical else ""
        self.add(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(string)}</text>')

    def label_point(self, x, y, string, more=()):
        """Writes a label at the first free place around a point at pixels (x, y). more: further places, (dx, dy, anchor)."""
        for dx, dy, anchor in ((0, 22, "middle"), (0, -13, "middle"), (11, 5, "start"), (-11, 5, "end"), (9, 19, "start"),
                               (-9, 19, "end"), (9, -10, "start"), (-9, -10, "end"), *more):
            box = self.box(x + dx, y + dy, string, "label", anchor)
            inside_plot = box[0] > LEFT and box[2] < WIDTH - 4 and box[1] > TOP - 14 and box[3] < self.bottom
            if inside_plot and self.is_free(box):
                return self.text(x + dx, y + dy, string, anchor=anchor)
        raise FigureError(f"no free place for the label {string!r}")

    def line(self, x0, y0, x1, y1, style):
        self.add(f'<line class="{style}" x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"/>')

    def grid(self, x_ticks, y_ticks, name_x, name_y):
        for value in y_ticks:
            self.line(LEFT, self.y(value), WIDTH - RIGHT, self.y(value), "base" if value == y_ticks[0] else "grid")
            self.text(LEFT - 8, self.y(value) + 4.5, name_y(value), "axis", anchor="end")
        for value in x_ticks:
            self.line(self.x(value), self.bottom, self.x(value), self.bottom + 5, "base")
            self.text(self.x(value), self.bottom + 21, name_x(value), "axis")

    def curve(self, points, style):
        """Draws a polyline through points in units of the data and keeps labels away from it."""
        pixels = [(self.x(x), self.y(y)) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
        self.add(f'<polyline class="{style}" points="{path}"/>')
        for (x0, y0), (x1, y1) in zip(pixels, pixels[1:]):
            steps = max(1, math.ceil(math.hypot(x1 - x0, y1 - y0) / 4))
            for i in range(steps + 1):
                x, y = x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps
                self.boxes.append((x - 1.5, y - 1.5, x + 1.5, y + 1.5))

    def marker(self, x, y, shape, style):
        """Draws a marker at pixels (x, y) and keeps labels away from it."""
        if shape == "circle":
            self.add(f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>')
        else:
            self.add(f'<rect class="{style}" x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10"/>')
        self.boxes.append((x - 5, y - 5, x + 5, y + 5))

    def svg(self):
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{self.height}" '
                f'viewBox="0 0 {WIDTH} {self.height}" role="img" aria-labelledby="title description">')
        return "\n".join([head, f'<title id="title">{escape(self.title)}</title>',
                          f'<desc id="description">{escape(self.description)}</desc>', f"<style>{STYLE}</style>",
                          f'<rect class="background" x="0.5" y="0.5" width="{WIDTH - 1}" height="{self.height - 1}" rx="8"/>',
                          *self.parts, "</svg>", ""])


def legend(figure, entries):
    """A row of (kind, style, text) above the plot area, aligned to its left side. Kinds: bar, circle, square, hollow."""
    x, y = LEFT + 4, TOP - 20
    for kind, style, string in entries:
        if kind == "bar":
            figure.add(f'<rect class="fill-{style}" x="{x:.1f}" y="{y - 11}" width="14" height="14" rx="2"/>')
        else:
            dashed = " dashed" if kind == "hollow" else ""
            if kind != "square":
                figure.add(f'<line class="line stroke-{style}{dashed}" x1="{x - 4:.1f}" y1="{y - 4}" x2="{x + 18:.1f}" y2="{y - 4}"/>')
            fill = f"hollow stroke-{style}" if kind == "hollow" else f"fill-{style}"
            figure.marker(x + 7, y - 4, "square" if kind == "square" else "circle", fill)
        figure.text(x + 24, y + 0.5, string, anchor="start")
        x += 24 + len(string) * FONT_SIZE["label"] * LETTER_WIDTH + 22


def training_speed():
    rows = read_rows("training_speed")
    figure = Figure("Training speed of cresnet and PyTorch", "Images per second; higher is better. Batch 256, 224 × 224 images, 16-bit floating point.",
                    ["Machine: one NVIDIA H200. cresnet: fp16, bitwise reproducible (train.deterministic = yes).",
                     "PyTorch 2.11: torch.compile, the whole step in one CUDA graph, fp16, in the same call."],
                    270, "network (ratio of cresnet to PyTorch)", "training speed (images/s)")
    values = [(row["network"], number(row, "cresnet_images_per_second"), number(row, "pytorch_images_per_second")) for row in rows]
    highest = max(max(ours, theirs) for _, ours, theirs in values)
    step = nice_step(highest * 1.08, 7)
    top = step * math.ceil(highest * 1.08 / step)
    figure.axes((0, len(values)), (0, top))
    figure.grid([], ticks(0, top, step), str, thousands)
    for i, (network, ours, theirs) in enumerate(values):
        for value, style, start in ((ours, 1, 0.16), (theirs, 2, 0.51)):
            left, right, y = figure.x(i + start), figure.x(i + start + 0.33), figure.y(value)
            figure.add(f'<rect class="fill-{style}" x="{left:.1f}" y="{y:.1f}" width="{right - left:.1f}" height="{figure.bottom - y:.1f}"/>')
            figure.text((left + right) / 2, y - 7, thousands(value))
        figure.text(figure.x(i + 0.5), figure.bottom + 21, f"{network} ({ours / theirs:.2f}×)", "axis")
    legend(figure, [("bar", 1, "cresnet"), ("bar", 2, "PyTorch")])
    return figure.svg()


def memory_speed():
    rows = read_rows("memory_speed")
    free = [row for row in rows if not row["limit_mib"]]
    if len(free) != 1:
        raise FigureError("memory_speed.csv: exactly one row has no limit")

    def speeds(column):
        """(device memory, speed in percent of the speed without a limit) of every row, by memory."""
        return sorted((number(row, "device_memory_mib"), 100 / (1 + number(row, column) / 100)) for row in rows)

    measured, predicted = speeds("slowdown_percent"), speeds("predicted_slowdown_percent")
    least = min(rows, key=lambda row: number(row, "device_memory_mib"))
    figure = Figure("ResNet-50: training speed under a device memory limit", "Higher is better. Batch 256, 224 × 224 images, fp16.",
                    ["Machine: one NVIDIA H200. Each filled circle is one run; all but the rightmost set memory.limit.",
                     f"The run in {thousands(number(least, 'device_memory_mib'))} MiB trains {thousands(number(least, 'images_per_second'))} images/s.",
                     "A limit is kept by recomputation and by offloading to host memory. Results are bitwise identical.",
                     "Neither axis starts at zero."],
                    270, "device memory in use (MiB)", "training speed (% of speed without limit)")
    low = 2 * math.floor(min(y for _, y in measured + predicted) / 2 - 0.5)
    high = 2 * math.ceil(max(y for _, y in measured + predicted) / 2 + 0.5)
    first, last = 1000 * math.floor(measured[0][0] / 1000 - 0.2), 1000 * math.ceil(measured[-1][0] / 1000)
    figure.axes((first, last), (low, high))
    figure.grid(ticks(first, last, 1000), ticks(low, high, 2), thousands, thousands)
    figure.curve(predicted, "line stroke-2 dashed")
    figure.curve(measured, "line stroke-1")
    for x, y in predicted:
        figure.marker(figure.x(x), figure.y(y), "circle", "hollow stroke-2")
    for x, y in measured:
        figure.marker(figure.x(x), figure.y(y), "circle", "fill-1")
    legend(figure, [("circle", 1, "measured"), ("hollow", 2, "predicted by the plan")])
    labelled = [figure.x(number(free[0], "device_memory_mib"))]  # points that lie close together get one label
    figure.label_point(labelled[0], figure.y(100), "no limit")
    for x, y in measured:
        if all(abs(figure.x(x) - other) > 64 for other in labelled):
            figure.label_point(figure.x(x), figure.y(y), f"{y:.1f} %")
            labelled.append(figure.x(x))
    return figure.svg()


def accuracy_sparsity():
    rows = read_rows("accuracy_sparsity")
    caption = ["Machine: one NVIDIA H200. One training run per point, seed 1.", "Dense network: 200 epochs. Pruned networks: 160 further epochs during which weights are pruned;",
               "their exponential moving averages are evaluated. The vertical axis does not start at zero."]
    figure = Figure("Accuracy of a pruned ResNet-56 on CIFAR-10", "Top-1 accuracy on the 10,000 test images; higher is better.",
                    caption, 270, "sparsity (% of the weights that are zero)", "top-1 accuracy (%)")
    points = [(number(row, "sparsity_percent"), number(row, "top1_percent"), row["pattern"]) for row in rows]
    unknown = {pattern for _, _, pattern in points} - {"none", "unstructured", "2:4"}
    if unknown:
        raise FigureError(f"accuracy_sparsity.csv: unknown pattern {', '.join(sorted(unknown))}")
    low = 0.5 * math.floor(min(y for _, y, _ in points) / 0.5 - 0.5)
    high = 0.5 * math.ceil(max(y for _, y, _ in points) / 0.5 + 0.5)
    figure.axes((0, 100), (low, high))
    figure.grid(ticks(0, 100, 10), ticks(low, high, 0.5), lambda v: f"{v:.0f}", lambda v: f"{v:.1f}")
    dense = next(y for _, y, pattern in points if pattern == "none")
    figure.curve([(0, dense), (100, dense)], "reference")
    figure.curve(sorted((x, y) for x, y, pattern in points if pattern == "unstructured"), "line stroke-1")
    for x, y, pattern in points:
        shape, style = ("square", "fill-2") if pattern == "2:4" else ("circle", "hollow stroke-1" if pattern == "none" else "fill-1")
        figure.marker(figure.x(x), figure.y(y), shape, style)
    for x, y, pattern in points:
        figure.label_point(figure.x(x), figure.y(y), f"dense: {y:.2f} %" if pattern == "none" else f"{y:.2f} %")
    legend(figure, [("circle", 1, "unstructured pruning"), ("square", 2, "2:4 pruning (two of every four weights)")])
    return figure.svg()


PARETO_BATCH = "1000"
PARETO_PRECISIONS = {"fp32": "32-bit floating point", "fp16": "16-bit floating point", "int8": "8 bits"}


def pareto_label(row):
    """A short name of a network: ResNet-20, 2.1x, 2:4, 16x16, 90 %."""
    pattern = row["pattern"]
    if pattern == "dense":
        return row["network"]
    if pattern == "dense, further epochs":
        return "longer"
    words = pattern.split(", ")
    if words[0] == "channels":
        return words[1].split()[0].replace("x", "×")
    return words[-1] if words[0] == "single weights" else words[0].replace("blocks ", "").replace("x", "×")


def pareto(precision):
    rows = [json.loads(line) for line in (FOLDER / "pareto.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["data"] == "cifar10" and row["precision"] == precision and "top1" in row and PARETO_BATCH in row["images_per_s"]]
    if not rows:
        raise FigureError("pareto.jsonl: no rows with accuracy and speed")
    seeds = len(rows[0]["correct"])
    multiples = {row["pattern"].split("multiples of ")[-1] for row in rows if row["pattern"].startswith("channels")}
    channels = f", in multiples of {multiples.pop()} channels" if len(multiples) == 1 else ""
    figure = Figure(f"Accuracy and speed on CIFAR-10, {precision}", f"ResNet-20 to 56, and pruned ResNet-56. Batches of 1000 images, {PARETO_PRECISIONS[precision]}.",
                    [f"Machine: one NVIDIA H200. {'One seed' if seeds == 1 else f'Mean of {seeds} seeds'}, last epoch. Dotted line: the networks that no other one beats.",
                     f"Filled blue: times fewer multiply-adds{channels}.",
                     "Orange: 2:4; blocks of a size, 80 % pruned; percent of single weights pruned.",
                     "“Longer” is ResNet-56 with as many epochs as the pruned networks.",
                     "The vertical axis does not start at zero."], 330, "inference speed (thousands of images/s)", "top-1 accuracy (%)")
    points = sorted((row["images_per_s"][PARETO_BATCH], row["top1"], row) for row in rows)
    step = nice_step(points[-1][0] * 1.1, 6)
    y_step = nice_step(max(y for _, y, _ in points) - min(y for _, y, _ in points) + 0.2, 7)
    low = y_step * math.floor(min(y for _, y, _ in points) / y_step - 0.3)
    high = y_step * math.ceil(max(y for _, y, _ in points) / y_step + 0.3)
    right = step * math.ceil(points[-1][0] * 1.1 / step)
    figure.axes((0, right), (low, high))
    figure.grid(ticks(0, right, step), ticks(low, high, y_step), lambda v: f"{v / 1000:g}", lambda v: f"{v:.1f}")
    figure.curve([(x, y) for x, y, row in points if PARETO_BATCH in row["front"]], "reference")
    for x, y, row in points:
        kind = row["pattern"].split(",")[0]
        shape, style = {"dense": ("circle", "hollow stroke-1"), "channels": ("circle", "fill-1")}.get(kind, ("square", "fill-2"))
        figure.marker(figure.x(x), figure.y(y), shape, style)
    more = [(dx, dy, anchor) for dy in (36, -27, 50, -41) for dx, anchor in ((0, "middle"), (14, "start"), (-14, "end"))]
    for x, y, row in points:
        figure.label_point(figure.x(x), figure.y(y), pareto_label(row), more)
    legend(figure, [("hollow", 1, "dense networks"), ("circle", 1, "fewer channels"), ("square", 2, "2:4, blocks, single weights")])
    return figure.svg()


FIGURES = {"training-speed": training_speed, "memory-speed": memory_speed, "accuracy-sparsity": accuracy_sparsity}
if (FOLDER / "pareto.jsonl").exists():
    FIGURES.update({f"pareto-{precision}": functools.partial(pareto, precision) for precision in PARETO_PRECISIONS})


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    check = sys.argv[1:] == ["--check"]
    failed = 0
    for name, draw in FIGURES.items():
        path = FOLDER / f"{name}.svg"
        try:
            svg = draw()
        except (FigureError, OSError, csv.Error) as error:
            print(f"make-figures.py: {name}: {error}", file=sys.stderr)
            failed += 1
            continue
        if not check:
            path.write_text(svg, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != svg:
            print(f"make-figures.py: docs/figures/{path.name} differs from its CSV file: run scripts/make-figures.py", file=sys.stderr)
            failed += 1
    if check:
        print(f"{len(FIGURES) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
