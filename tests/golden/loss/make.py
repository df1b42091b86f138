#!/usr/bin/env python3
"""Writes PyTorch's results in float64: loss.safetensors for the losses with class weights, the focal loss and binary cross-entropy
(tests/unit/device/test_ref_loss.c), distill.safetensors for the losses of knowledge distillation (test_ref_distill.c).

    python3 tests/golden/loss/make.py [TIMM]

Made with PyTorch 1.13 and timm/loss/binary_cross_entropy.py of timm 1.0, whose path is TIMM. All inputs are small multiples of 1/32, so that they
are exact in float32.
"""
import importlib.util
import os
import sys

import torch
import torch.nn.functional as F

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "..", "tools"))
import st

torch.manual_seed(20260101)
tensors = {}
N, K = 8, 10
ROWS, WIDE = 6, 37  # several labels: more classes than one word has bits


def draw(*shape, low=-64, high=64):
    return torch.randint(low, high + 1, shape).double() / 32


def focal_cross_entropy(logits, labels, weight, gamma, smoothing):
    """Label smoothing and weights as in CrossEntropyLoss, each class with the factor (1-p)^gamma."""
    seen = labels >= 0
    logp = F.log_softmax(logits[seen], dim=1)
    target = F.one_hot(labels[seen], K).double() * (1 - smoothing) + smoothing / K
    terms = weight * target * (1 - logp.exp()) ** gamma * -logp
    return terms.sum() / weight[labels[seen]].sum()


def focal_bce(logits, target, weight, gamma):
    """torchvision.ops.sigmoid_focal_loss without alpha, with weights of the positive targets."""
    p = torch.sigmoid(logits)
    ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none", pos_weight=weight)
    p_t = p * target + (1 - p) * (1 - target)
    return (ce * (1 - p_t) ** gamma).mean()


def keep(name, logits, mean, labels, counts, weight, smoothing, gamma):
    mean.backward()
    # the metric: the mean times the number of samples that count
    values = {"logits": logits.detach().float(), "labels": labels.to(torch.int32), "weights": weight.float(),
              "options": torch.tensor([smoothing, gamma], dtype=torch.float32),
              "metrics": torch.tensor([mean.item() * counts[0]] + counts, dtype=torch.float64), "dx": logits.grad}
    for part, value in values.items():
        tensors[name + "." + part] = value.contiguous()


def make_single():
    labels = torch.tensor([3, 0, -1, 9, 5, -1, 7, 2])
    seen = labels >= 0
    for name, smoothing, gamma in (("weights", 0, 0), ("smooth", 0.125, 0), ("focal", 0, 2), ("focal_smooth", 0.125, 0.5)):
        logits, weight = (draw(N, K) * 2).requires_grad_(), draw(K, low=1, high=128)
        mean = focal_cross_entropy(logits, labels, weight, gamma, smoothing)
        if gamma == 0:
            library = F.cross_entropy(logits, labels, weight=weight, ignore_index=-1, label_smoothing=smoothing)
            assert abs(library.item() - mean.item()) < 1e-12
            mean = library
        order = logits.detach()[seen].argsort(dim=1, descending=True, stable=True)
        hit = order == labels[seen, None]
        counts = [seen.sum().item(), hit[:, 0].sum().item(), hit[:, :5].sum().item()]
        keep(name, logits, mean, labels.reshape(N, 1), counts, weight, smoothing, gamma)


def words(target, valid):
    """The labels of each sample as cresnet stores them: their number (-1: not counted), then one bit for each class."""
    rows = []
    for row, counts in zip(target.tolist(), valid):
        bits = [sum(1 << k % 32 for k in range(WIDE) if row[k] and k // 32 == w) for w in range((WIDE + 31) // 32)]
        rows.append([sum(map(int, row)) if counts else -1] + [b - (1 << 32) if b >= 1 << 31 else b for b in bits])
    return torch.tensor(rows)


def make_several():
    valid = [True, True, False, True, True, True]
    for name, smoothing, gamma in (("bce", 0, 0), ("bce_smooth", 0.125, 0), ("bce_focal", 0, 2)):
        logits, weight = (draw(ROWS, WIDE) * 2).requires_grad_(), draw(WIDE, low=1, high=128)
        target = torch.randint(0, 4, (ROWS, WIDE)).eq(0).double()
        target[1] = 0  # a sample without labels
        logits.data[3] = torch.where(target[3] > 0, logits.data[3].abs() + 1, -logits.data[3].abs() - 1)  # all correct
        logits.data[4, :5] = torch.tensor([40.0, -40, 0, 700, -700])
        smooth = target * (1 - smoothing) + smoothing / 2
        mean = focal_bce(logits[valid], smooth[valid], weight, gamma)
        if gamma == 0:
            library = F.binary_cross_entropy_with_logits(logits[valid], smooth[valid], pos_weight=weight)
            assert abs(library.item() - mean.item()) < 1e-12
        right = ((logits.detach() > 0) == (target > 0))[valid]
        counts = [sum(valid), right.all(dim=1).sum().item(), right.sum().item()]
        keep(name, logits, mean, words(target, valid), counts, weight, smoothing, gamma)


def timm_loss():
    """timm's class; without timm the same arithmetic."""
    if len(sys.argv) > 1:
        spec = importlib.util.spec_from_file_location("timm_bce", sys.argv[1])
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.BinaryCrossEntropy

    def make(smoothing, target_threshold=None, pos_weight=None):
        def mean(x, target):
            if target.shape != x.shape:
                target = F.one_hot(target, x.shape[1]).double() * (1 - smoothing) + smoothing / x.shape[1]
            if target_threshold is not None:
                target = target.gt(target_threshold).to(target.dtype)
            return F.binary_cross_entropy_with_logits(x, target, pos_weight=pos_weight)
        return mean
    return make


def mixed_targets(labels, smoothing, mixes):
    """timm's mixup_target with a factor and a partner per image, and one-hot vectors smoothed as there."""
    off = smoothing / K
    hot = F.one_hot(labels.clamp(min=0), K).double() * (1 - smoothing) + off
    target = hot.clone()
    for n, (partner, weight) in enumerate(mixes):
        if partner >= 0 and labels[partner] >= 0:
            target[n] = hot[n] * (weight / 65536) + hot[partner] * (1 - weight / 65536)
    return target


MIX_NUMBERS = 12  # graph/graph.h: enum cr_mix


def make_timm():
    """One label per sample: soft targets of mixup, label smoothing, target threshold."""
    labels = torch.tensor([3, 0, -1, 9, 5, 5, 7, 2])
    seen = labels >= 0
    pairs = [(1, 16384), (0, 65536), (1, 100), (5, 9000), (3, 56536), (2, 30000), (-1, 65536), (6, 32768)]
    options = {"timm": (0, None, False), "timm_smooth": (0.125, None, False), "timm_mixed": (0.125, None, True),
               "timm_threshold": (0.125, 0.1875, True), "timm_weights": (0.125, None, True)}
    for name, (smoothing, threshold, mixed) in options.items():
        logits = (draw(N, K) * 2).requires_grad_()
        weight = draw(K, low=1, high=128) if name == "timm_weights" else torch.ones(K, dtype=torch.float64)
        loss = timm_loss()(smoothing=smoothing, target_threshold=threshold, pos_weight=weight)
        target = mixed_targets(labels, smoothing, pairs)[seen] if mixed else labels[seen]
        mean = loss(logits[seen], target)
        hit = logits.detach()[seen].argsort(dim=1, descending=True, stable=True) == labels[seen, None]
        counts = [seen.sum().item(), hit[:, 0].sum().item(), hit[:, :5].sum().item()]
        keep(name, logits, mean, labels.reshape(N, 1), counts, weight, smoothing, 0)
        mixes = torch.zeros(N, MIX_NUMBERS, dtype=torch.int32)
        mixes[:, 0], mixes[:, 1] = -1, 65536
        for n, (partner, weight) in enumerate(pairs if mixed else []):
            mixes[n, 0], mixes[n, 1] = partner, weight
        tensors[name + ".mixes"] = mixes
        tensors[name + ".options"] = torch.tensor([smoothing, 0, threshold or 0], dtype=torch.float32)


def keep_distilled(name, values):
    for part, value in values.items():
        value = value.detach() if part in ("dx", "metrics") else value.detach().to(torch.int32 if part == "labels" else torch.float32)
        tensors[name + "." + part] = value.contiguous()


LABELS = torch.tensor([3, 0, -1, 9, 5, -1, 7, 2])
SEEN = LABELS >= 0


def draw_wide(*shape):
    return draw(*shape, low=-96, high=96)


def metrics(first):
    return torch.tensor([first, 6, 2, 5], dtype=torch.float64)


def logits(name, classes, weight, temperature):
    """Hinton et al. 2015: KLDivLoss of the softened logits, times the square of the temperature."""
    student, teacher, dy = (draw_wide(N, classes) * 2).requires_grad_(), draw_wide(N, classes) * 2, draw_wide(N, classes)
    kl = F.kl_div(F.log_softmax(student[SEEN] / temperature, dim=1), F.softmax(teacher[SEEN] / temperature, dim=1), reduction="batchmean")
    part = weight * temperature ** 2 * kl
    part.backward()
    hard = 12.5
    keep_distilled(name, {"logits": student, "teacher": teacher, "dy": dy, "labels": LABELS.reshape(N, 1), "before": metrics(hard),
                "options": torch.tensor([weight, temperature]), "metrics": metrics((1 - weight) * hard + part.item() * SEEN.sum().item()),
                "dx": dy + student.grad})


def write(name):
    st.save(os.path.join(here, name), {key: t.numpy() for key, t in tensors.items()})
    tensors.clear()


make_single()
make_several()
make_timm()
write("loss.safetensors")
torch.manual_seed(20260102)
logits("warm", 10, 0.5, 4.0)
logits("cold", 10, 0.75, 0.5)
logits("alone", 13, 1.0, 2.0)
write("distill.safetensors")
