#!/usr/bin/env python3
"""test_report.py: the HTML page of a run. It is well-formed, loads nothing from outside, shows the numbers of log.jsonl, of
`eval` and of the checkpoint; names with a meaning in HTML do no harm; what is missing is said and hides nothing else. Where
chromium is installed, the page is opened in it: no message on the console, and something is drawn.
"""
import base64
import csv
import glob
import html.parser
import json
import math
import os
import random
import re
import shutil
import subprocess
import time

from support import TINY_MODEL, check, cresnet, ends, good, run, skip
import png
import weights_file

CONFIG = TINY_MODEL + """[data]
kind = folder
root = images
image_size = 16
eval_resize = 16
workers = 0
[train]
batch = 8
epochs = 2
device = cpu
threads = 1
log_every = 1
keep = 10
"""
CLASSES = ["<script>alert(1)</script>", "a&b \"c\" 'd'", "Käse", "plain"]
VOID = {"meta", "link", "img", "br"}


class Page(html.parser.HTMLParser):
    """Balance of tags, all attributes, text by tag."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.faults, self.attributes, self.text, self.tags, self.titles = [], [], [], "", {}, []
        self.feed(text)
        self.close()
        if self.open:
            self.faults.append(f"left open: {self.open}")

    def handle_starttag(self, tag, attrs):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.attributes += [(tag, k, v) for k, v in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "title":
            self.titles.append("")

    def handle_startendtag(self, tag, attrs):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.attributes += [(tag, k, v) for k, v in attrs]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data):
        if self.open and self.open[-1] == "title":
            self.titles[-1] += data
        elif not self.open or self.open[-1] != "style":
            self.text += data


def page_of(path):
    return Page(open(path, encoding="utf-8", errors="strict").read())


def check_page(page):
    check("tags are balanced", not page.faults, page.faults)
    check("no script", "script" not in page.tags and not any(k.startswith("on") for _, k, _ in page.attributes))
    outside = [(t, k, v) for t, k, v in page.attributes if v and re.search(r"(https?:|//|url\()", v) and not v.startswith(("data:image/png", "data:image/jpeg"))]
    check("nothing from outside", not outside, outside)
    check("CSP", any(v and v.startswith("default-src 'none'") for _, _, v in page.attributes))
    for part in ("curves", "speed", "evaluation", "memory", "sparsity", "config"):
        check(f"section {part}", ("section", "id", part) in page.attributes)
    check("details are closed", page.tags.get("details", 0) >= 4 and ("details", "open", None) not in page.attributes)


def log_of(run):
    return [json.loads(line) for line in open(f"{run}/log.jsonl")]


def kept_of(log):
    """{(event, step): entry} of training and evaluation: a resumed run does steps anew."""
    kept = {}
    for entry in log:
        if entry["event"] == "resume":
            kept = {key: v for key, v in kept.items() if key[1] <= entry["step"]}
        if entry["event"] in ("train", "eval"):
            kept[entry["event"], entry["step"]] = entry
    return kept


def check_title(page, run_dir, subject):
    """Network, data, date and duration: the sum over the processes of the run, from the times in its log."""
    times = [(entry["event"], entry["time"]) for entry in log_of(run_dir) if "time" in entry]
    day = time.strftime("%Y-%m-%d", time.gmtime(times[0][1]))
    seconds = sum(now - before for (_, before), (event, now) in zip(times, times[1:]) if event not in ("start", "resume"))
    check("subject", page.titles[0] == f"{subject}, {day}, {seconds} s", (page.titles[0], seconds))
    check("heading", page.text.lstrip().startswith(subject), page.text[:200])


def check_numbers(page, run_dir):
    """Each step can be pointed at. The best evaluation is the same number in the card, in the legend and in the tooltip of its step."""
    log = log_of(run_dir)
    kept, per_epoch = kept_of(log), next(entry["steps_per_epoch"] for entry in log if entry["event"] == "start")
    steps = sorted(step for event, step in kept if event == "train")
    cut = [step for step in steps if not any(t.startswith(f"step {step}\n") and f"training {kept['train', step]['loss']:.4f}" in t for t in page.titles)]
    check("every step's loss can be pointed at", not cut, cut)
    slices = sum(t.startswith("step ") and "\ntraining " in t and "top-1" not in t for t in page.titles)
    check("each step once", slices == len(steps), (slices, len(steps)))
    best = max((e for (event, _), e in kept.items() if event == "eval"), key=lambda e: (e["top1"], -e["step"]))
    step, value, text = best["step"], f"{100 * best['top1']:.2f} %", page.text.replace("\n", "")
    check("the card", f"best validation top-1{value}at epoch{round(100 * step / per_epoch) / 100:g} (step {step})" in text, (value, text[:400]))
    check("the legend", re.search(rf"validation top-1: [\d.]+ %, at best {re.escape(value)}", text), value)
    check("the tooltip", any(t.startswith(f"step {step}\nepoch {step / per_epoch:.2f}\n") and f"validation top-1 {value}" in t for t in page.titles))
    check("a line at the best step", ("path", "class", "best") in page.attributes and ("circle", "class", "ring s2") in page.attributes)


def check_classes(page, rows):
    """Precision, recall and F1 from the confusion matrix, and their means."""
    names, count = rows[0][1:], [[int(n) for n in row[1:]] for row in rows[1:]]
    text = page.text.replace("\n", "")
    sums, lines = [0, 0, 0], []
    for i, name in enumerate(names):
        images, predicted = sum(count[i]), sum(row[i] for row in count)
        precision, recall = count[i][i] / predicted if predicted else 0, count[i][i] / images
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0
        lines.append((f1, i, f"{name}{images}{count[i][i]}{100 * precision:.2f} %{100 * recall:.2f} %{100 * f1:.2f} %"))
        sums = [a + b for a, b in zip(sums, (precision, recall, f1))]
    at = [text.find(line) for _, _, line in sorted(lines)]
    check("classes, lowest F1 first", -1 not in at and at == sorted(at), (at, sorted(lines)))
    means = "".join(f"{100 * v / len(names):.2f} %" for v in sums)
    check("macro averages", f"macro average{sum(map(sum, count))}{sum(count[i][i] for i in range(len(names)))}{means}" in text, means)


def check_top_losses(page):
    """The images with the highest loss, with both probabilities, as `predict` says."""
    found = {}
    for folder in sorted(glob.glob("images/val/*")):
        ran = cresnet("predict", "run/best", folder, "-k", "4", "--json", "-q")
        for line in ran.stdout.splitlines():
            entry = json.loads(line)
            found[entry["image"]] = {t["class"]: t["probability"] for t in entry["top"]}
    losses = sorted(((-math.log(max(p[os.path.basename(os.path.dirname(f))], 1e-30)), f) for f, p in found.items()), reverse=True)
    text = page.text[page.text.index("Top losses"):]
    shown = [float(v) for v in re.findall(r"loss (\d+\.\d+)true", text.replace("\n", ""))]
    check("24 top losses", len(shown) == 24 and shown == sorted(shown, reverse=True), shown)
    check("their losses", all(abs(a - b[0]) < 2e-3 + 1e-3 * b[0] for a, b in zip(shown, losses)), (shown[:4], losses[:4]))
    _, worst = losses[0]
    label = os.path.basename(os.path.dirname(worst))
    predicted = max(found[worst], key=found[worst].get)
    want = f"true{label}{100 * found[worst][label]:.1f}\u00a0%predicted{predicted}{100 * found[worst][predicted]:.1f}\u00a0%{os.path.basename(worst)}"
    check("both probabilities", want in text.replace("\n", ""), (want, text[:300]))
    check("every image opens", all(("a", "href", f"#loss-{i + 1}") in page.attributes and ("figure", "id", f"loss-{i + 1}") in page.attributes for i in range(24)))


def check_evaluation(page):
    ran = good("eval", "eval", "run/best", "--confusion", "matrix.csv", "--json")
    rows = list(csv.reader(open("matrix.csv", encoding="utf-8", errors="replace")))
    names = rows[0][1:]
    cells = [t for t in page.titles if re.search(r"\d+ of \d+$", t)]
    check("a cell a pair", len(cells) == len(names) ** 2, len(cells))
    for row in rows[1:]:
        of = sum(map(int, row[1:]))
        for name, n in zip(names, row[1:]):
            want = f"{row[0]}, correct: {n} of {of}" if name == row[0] else f"{row[0]} predicted as {name}: {n} of {of}"
            check("a cell", want in cells, (want, cells))
    check_classes(page, rows)
    check_top_losses(page)
    images = [v for t, k, v in page.attributes if t == "img" and k == "src"]
    check("24 images", len(images) == 24, len(images))
    for image in images:
        data = base64.b64decode(image.split(",")[1])
        check("small images are PNG, others JPEG", data.startswith(b"\x89PNG" if image.startswith("data:image/png") else b"\xff\xd8\xff"))
    sizes = [(t, k, v) for t, k, v in page.attributes if t == "img" and k in ("width", "height")]
    check("images keep their shape", {v for _, k, v in sizes if k == "width"} <= {"20", "224"} and {v for _, k, v in sizes if k == "height"} <= {"16", "112"}, sizes)
    check("scores", f"{json.loads(ran.stdout)['correct']} of {json.loads(ran.stdout)['images']}" in page.text)


def check_averages():
    """Of a run with moving averages both are scored, and the page is about the averages, which `eval` uses too."""
    good("train with averages", "train", "tiny.ini", "-o", "averaged", "ema.decay=0.9")
    scores = [json.loads(cresnet("eval", "averaged", "--json", "-q", *more).stdout) for more in (["--no-ema"], [])]
    check("eval scores ema.safetensors", scores[1]["weights"].endswith("/ema.safetensors") and scores[0]["loss"] != scores[1]["loss"], scores)
    logged = [entry for entry in log_of("averaged") if entry["event"] == "eval"][-1]
    check("the log has both losses", all(abs(logged[key] - s["loss"]) < 1e-4 for key, s in zip(("loss", "ema_loss"), scores)), (logged, scores))
    ran = cresnet("report", "averaged", "-q")
    page = page_of("averaged/report.html")
    want = "Weights: top-1 {:.2f} %, loss {:.4f}. Moving averages: top-1 {:.2f} %, loss {:.4f}.".format(*(v for s in scores for v in (100 * s["top1"], s["loss"])))
    check("both are scored", ran.returncode == 0 and want in page.text, (ran.stderr, want))
    check("the page says whose it is", "is about the moving averages" in page.text)
    shown = f"top-1{100 * scores[1]['top1']:.2f} %loss{scores[1]['loss']:.4f}"
    check("the scores of the averages are shown", shown in page.text.replace("\n", ""), shown)


def zeros(run):
    """The same from the weights that `export` writes."""
    if not os.path.exists("dense.safetensors"):
        cresnet("export", run, "-o", "dense.safetensors", "-q")
    tensors = [weights_file.floats(t) for t in weights_file.read("dense.safetensors")[0].values() if len(t[1]) in (2, 4)]
    return [f"{values.count(0)} of {len(values)} weights are 0" for values in tensors]


def check_pruning(page):
    """The curve of the sparsity, from the log."""
    pruned = {entry["step"]: entry["sparsity"] for entry in log_of("run") if entry["event"] == "prune"}
    check("the sparsity at the end", any(f"{100 * pruned[max(pruned)]:.2f} %" in t for t in page.titles), (pruned, page.titles))


def check_compare():
    ends("compare", 0, "compare.html: 3 runs", "report", "--compare", "run", "averaged", "run62")
    page = page_of("compare.html")
    check("well-formed", not page.faults and "script" not in page.tags, page.faults)
    text = page.text.replace("\n", "")
    check("heading", "Comparison of 3 runs" in text)
    for name in ("run", "averaged", "run62"):
        best = max(max(e["top1"], e.get("ema_top1", 0)) for e in log_of(name) if e["event"] == "eval")
        check(f"best of {name}", f"{100 * best:.2f} %" in text, best)
    check("a key that differs", "ema.decay00.90" in text, text[-900:])
    check("equal keys are not shown", "model.widths" not in text)
    check("a curve a run", sum(a == ("path", "class", "line s3") for a in page.attributes) >= 4)
    for arguments, want in ((["run"], "at least two runs"), (["run"] * 9, "at most 8"), (["run", "nowhere"], "nowhere"), (["run", "run62", "--no-eval"], "--no-eval")):
        ran = cresnet("report", "--compare", *arguments, "-o", "none.html")
        check(f"compare refuses {want}", ran.returncode in (1, 2) and want in ran.stderr and not os.path.exists("none.html"), ran.stderr)
    open("mine.html", "w").write("mine")
    ran = cresnet("report", "--compare", "run", "run62", "-o", "mine.html")
    check("a file of others stays", ran.returncode in (1, 2) and open("mine.html").read() == "mine", ran.stderr)
    check_browser("compare.html")


def check_browser(path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not browser:
        return skip("the browser: no chromium installed")

    def console(url, screenshot):
        ran = subprocess.run([browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={os.getcwd()}/profile",
                              "--enable-logging=stderr", "--window-size=1000,3000", f"--screenshot={screenshot}", f"file://{os.path.abspath(url)}"],
                             capture_output=True, text=True, errors="replace", timeout=900)
        return [line for line in ran.stderr.splitlines() if "CONSOLE" in line]

    # That a fault would be seen: an image from outside, which the page's own policy forbids.
    text = open(path).read()
    open("faulty.html", "w").write(text.replace("</main>", '<img src="http://example.invalid/x.png" alt=""></main>'))
    check("a fault shows on the console", console("faulty.html", "faulty.png"))
    check("no message on the console", not console(path, "page.png"))
    check("something is drawn", os.path.exists("page.png") and os.path.getsize("page.png") > 20000)


def check_waiting():
    """Large images and a small network: the log and the page say what is short. The need is that of the step. An epoch is much longer than
    the loader is ahead, and an image takes several steps' time: the wait does not depend on the processor or on what else it does."""
    rng = random.Random(1)
    png.write("large.png", 600, 600, lambda x, y: rng.randbytes(3))
    for split, links in (("train", 150), ("val", 1)):
        for c in ("a", "b"):
            os.makedirs(f"large/{split}/{c}")
            for i in range(links):
                os.link("large.png", f"large/{split}/{c}/{i}.png")
    ran = cresnet("train", "tiny.ini", "-o", "waits", "data.root=large", "data.workers=1", "--epochs", "5")
    said = [line for line in ran.stderr.splitlines() if line.startswith("data wait")]
    lines = [line for line in log_of("waits") if line["event"] == "data_wait"]
    last = lines[-1] if lines else {}
    check("waiting", ran.returncode == 0 and lines and all(line["fraction"] > 0.05 for line in lines), (ran.stderr[-500:], lines))
    # Which stage takes most depends on the build and on the processor: the hint names the one with the largest need.
    stages = {"read": "reading", "decode": "decoding", "resize": "resizing", "copy": "copying"}
    most = stages[max(stages, key=lambda stage: last.get(stage, 0))]
    check("the hint is about the largest need", re.fullmatch(most + r" needs [0-9.]+ of [0-9.]+ (cores|workers) at [0-9]+ images/s, there (is|are) [0-9]+: .+", last.get("hint", "")), last)
    speeds = [line["images_per_s"] for line in log_of("waits") if line["event"] == "train"]
    speed = len(speeds) / sum(1 / s for s in speeds)  # of the whole run: each line is one step
    check("the need is more than the speed", last["needed_images_per_s"] > speed, (last, speed))
    named = [line.split()[4] for line in said]
    check("said when another stage takes most", said and said[0].endswith(lines[0]["hint"]) and all(a != b for a, b in zip(named, named[1:])), said)
    ran = cresnet("report", "waits", "--no-eval", "-q")
    check("the page says it", "Training waits for images: " + last["hint"] in page_of("waits/report.html").text, ran.stderr)
    ran = cresnet("train", "--resume", "waits", "--epochs", "6", "--steps", "188", "-q")
    ran = cresnet("report", "waits", "--no-eval", "-q")
    check("the page says it of the last process", "Training waits" not in page_of("waits/report.html").text, ran.stderr)


def main():
    open("tiny.ini", "w").write(CONFIG)
    for split, count in (("train", 12), ("val", 9)):
        for c, name in enumerate(CLASSES):
            folder = f"images/{split}/{name.replace('/', '_')}"
            os.makedirs(folder)
            for i in range(count):
                base = (60 * c, 255 - 50 * c, i * 9)
                png.write(f"{folder}/<i>{i}.png", *((20, 16) if i % 2 else (224, 112)), lambda x, y: [(b + x * 3 + y * 5) & 255 for b in base])
    good("train", "train", "tiny.ini", "-o", "run", "prune.sparsity=0.75", "prune.start=1", "prune.exempt=conv1,fc")
    good("resume", "train", "tiny.ini", "--resume", "run/step-6", "--epochs", "3")
    ends("report", 0, "run/report.html", "report", "run")
    page = page_of("run/report.html")
    check_page(page)
    check_numbers(page, "run")
    check_title(page, "run", "Custom ResNet on images")
    check_evaluation(page)
    check_pruning(page)
    for name in CLASSES:
        check("names are shown as they are", name.replace("/", "_") in page.text, name)
    plan = json.loads(cresnet("plan", "run", "--json", "-q").stdout)
    check("the pool", f"{plan['peak_bytes'] / 2**20:.2f}" in page.text)
    check("tensors can be pointed at", any("layer1.0.conv1.y" in t and "MiB, ops" in t for t in page.titles))
    shown = [v for _, k, v in page.attributes if k == "title" and v and v.endswith("weights are 0")]
    check("sparsity", sorted(shown) == sorted(zeros("run/best")) and any(not t.startswith("0 ") for t in shown), (shown, zeros("run/best")))
    check("configuration", "widths = 4,8" in page.text)
    first = open("run/report.html", "rb").read()
    cresnet("report", "run", "-q")
    check("the same page each time", open("run/report.html", "rb").read() == first)
    check_browser("run/report.html")
    cresnet("report", "run/step-6", "--no-eval", "-o", "earlier.html", "-q")
    check("epochs of an earlier checkpoint", "3 of 3" in page_of("earlier.html").text and "3 of 2" not in page_of("earlier.html").text)
    check_averages()

    # So many classes that a matrix could not be looked at.
    for split in ("train", "val"):
        for c in range(62):
            os.makedirs(f"many/{split}/class{c:02}")
            png.write(f"many/{split}/class{c:02}/0.png", 8, 8, lambda x, y: (4 * c, 31 * x, 255 - 4 * c))
    ran = cresnet("train", "tiny.ini", "-o", "run62", "data.root=many", "--epochs", "1", "-q")
    ran = cresnet("report", "run62", "-q")
    page = page_of("run62/report.html")
    check("many classes", ran.returncode == 0 and not page.faults and "Most confused" in page.text and "The 60 classes with the lowest F1, of 62" in page.text, ran.stderr)
    check("no matrix", not any(t.endswith(" of 1") for t in page.titles))
    check_compare()
    check_waiting()

    # A log of an older version has no times and no length of an epoch.
    shutil.copytree("run62", "older", symlinks=True)
    lines = log_of("older")
    for entry in lines:
        entry.pop("time", None)
        entry.pop("steps_per_epoch", None)
    open("older/log.jsonl", "w").write("".join(json.dumps(entry) + "\n" for entry in lines))
    ran = cresnet("report", "older", "--no-eval", "-q")
    page = page_of("older/report.html")
    check("a log without times", ran.returncode == 0 and page.titles[0] == "Custom ResNet on many", (ran.stderr, page.titles[:1]))

    # A missing part is reported, and all other parts are shown.
    ran = cresnet("report", "run/step-6", "--no-eval", "-o", "six.html", "-q")
    check("report of a step", ran.returncode == 0 and "weights of step-6" in page_of("six.html").text, ran.stderr)
    os.rename("images", "gone")
    ran = cresnet("report", "run", "-o", "gone.html", "-q")
    check("without its data", ran.returncode == 0 and "Not available: " in page_of("gone.html").text and "layer1.0.conv1" in page_of("gone.html").text, ran.stderr)
    os.rename("gone", "images")
    open("run/log.jsonl", "a").write('{"event":"train","step":99,"los')
    ran = cresnet("report", "run", "--no-eval", "-o", "cut.html", "-q")
    check("a line cut short", ran.returncode == 0 and "1 of " in page_of("cut.html").text and "not valid JSON" in page_of("cut.html").text, ran.stderr)
    os.remove("run/log.jsonl")
    ran = cresnet("report", "run", "--no-eval", "-o", "nolog.html", "-q")
    check("without a log", ran.returncode == 0 and "No log.jsonl" in page_of("nolog.html").text, ran.stderr)
    for arguments, code, want in ((["nowhere"], 1, "nowhere"), (["images"], 2, "no checkpoint"),
                                  (["run", "--no-eval", "-o", "nowhere/x.html"], 1, "nowhere/x.html")):
        ends(f"report of {arguments}", code, want, "report", *arguments)
    check("no leftovers", not glob.glob("*.tmp*") and not glob.glob("run/*.tmp*"))


run(main)
