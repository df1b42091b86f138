"""cresnet._run: cresnet.train and Run: trains in a child process and follows the events (loss, history) of its run folder."""
from __future__ import annotations

import glob
import json
import os
import re
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

import numpy as np
import numpy.typing as npt

from ._arguments import arguments, operand
from ._child import Child, call
from ._errors import ArgumentError, CresnetError, PathLike
from ._model import Model, Result
from ._progress import Progress

if TYPE_CHECKING:
    from ._mistakes import Errors

__all__ = ["Event", "Run", "finetune", "resume", "train"]

#: A line of log.jsonl: {"event": "train", "step": 31, "loss": 2.28, ...}.
Event = dict[str, Any]
EventFunction = Callable[[Event], object]
Images = Union[PathLike, Iterable[Union[PathLike, npt.NDArray[np.uint8]]]]
_OF_A_RUN = ("log.jsonl", ".lock", "last", "best", "model.safetensors")  # the last one: of a checkpoint
_FOLDER = re.compile(r"run {5}batch size .*?, output (.+)|training {2}Ctrl-C saves .* Checkpoints are in (.+)")


def _read_events(path: str, start: int = 0) -> tuple[list[Event], int]:
    """The events of complete lines from the byte `start` on, and where the next line begins."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            text = file.read()
    except OSError:  # there is none yet
        return [], start
    end = text.rfind(b"\n") + 1
    return list(_parse(text[:end])), start + end


def _parse(text: bytes) -> Iterator[Event]:
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except ValueError:  # a line that a full disk or a killed process has cut
            continue
        if isinstance(event, dict) and "event" in event:
            yield event


def _columns(events: list[Event], prefix: str) -> dict[str, list[float]]:
    names = dict.fromkeys(name for event in events for name, value in event.items() if isinstance(value, (int, float, type(None))))
    return {prefix + name: [float("nan") if event.get(name) is None else event[name] for event in events] for name in names}


class Run:
    """A training, or the folder of an earlier one: Run("checkpoints/demo"). The files of a folder are read at each use. Raises ArgumentError for a
    folder that is missing or holds no run."""

    def __init__(self, path: PathLike) -> None:
        self._begin(os.path.abspath(os.path.expanduser(path)))
        if not os.path.isdir(self.path):
            raise ArgumentError(f"{os.fspath(path)}: no such folder of a run", "argument")
        if not any(os.path.lexists(os.path.join(self.path, name)) for name in _OF_A_RUN):
            raise ArgumentError(f"{os.fspath(path)}: the folder holds no run: neither a log nor a checkpoint", "argument")

    def _begin(self, path: str) -> None:
        #: The run folder, absolute. Of a training in the background it is known soon after its start.
        self.path: str = path
        self._child: Optional[Child] = None
        self._ended = threading.Event()
        self._ended.set()
        self._error: Optional[BaseException] = None

    def __repr__(self) -> str:
        return f"cresnet.Run({self.path!r})"

    @property
    def running(self) -> bool:
        """Whether the training that this object started goes on."""
        return not self._ended.is_set()

    @property
    def events(self) -> list[Event]:
        """All lines of log.jsonl, also those of earlier trainings in this folder; [] without such a file. A line that was cut is left out."""
        return _read_events(os.path.join(self.path, "log.jsonl"))[0]

    @property
    def history(self) -> dict[str, list[float]]:
        """The curves: step, epoch, loss, top1, top5, lr ... of the logged steps, and val_step, val_loss, val_top1 ... of the evaluations.
        Scores are between 0 and 1. Steps that a resumed run has repeated are there once; a missing number is nan."""
        steps: list[Event] = []
        for event in self.events:
            if event["event"] in ("start", "resume"):
                steps = [old for old in steps if old["step"] <= event.get("step", 0)]
            elif event["event"] in ("train", "eval"):
                steps.append(event)
        return {**_columns([event for event in steps if event["event"] == "train"], ""),
                **_columns([event for event in steps if event["event"] == "eval"], "val_")}

    @property
    def best(self) -> Optional[dict[str, float]]:
        """The step of the best checkpoint and its score, as {"step": 620, "top1": 0.98}; None before the first evaluation."""
        try:
            with open(os.path.join(self.path, "best.json"), encoding="utf-8") as file:
                return {name: value for name, value in json.load(file).items() if name != "crc32c"}
        except (OSError, ValueError):
            return None

    def stop(self) -> None:
        """Asks the training to save a checkpoint and to end; wait() waits for that. resume() continues it. Does nothing after the end. Any thread
        may call it."""
        child = self._child
        if child is not None and self.running:
            child.stop()

    def wait(self, timeout: Optional[float] = None) -> Run:
        """Waits for the end of the training, at most `timeout` seconds (TimeoutError), and raises its error: see train(). Ctrl-C stops the
        training first; a second one ends it at once. Returns this run."""
        try:
            if not self._ended.wait(timeout):
                raise TimeoutError(f"the run in {self.path} has not ended within {timeout} s")
        except KeyboardInterrupt:
            self.stop()
            try:
                self._ended.wait()
            except KeyboardInterrupt:
                if self._child is not None:
                    self._child.kill()
                self._ended.wait()
            raise
        if self._error is not None:
            raise self._error
        return self

    def model(self, **options: Any) -> Model:
        """Opens the best checkpoint for classification; the caller closes the model. The options are those of Model."""
        return Model(self.path, **options)

    def evaluate(self, **keys: object) -> dict[str, Any]:
        """Scores the best checkpoint on the validation set, as `cresnet eval --json`: {"top1": 0.98, "loss": 0.07, ...}. A keyword is an option of
        the command (device, last, step, split, batch, per_class=True ...) or a key. Waits for the end; errors as of train()."""
        scores = call(["eval", operand(self.path), "--json", "--quiet", *arguments("eval", keys)]).splitlines()
        return dict(json.loads(scores[-1]))

    def errors(self, split: str = "val", **keys: object) -> "Errors":
        """The images of a split (val or train) that the best checkpoint classifies wrongly, to be looked at, sorted into folders and counted. A keyword is an
        option of `cresnet eval` (device, last, step ...) or a key. Errors as of train(); ArgumentError with several labels per image."""
        from ._mistakes import Errors

        return Errors(self.path, split, **keys)

    def predict(self, images: Images, *, top: int = 1, logits: bool = False, **options: Any) -> Result:
        """Classifies a path of an image, all files of a folder in the order of their names, a list of paths, or uint8 arrays
        [height, width, channels], with the best checkpoint. top and logits as of Model.classify_files(); options of Model."""
        if isinstance(images, (str, os.PathLike)):
            images = os.path.expanduser(images)
            images = sorted(path for path in glob.glob(os.path.join(glob.escape(images), "**"), recursive=True)
                            if os.path.isfile(path)) if os.path.isdir(images) else [images]
        given: Any = images if isinstance(images, np.ndarray) and images.dtype.kind not in "OUS" else list(images)
        arrays = sum(isinstance(image, np.ndarray) for image in given)
        if 0 < arrays < len(given):
            raise TypeError("images must be paths or arrays, not both")
        with self.model(**{"max_batch": max(1, min(len(given), 64)), **options}) as model:
            return (model.classify_images if arrays else model.classify_files)(given, top=top, logits=logits)


class _Training:
    """Follows one child: its messages, its events, the function of the caller."""

    def __init__(self, run: Run, child: Child, known: bool, logs: dict[str, int], on_event: Optional[EventFunction], progress: bool) -> None:
        self._run, self._child, self._known, self._logs, self._on_event = run, child, known, logs, on_event
        self._progress = Progress(progress)
        self._interrupted: Optional[BaseException] = None

    def _folder(self, line: str) -> None:
        found = _FOLDER.fullmatch(line)
        if found and (not self._known or found.group(2)):
            self._run.path = os.path.abspath(found.group(1) or found.group(2))

    def _read(self) -> None:
        for line in self._child.lines():
            self._folder(line)
            self._progress.line(line)
        log = os.path.join(self._run.path, "log.jsonl")
        events, self._logs[log] = _read_events(log, self._logs.get(log, 0))
        for event in events:
            self._progress.event(event)
            if self._on_event and not self._interrupted:
                if self._on_event(dict(event)) is True:
                    self._run.stop()

    def follow(self) -> None:
        """Returns or raises when the child has ended and was reaped. An exception (Ctrl-C, a function that failed) stops the training, is
        raised after its checkpoint, and a second one ends the training at once."""
        try:
            while True:
                try:
                    ended = self._child.wait()
                    self._read()
                    if ended:
                        break
                except BaseException as error:
                    if self._interrupted:
                        raise
                    self._interrupted = error
                    self._run.stop()
            failure = self._interrupted or self._child.error()
            if failure:
                raise failure
        finally:
            self._child.close()
            self._progress.close()


def _start(line: list[str], output: Optional[str], on_event: Optional[EventFunction], wait: bool, progress: bool) -> Run:
    if on_event is not None and not callable(on_event):
        raise TypeError(f"on_event must be a function of an event, not {type(on_event).__name__}")
    run = Run.__new__(Run)  # its folder need not exist yet
    run._begin(os.path.abspath(output or ""))
    pattern = glob.escape(run.path) + "*/log.jsonl" if output else ""
    logs = {log: os.path.getsize(log) for log in glob.glob(pattern)}
    run._ended.clear()
    begun = threading.Event()

    def follow() -> None:
        try:
            run._child = Child(line)
            begun.set()
            _Training(run, run._child, output is not None, logs, on_event, progress).follow()
        except BaseException as error:
            run._error = error
        finally:
            run._ended.set()
            begun.set()

    if wait:
        follow()  # in this thread: the child gets a signal at the end of the thread that started it
        return run.wait()
    threading.Thread(target=follow, name="cresnet", daemon=True).start()
    begun.wait()
    return run


def _output(keys: dict[str, object]) -> Optional[str]:
    given: Any = keys.get("output", keys.get("train_output"))
    return None if given is None else os.path.expanduser(os.fsdecode(given))


def train(config: PathLike, *, on_event: Optional[EventFunction] = None, wait: bool = True, progress: bool = True,
          **keys: object) -> Run:
    """Trains the network of a configuration, as `cresnet train`: train("demo.ini", epochs=5, optim_lr=0.1).

    A keyword is an option of the command (epochs, steps, output, batch, lr, device ...) or a key with an underscore for its dot (optim_lr).
    Lists are joined by commas, True is yes, and None leaves the value to the program.

    - on_event(event) is called for each line of log.jsonl, in this thread, or with wait=False in a thread of the run. When it returns True the
      training stops; when it raises, the training stops and the exception is raised.
    - wait=False returns at once: the training goes on in the background, until run.stop(), its end or the end of Python, which saves a
      checkpoint.
    - progress: a bar of tqdm where it is installed, else the lines of the program.

    Raises ArgumentError for a wrong key, value, configuration or folder: nothing was trained. CresnetError when the program failed (full
    disk, loss not finite), with the status "killed" when a signal ended it. KeyboardInterrupt after Ctrl-C, when a checkpoint was saved.
    TypeError for a keyword that is neither an option nor a key."""
    return _start(["train", operand(config), *arguments("train", keys)], _output(keys), on_event, wait, progress)


def finetune(images: PathLike, *, on_event: Optional[EventFunction] = None, wait: bool = True, progress: bool = True,
             **keys: object) -> Run:
    """Trains a classifier for a folder of images, as `cresnet finetune`: finetune("my-images", minutes=5).

    images: a folder with a folder for each class, or train/ and val/ with such folders. Arguments, result and errors as of train(); further
    options are model, minutes and weights. output: checkpoints/finetune-NAME. The same call continues a run that was stopped."""
    output = _output(keys)
    if output is None:
        output = "checkpoints/finetune-" + (os.path.basename(os.path.realpath(images)) or "images")
    return _start(["finetune", operand(images), *arguments("finetune", {**keys, "output": output, "train_output": None})], output, on_event,
                  wait, progress)


def resume(run: Union[Run, PathLike], *, on_event: Optional[EventFunction] = None, wait: bool = True, progress: bool = True,
           **keys: object) -> Run:
    """Continues a run, or the folder of one, at its newest checkpoint, and writes into the same folder; epochs=N makes it longer. A step folder
    (run/step-1000) continues there. Arguments, result and errors as of train()."""
    path = run.path if isinstance(run, Run) else os.path.abspath(os.path.expanduser(run))
    if isinstance(run, Run) and run.running:
        raise CresnetError(f"the run in {path} has not ended: stop() and wait() first", "argument")
    folder = os.path.dirname(path) if re.fullmatch(r"step-\d+|last|best", os.path.basename(path)) else path
    return _start(["train", f"--resume={path}", *arguments("train", keys)], folder, on_event, wait, progress)
