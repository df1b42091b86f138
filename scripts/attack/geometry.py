"""geometry.py: sizes of images and networks that meet at odd places: aspect, crop, resize, evaluation size."""
import os

from .base import png
from .support import add

S = "geometry"
# width x height of the images of a data set: both classes have all of them
ASPECTS = {"1x1": [(1, 1)], "1x300": [(1, 300)], "300x1": [(300, 1)], "3x2 and 2x3": [(3, 2), (2, 3)],
           "2000x4": [(2000, 4)], "7x7, 8x8 and 9x9": [(7, 7), (8, 8), (9, 9)], "1x1 and 400x400": [(1, 1), (400, 400)]}
SETTINGS = {
    "a size of 1": ["data.image_size=1"],
    "8x200": ["data.image_size=8x200"],
    "200x8": ["data.image_size=200x8"],
    "33x17, resized": ["data.image_size=33x17", "data.crop=resized"],
    "128x16, whole images, eval_resize 1": ["data.image_size=128x16", "data.eval_resize=1"],
    "31, eval_resize 1000": ["data.image_size=31", "data.eval_resize=1000"],
    "16, eval_resize 17": ["data.image_size=16", "data.eval_resize=17"],
    "16, no crop": ["data.image_size=16", "data.crop=none"],
    "16, the smallest and largest crops": ["data.image_size=16", "data.crop=resized", "data.scale=0.0001,1", "data.ratio=0.01,100"],
    "16, padding of 64": ["data.image_size=16", "data.crop=pad", "data.pad=64"],
    "two sizes in turn": ["data.image_size=16", "data.image_sizes=8,16"],
    "an evaluation size of 40": ["data.image_size=16", "data.eval_size=40"],
}
NETWORKS = {"the stem of ImageNet": ["model.stem=imagenet"], "four stages": ["model.depths=1,1,1,1", "model.widths=4,4,4,4"],
            "blur pooling": ["model.stem=imagenet", "model.blur_pool=yes"],
            "bottlenecks with groups": ["model.block=bottleneck", "model.widths=8,8", "model.groups=2"]}


def fill(c, sizes):
    for name in ("a", "b"):
        os.makedirs(c.path("images") / name, exist_ok=True)
        for i in range(4):
            w, h = sizes[i % len(sizes)]
            (c.path("images") / name / ("%d.png" % i)).write_bytes(png(w, h))


def shapes(c, sizes, settings):
    c.take("folder.ini")
    fill(c, sizes)
    one = str(c.path("images/a/0.png"))
    if c.run("train", "folder.ini", "-o", "R", "--steps", "2", *settings, deadline=40).code == 0:
        c.works("eval", "R", "--json", deadline=40)
        c.works("predict", "R", one, "--json")
        c.works("eval", "R", "--tta", "flip", deadline=40)
    c.run("data", "folder.ini", *settings)
    c.run("data", "stat", "images")


for aspect, sizes in ASPECTS.items():
    for title, settings in SETTINGS.items():
        add(S, "images of %s; %s" % (aspect, title), lambda c, a=sizes, b=settings: shapes(c, a, b))
for title, settings in NETWORKS.items():
    for size in ("1", "7", "8x200", "31x33"):
        add(S, "%s, images of %s" % (title, size),
            lambda c, a=settings, b=size: shapes(c, [(7, 5), (30, 40)], a + ["data.image_size=" + b]))
