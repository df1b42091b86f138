"""Whether rounding can change a training run: the decisions of ReLU (which sign a value has) and of max pooling (which value of a window is the
largest). With another decision a correct implementation gets other gradients.

A run is trained in float64 and in float32. The largest difference between the two in a channel and step is the channel's drift. The margin of a
decision is its distance (|value|, or half of the largest minus the second value of a window) divided by the drift of its channel. Each decision
with a margin below NEAR is changed, one at a time, in another training in float64. The final weights may move by MOST.
"""
import sys

import torch
import torch.nn.functional as F

NEAR = 1.0
MOST = 5e-5  # half of what test_golden_train.c accepts

# The first batch of each run, so that its margin is large enough; 0 where it is not listed. losses.txt tells it to test_golden_train.c.
FIRST_BATCH = {"basic-b": 1000, "accumulate": 10000, "excited": 6000, "blurred": 1000, "attended": 2000, "grouped": 9000,
               "mixed": 15000, "bce": 7000, "bce-mixed": 7000, "lars": 15000, "rates-adamw": 1000, "lamb": 7000, "muon": 18000, "dropped": 8000, "swa": 7000,
               "distilled": 12000, "distilled-grouped": 4000, "grey": 4000, "deep-alpha": 12000, "resized": 68000}
first_batch = 0

torch.set_num_threads(1)  # one order of sums, so that the drift is the same everywhere
relu, max_pool2d = F.relu, F.max_pool2d
calls, change = [], None  # (call, element) of the decision that is changed


def record(x, distance, y):
    """For each call: input, distances, and where a gradient flows."""
    if y.requires_grad:
        call = [x.detach().double(), distance.detach(), None]
        calls.append(call)
        y.register_hook(lambda g: call.__setitem__(2, g != 0))
    return y


def is_changed(like):
    chosen = torch.zeros(like.shape, dtype=torch.bool)
    if change and change[0] == len(calls) and like.requires_grad:
        chosen.view(-1)[change[1]] = True
    return chosen


def watched_relu(x, inplace=False):
    return record(x, x.abs(), x * ((x > 0) ^ is_changed(x)) if change else relu(x))


def watched_max_pool2d(x, kernel_size, stride=None, padding=0, *rest, **options):
    y = max_pool2d(x, kernel_size, stride, padding, *rest, **options)
    windows = F.unfold(F.pad(x, (padding,) * 4, value=-1e30), kernel_size, stride=stride or kernel_size)
    first, second = (v.reshape(y.shape) for v in windows.reshape(*x.shape[:2], -1, windows.shape[-1]).topk(2, 2)[0].unbind(2))
    distance = torch.where(y > 0, (first - second) / 2, torch.full_like(y, torch.inf))  # no gradient flows from a window of zeros
    return record(x, distance, torch.where(is_changed(y), second, y) if change else y)


def margins(exact, rounded):
    """(margin, distance relative to the tensor's rms, call, element) of each decision that is nearer than NEAR, and of the nearest one."""
    found = []
    for i, ((x, distance, flows), (near, _, _)) in enumerate(zip(exact, rounded)):
        drift = (x - near).abs().amax((0, 2, 3), keepdim=True)
        counts = flows & ((x != 0) | (near != 0) if x.shape == distance.shape else flows)
        margin = torch.where(counts, distance / drift, torch.full_like(distance, torch.inf)).flatten()
        for at in {*torch.nonzero(margin < NEAR).flatten().tolist(), margin.argmin().item()}:
            found.append((margin[at].item(), (distance.flatten()[at] / x.pow(2).mean().sqrt()).item(), i, at))
    nearest = min(found)
    return nearest, [f for f in found if f[0] < NEAR]


def watch(model, start, steps, changed=None):
    """Trains from `start`; returns what steps(model) returns, and the decisions."""
    global calls, change
    calls, change = [], changed
    model.load_state_dict(start)
    for p in model.parameters():
        p.grad = None
    F.relu, F.max_pool2d = watched_relu, watched_max_pool2d
    result = steps(model)
    F.relu, F.max_pool2d = relu, max_pool2d
    return result, calls


def copy_of(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


def gap(a, b):
    """As in test_golden_train.c."""
    return max(((a[k] - b[k]).abs().max() / b[k].abs().max().clamp(min=1e-3)).item() for k in b if "num_batches" not in k)


def examine(model, steps):
    """Trains; returns the result of steps(model), the nearest decision, how many are near, and how far one of them moves the weights. Stops
    after the first that moves them too far."""
    start = copy_of(model)
    result, exact = watch(model, start, steps)
    end = copy_of(model)
    casts = (model.register_forward_pre_hook(lambda m, x: x[0].float()), model.register_forward_hook(lambda m, x, y: y.double()))
    rounded = watch(model.float(), start, steps)[1]
    for cast in casts:
        cast.remove()
    model.double()
    nearest, near = margins(exact, rounded)
    moves = 0.0
    for _, _, call, element in sorted(near):
        if moves <= MOST:
            watch(model, start, steps, (call, element))
            moves = max(moves, gap(copy_of(model), end))
    model.load_state_dict(end)
    return result, nearest, len(near), moves


def train(name, model, steps):
    """Trains a model of float64 with steps(model), whose result it returns. Ends the program where rounding can change the run."""
    global first_batch
    first_batch = FIRST_BATCH.get(name, 0)
    result, nearest, near, moves = examine(model, steps)
    print(f"{name}: the smallest margin is {nearest[0]:.1f} ({nearest[1]:.1e} of the tensor's rms); "
          f"{near} decisions with less than {NEAR:g} move the weights by {moves:.1e}", file=sys.stderr)
    if moves > MOST:
        sys.exit(f"{name}: rounding can change the run; choose other batches")
    return result
