"""cresnet._audit: looks for duplicates, wrong labels, leaks, outliers and odd images in a dataset. See audit()."""
from __future__ import annotations

import csv
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional, Union

from ._errors import ArgumentError, PathLike
from ._run import Run

if TYPE_CHECKING:
    from ._inspect.survey import Survey

__all__ = ["Audit", "Finding", "audit"]


@dataclass(frozen=True)
class Finding:
    """One image that audit() has found, for one reason."""
    #: leak, duplicate, label, outlier or odd.
    kind: str
    #: Name of the image relative to the folder, as data.exclude and data.labels read it.
    file: str
    #: train, val, or the name of another folder of a split; empty in a folder without splits.
    split: str
    #: Name of its class.
    label: str
    #: What to do: "exclude", the name of another class, or empty: look at it.
    suggestion: str
    #: How sure it is; larger is surer. Its unit depends on the kind: see the guide.
    score: float
    #: Of leaks and duplicates: the number of the group of copies; else -1.
    group: int
    #: Why, in words.
    reason: str


@dataclass
class Audit:
    """The result of audit()."""
    #: The folder with index.html, findings.csv, exclude.csv, labels.csv and ranking.csv.
    output: str
    #: Number of images that were looked at.
    images: int
    #: All findings: leaks, duplicates, labels, outliers, odd images; of each kind the surest ones first.
    findings: list[Finding] = field(default_factory=list)
    #: Pairs of classes that overlap: both names, confident images between them, their fraction of the images of the smaller class.
    overlaps: list[tuple[str, str, int, float]] = field(default_factory=list)

    @property
    def page(self) -> str:
        """The path of the page."""
        return os.path.join(self.output, "index.html")

    def of(self, kind: str) -> list[Finding]:
        """The findings of one kind: leak, duplicate, label, outlier or odd."""
        return [finding for finding in self.findings if finding.kind == kind]


def audit(images: PathLike, run: Optional[Union[Run, PathLike]] = None, *, output: PathLike = "audit", folds: int = 5,
          config: Optional[PathLike] = None, seed: int = 1, threads: int = 0, progress: bool = True, **keys: object) -> Audit:
    """Looks for images that should not be in a dataset as they are: near-duplicates within and across splits, labels that are probably wrong, classes
    that overlap, outliers, odd and unreadable images. Needs the extra cresnet[audit]. Nothing of the dataset is changed.

    - images: a folder with a folder for each class, train/ and val/ with such folders, train.csv and val.csv, or CIFAR in its binary form.
    - run: a Run, its folder, or x.npy of `cresnet features`: features of images, for outliers, more candidates of duplicates, and labels, which a linear
      classifier predicts for each fold from the other ones. Without it, a network is trained from random weights for each fold.
    - output: a folder for the page index.html, for exclude.csv and labels.csv, which data.exclude and data.labels read, findings.csv and ranking.csv.
    - folds: 0 does not look at labels. config: the configuration of the trainings; their data keys are replaced.
    - seed: of the folds. threads: that read images; 0: one for each core.
    - Further keywords are options and keys of the trainings, as of train(): epochs=10, device="cuda".

    A call that was interrupted goes on with the folds that have ended. Raises ArgumentError for a wrong folder, one class alone or features of other
    images; errors of trainings as of train()."""
    from ._inspect.survey import survey  # imports the packages of the extra

    if folds < 0 or folds == 1:
        raise ArgumentError(f"folds = {folds}: at least 2, or 0 to leave labels out", "argument")
    say: Callable[[str], None] = (lambda line: print(line, flush=True)) if progress else (lambda line: None)
    output = os.path.abspath(os.path.expanduser(output))
    config = None if config is None else os.path.expanduser(config)
    found = survey(os.path.expanduser(images), run, output, folds, config, seed, threads, say, keys)
    result = Audit(output, len(found.listing))
    _collect(result, found)
    _write_tables(result, found)
    _write_page(result, found)
    for kind, (title, _) in _KINDS.items():
        say(f"{title}: {len(result.of(kind))} images")
    say(f"page: {result.page}")
    return result


_KINDS = {
    "leak": ("Leaks", "Images of the training set that are also in the validation set: scores are too good. Suggestion: exclude the training image."),
    "duplicate": ("Near-duplicates", "Copies within one split, group by group. Suggestion: keep the first image of each group."),
    "label": ("Probably wrong labels", "Networks that have not seen the image are sure of another class. Suggestion: the other class, after a look."),
    "outlier": ("Outliers", "Images that are far from all others in the features of the network."),
    "odd": ("Odd images", "Unreadable, of one colour, dark, bright, of unusual shape, small, or grey among coloured ones."),
}


def _collect(result: Audit, found: "Survey") -> None:
    listing = found.listing

    def add(kind: str, index: int, suggestion: str, score: float, group: int, reason: str) -> None:
        result.findings.append(Finding(kind, listing.files[index], listing.split(index), listing.label(index), suggestion, score, group, reason))

    for number, (members, similarity) in enumerate(found.groups):
        splits, labels = {listing.splits[i] for i in members}, {listing.label(i) for i in members}
        kind = "leak" if len(splits) > 1 else "duplicate"
        note = f"{len(members)} copies" + (f", labels differ: {', '.join(sorted(labels))}" if len(labels) > 1 else "")
        kept = next((i for i in members if listing.splits[i] > 0), members[0])  # a leak stays in the validation set
        for index in members:
            twin = index != kept and (kind == "duplicate" or listing.splits[index] == 0 or listing.splits[index] == listing.splits[kept])
            add(kind, index, "exclude" if twin and len(labels) == 1 else "", similarity, number, note)
    if found.labels is not None:
        for index in found.wrong:
            other = listing.classes[found.labels.suggested[index]]
            add("label", index, other, float(-found.labels.margin[index]), -1,
                f"{found.labels.probabilities[index, found.labels.suggested[index]]:.0%} {other}, {found.labels.probabilities[index, listing.labels[index]]:.0%} "
                f"{listing.label(index)}")
        result.overlaps = [(listing.classes[a], listing.classes[b], count, part) for a, b, count, part in found.overlaps]
    for index, score in found.outliers:
        add("outlier", index, "", score, -1, f"{score:.1f} times as far from its neighbours as usual")
    for index, reason, score in found.odd:
        add("odd", index, "exclude" if reason.startswith("unreadable") else "", score, -1, reason)
    order = list(_KINDS)
    result.findings.sort(key=lambda finding: (order.index(finding.kind), finding.group if finding.group >= 0 else -finding.score))


def _write_table(path: str, head: list[str], rows: Any) -> None:
    from ._inspect.page import naming
    with naming(path), open(path + ".tmp", "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)
    os.replace(path + ".tmp", path)


def _write_tables(result: Audit, found: "Survey") -> None:
    columns = ["kind", "file", "split", "label", "suggestion", "score", "group", "reason"]
    _write_table(os.path.join(result.output, "findings.csv"), columns,
                 ([f.kind, f.file, f.split, f.label, f.suggestion, f"{f.score:.6g}", f.group if f.group >= 0 else "", f.reason] for f in result.findings))
    excluded = {f.file: f.reason for f in result.findings if f.suggestion == "exclude"}
    _write_table(os.path.join(result.output, "exclude.csv"), ["file", "reason"], excluded.items())
    _write_table(os.path.join(result.output, "labels.csv"), ["file", "label", "was"],
                 ([f.file, f.suggestion, f.label] for f in result.findings if f.kind == "label" and f.file not in excluded))
    if found.labels is not None:
        listing, scores = found.listing, found.labels
        _write_table(os.path.join(result.output, "ranking.csv"), ["file", "split", "label", "suggested", "margin", "wrong"],
                     ([listing.files[i], listing.split(i), listing.label(i), listing.classes[scores.suggested[i]], f"{scores.margin[i]:.6f}", int(scores.wrong[i])]
                      for i in found.ranking))


_SHOWN = 20000  # tiles of one kind


def _write_page(result: Audit, found: "Survey") -> None:
    from ._inspect.page import Page, write_page

    listing = found.listing
    page = Page(f"Audit of {listing.root}", [f"{len(listing):,} images of {len(listing.classes)} classes. A decision can be changed after a click on an image; "
                                             "the saved files are for data.exclude and data.labels."])
    decisions, cluster = [], []
    for kind, (title, note) in _KINDS.items():
        findings = result.of(kind)[:_SHOWN]
        page.groups.append((title, len(findings), note + (f" {found.skipped[kind]}" if kind in found.skipped else "")))
        for place, finding in enumerate(findings):
            where = f"{finding.split}: {finding.label}" if finding.split else finding.label
            page.items.append((finding.file, where, finding.reason, finding.score, f"Suggestion: {finding.suggestion}" if finding.suggestion else ""))
            decisions.append("exclude" if finding.suggestion == "exclude" else f"={finding.suggestion}" if finding.suggestion else "")
            cluster.append(finding.group if finding.group >= 0 else 0)
    page.data = {"decisions": {"initial": decisions, "classes": listing.classes}, "cluster": _alternating(cluster),
                 "startGroup": next((place for place, group in enumerate(page.groups) if group[1]), 0)}
    if result.overlaps:
        page.data["tables"] = [{"title": "Overlapping classes", "note": "Images that have one label and confidently look like the other class.",
                                "head": ["class", "class", "images", "of the smaller class"],
                                "rows": [[a, b, count, f"{100 * part:.1f} %"] for a, b, count, part in result.overlaps[:15]]}]
    write_page(page, result.output, found.reader)


def _alternating(groups: list[int]) -> list[int]:
    """0 or 1 for each tile, another one for each next group."""
    shade = 0
    shades = []
    for place, group in enumerate(groups):
        shade ^= int(place > 0 and group != groups[place - 1])
        shades.append(shade)
    return shades
