"""cresnet._progress: the progress bar of a training: tqdm where it is installed, else the lines of the program."""
from __future__ import annotations

import importlib
import re
import warnings
from typing import Any


def _bar() -> Any:
    """The class tqdm, or None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a notebook without widgets gets a bar of text
            return importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return None


class Progress:
    def __init__(self, on: bool) -> None:
        self._on, self._tqdm, self._bar = on, _bar() if on else None, None

    def line(self, text: str) -> None:
        """A message of the program. Beside a bar only warnings and errors are shown. The bar of a sweep counts its runs."""
        if not self._on:
            return
        runs, ended = re.match(r"sweep: (\d+) runs? in ", text), re.match(r"sweep: (\d+) of \d+ ended", text)
        if self._tqdm is None:
            print(text.encode(errors="replace").decode(), flush=True)
        elif "warning: " in text or " failed with exit code " in text:
            self._tqdm.write(text)
        elif runs:
            self._bar = self._tqdm(total=int(runs[1]), initial=0, unit="run")
        elif ended and self._bar is not None:
            self._bar.update(int(ended[1]) - self._bar.n)

    def event(self, event: dict[str, Any]) -> None:
        if self._tqdm is None:
            return
        if event["event"] in ("start", "resume") and "total_steps" in event:
            self._bar = self._tqdm(total=event["total_steps"], initial=event.get("step", 0), unit="step")
        elif self._bar is not None and event["event"] == "train":
            self._bar.update(event["step"] - self._bar.n)
            self._bar.set_postfix({"loss": f"{event['loss']:.4f}"} if event.get("loss") is not None else {})
        elif self._bar is not None and event["event"] == "eval":
            score = next((f", {name} {100 * event[name]:.2f} %" for name in ("top1", "map") if event.get(name) is not None), "")
            self._tqdm.write(f"evaluation at step {event['step']}: loss {event.get('loss')}{score}{', best so far' if event.get('best') else ''}")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
