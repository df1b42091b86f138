#!/usr/bin/env python3
"""test_tta.py: test-time augmentation of eval and predict: the probabilities are those of the mean logits of the views, which are cut and
mirrored here and predicted one by one; the scores of eval follow from them; messages, and what the options exclude."""
import json
import math
import os
import random

from support import TINY_MODEL, check, cresnet, ends, good, predicted, run
import png

W, H, SIZE, IMAGES = 41, 37, 32, 10  # the middle is at x = 4.5, y = 2.5
FULL = f"data.eval_resize={H}"  # the images have this short side: resizing changes nothing


def crops(image):
    right, bottom = W - SIZE, H - SIZE  # torchvision rounds half to even: 4 and 2
    corners = [(0, 0), (right, 0), (0, bottom), (right, bottom), (4, 2)]
    return [[row[x : x + SIZE] for row in image[y : y + SIZE]] for x, y in corners]


def mirror(image):
    return [row[::-1] for row in image]


VIEWS = {"flip": lambda i: [crops(i)[4], mirror(crops(i)[4])], "five-crop": crops, "ten-crop": lambda i: crops(i) + crops(mirror(i))}


def save(path, image):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    png.write(path, len(image[0]), len(image), lambda x, y: image[y][x])


def softmax(logits):
    terms = [math.exp(v - max(logits)) for v in logits]
    return [t / sum(terms) for t in terms]


def mean_of_views(probabilities):
    """Softmax of the mean logits: a logarithm of a probability is its logit up to a constant per view."""
    return softmax([sum(math.log(p[k]) for p in probabilities) / len(probabilities) for k in range(len(probabilities[0]))])


def far(got, want):
    return max(abs(a - b) for g, w in zip(got, want) for a, b in zip(g, w))


def main():
    with open("c.ini", "w") as f:
        f.write(TINY_MODEL + "[data]\nkind = shapes\ntrain_images = 200\nval_images = 20\n[train]\nbatch = 20\nsteps = 30\n[optim]\nlr = 0.05\n")
    trained = cresnet("train", "c.ini", "-o", "run", "-q", "--device", "cpu")
    check("train", trained.returncode == 0 and "top-1" in trained.stdout + trained.stderr, trained)
    draw = random.Random(3)
    images = []
    for i in range(IMAGES):
        tint = [draw.randrange(4, 12) for _ in range(3)]
        images.append([[tuple((x * t + y * (t + 3) + (90 if (x // 9 + y // 7) % 2 else 0)) % 256 for t in tint) for x in range(W)] for y in range(H)])
        save(f"set/val/{'abcdefghij'[i]}/{i}.png", images[-1])
        save(f"set/train/{'abcdefghij'[i]}/{i}.png", images[-1])
        save(f"whole/{i}.png", images[-1])
    plain, said = predicted("run", "whole", FULL)
    check("no views without the option", "test-time" not in said, said)
    for tta, views in VIEWS.items():
        for i, image in enumerate(images):
            for v, view in enumerate(views(image)):
                save(f"{tta}/{i}/{v}.png", view)
        want = [mean_of_views(predicted("run", f"{tta}/{i}")[0]) for i in range(IMAGES)]
        got, said = predicted("run", "whole", FULL, "--tta", tta)
        check(f"{tta}: mean logits", len(got) == IMAGES and far(got, want) < 2e-5, far(got, want))
        check(f"{tta}: changes something", far(got, plain) > 1e-4, far(got, plain))
        check(f"{tta}: is said", f"test-time augmentation {tta}" in said, said)
        one_by_one, _ = predicted("run", "whole", FULL, f"data.tta={tta}", "train.eval_batch=1")
        check(f"{tta}: key", far(one_by_one, got) < 1e-6)

    keys = ("data.kind=folder", "data.root=set", FULL, "data.train_images=0", "data.val_images=0")
    for tta in VIEWS:
        got, _ = predicted("run", "whole", FULL, "--tta", tta)
        for batch in (7, 64):
            ran = good(f"{tta}: eval", "eval", "run", *keys, "--tta", tta, "--json", f"train.eval_batch={batch}", "data.workers=2")
            found = json.loads(ran.stdout or "{}")
            loss = sum(-math.log(got[i][i]) for i in range(IMAGES)) / IMAGES
            ranks = [sum(p > got[i][i] for p in got[i]) for i in range(IMAGES)]
            check(f"{tta}: images", found.get("images") == IMAGES and found.get("tta") == tta, found)
            check(f"{tta}: loss", abs(found.get("loss", 0) - loss) < 2e-4, (found, loss))
            check(f"{tta}: correct", (found.get("correct"), found.get("correct5")) == (sum(r < 1 for r in ranks), sum(r < 5 for r in ranks)), (found, ranks))

    ran = cresnet("eval", "run", *keys, "--tta", "flip")
    check("text", "with test-time augmentation flip: by the mean logits of 2 views per image" in ran.stdout, ran)
    open("set/val/a/9.png", "w").write("no image")
    ran = cresnet("eval", "run", *keys, "--tta", "flip", "--csv", "-")
    check("unreadable", "1 unreadable" in ran.stderr and ran.stdout.count("\n") == IMAGES + 2, ran)
    ends("no room for crops", 2, "set eval_resize, e.g. to 36", "eval", "run", "--tta", "five-crop")
    ends("unknown", 2, "ten-crop", "eval", "run", "--tta", "nine-crop")
    ran = cresnet("train", "c.ini", "-o", "again", "-q", "--device", "cpu", "data.tta=flip")
    again = [text.replace("again", "run") for text in (ran.stdout, ran.stderr)]
    check("training evaluates plainly", ran.returncode == 0 and again == [trained.stdout, trained.stderr], (again, trained))

    ran = cresnet("train", "c.ini", "-o", "final", "-q", "--device", "cpu", "train.final_tta=flip")
    events = [json.loads(line) for line in open("final/log.jsonl")]
    final = [e for e in events if e["event"] == "final_tta"]
    plain = [text.replace("final", "run") for text in (ran.stdout, ran.stderr)]
    check("one more evaluation at the end", len(final) == 1 and events[-2] == final[0] and "with tta = flip (2 views" in "".join(plain), events[-3:])
    check("the first one stays", [e for e in events if e["event"] == "eval"] == [json.loads(x) for x in open("run/log.jsonl") if '"event":"eval"' in x], events)
    check("the same weights", open("final/last/model.safetensors", "rb").read() == open("run/last/model.safetensors", "rb").read())
    want = json.loads(cresnet("eval", "final", "--last", "--tta", "flip", "--json", "-q").stdout or "{}")
    check("as eval --tta flip", final and all(abs(final[0][k] - want.get(k, 9)) < 1e-6 for k in ("correct", "top1", "loss")), (final, want))
    ran = cresnet("train", "c.ini", "-o", "none", "-q", "--device", "cpu", "train.final_tta=five-crop")
    check("no room for crops at the end", ran.returncode == 2 and "set eval_resize" in ran.stderr and not os.path.exists("none"), ran)
    check("the key that was given is named", "[train] final_tta = five-crop" in ran.stderr and "[data]" not in ran.stderr, ran)


run(main)
