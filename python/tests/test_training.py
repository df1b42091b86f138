#!/usr/bin/env python3
"""test_training.py: training from Python: events, history, stop, resume, threads, asyncio, and what dies: the child, the parent, the disk."""
import asyncio
import contextlib
import importlib.util
import inspect
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

import support
from support import BIN, WORK
import cresnet
from cresnet import _arguments, _child, _progress

LONG = {"epochs": 100000, "progress": False, "train_eval_every": 0}


def quick(output, **keys):
    return cresnet.train("tiny.ini", **{"progress": False, "steps": 10, "output": output, **keys})


def gone(pid):
    """Whether a process has ended: a zombie has not been reaped, which is the work of others for an orphan."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def until(condition):
    """Waits until it holds, however slow the machine is; the time only ends a test that hangs."""
    end = time.monotonic() + 600
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("never happened")
        time.sleep(0.02)


def child_of(task):
    """The first process that a thread has started, by the folder of the thread in /proc."""
    with open(f"/proc/{task}/children", encoding="utf-8") as file:
        return int(file.read().split()[0])


class Training(unittest.TestCase):
    def tearDown(self):
        with self.assertRaises(ChildProcessError):  # no child is left, running or as a zombie
            os.waitpid(-1, os.WNOHANG)

    def test_events_and_history(self):
        events = []
        run = quick("events", on_event=events.append)
        with open("events/log.jsonl", encoding="utf-8") as file:
            logged = [json.loads(line) for line in file]
        self.assertEqual(events, logged)
        self.assertEqual([e["event"] for e in events], ["start", "train", "train", "save", "eval", "done"])
        self.assertEqual(run.history["step"], [5, 10])
        self.assertEqual(run.history["loss"], [e["loss"] for e in logged if e["event"] == "train"])
        self.assertEqual(run.history["val_top1"], [e["top1"] for e in logged if e["event"] == "eval"])
        self.assertEqual(run.best, {"step": 10, "top1": run.history["val_top1"][0]})
        self.assertEqual((run.path, run.running, repr(run)), (f"{WORK}/events", False, f"cresnet.Run('{WORK}/events')"))

    def test_keys_reach_the_program(self):
        run = quick("keys", optim_lr=0.0625, data_exif=False, model_widths=[12], steps=2, seed=None)
        with open("keys/last/config.ini", encoding="utf-8") as file:
            config = file.read()
        for line in ("lr = 0.0625", "exif = no", "widths = 12", "steps = 2", "seed = 1"):
            self.assertIn(f"\n{line}\n", config)
        self.assertEqual(run.events[-1]["event"], "done")

    def test_folder_chosen_by_the_program(self):
        with open("named.ini", "w", encoding="utf-8") as file:
            file.write(support.CONFIG.format(root=f"{WORK}/shapes") + "output = by/the ini\n")
        self.assertEqual(cresnet.train("named.ini", steps=1, progress=False).path, f"{WORK}/by/the ini")
        self.assertEqual(cresnet.train("tiny.ini", steps=1, progress=False).path, f"{WORK}/checkpoints/tiny")
        os.rename("named.ini", "-x.y=1.ini")  # neither an option nor a key
        self.assertEqual(cresnet.train("-x.y=1.ini", steps=1, progress=False, train_output="odd").path, f"{WORK}/odd")

    def test_errors(self):
        for error, text, call in (
                (ValueError, "command line: [optim] lrr = 3: unknown key; did you mean lr?", lambda: quick("e", optim_lrr=3)),
                (ValueError, "nowhere.ini: no such file", lambda: cresnet.train("nowhere.ini", progress=False)),
                (ValueError, "no such run folder", lambda: cresnet.resume("nowhere", progress=False)),
                (RuntimeError, "must be an integer", lambda: quick("e", epochs="x")),
                (TypeError, "lrr is neither an option", lambda: quick("e", lrr=3)),
                (TypeError, "on_event must be a function", lambda: quick("e", on_event=3))):
            with self.subTest(text), self.assertRaises(error) as raised:
                call()
            self.assertIn(text, str(raised.exception))
        quick("used", steps=1)
        with self.assertRaisesRegex(cresnet.ArgumentError, "used is not empty and may contain a run") as raised:
            quick("used")
        self.assertEqual(raised.exception.status, "configuration")
        with self.assertRaisesRegex(cresnet.CresnetError, "unknown key"):
            quick("e", optim_lrr=3, wait=False).wait()

    def test_program_not_found(self):
        with mock.patch.dict(os.environ, {"CRESNET": "", "PATH": WORK}):
            self.assertRaisesRegex(cresnet.CresnetError, "not installed.*set CRESNET", quick, "x")
            os.symlink(BIN, "cresnet")
            self.assertEqual(_child.program(), f"{WORK}/cresnet")
            os.remove("cresnet")
        with mock.patch.dict(os.environ, {"CRESNET": "nowhere/cresnet"}):
            self.assertRaisesRegex(cresnet.CresnetError, "CRESNET=nowhere/cresnet: no such program", quick, "x")

    def test_stop_and_resume(self):
        run = quick("stopped", wait=False, steps=0, **LONG)
        self.assertRaises(TimeoutError, run.wait, 0.01)
        self.assertRaisesRegex(cresnet.CresnetError, "has not ended", cresnet.resume, run)
        until(lambda: run.history.get("step"))
        run.stop()
        run.stop()  # a second signal would end it without a checkpoint
        self.assertIs(run.wait(), run)
        self.assertEqual([e["event"] for e in run.events[-2:]], ["save", "stopped"])
        at = run.events[-2]["step"]
        events = []
        again = cresnet.resume(run, steps=at + 10, on_event=events.append, progress=False)
        self.assertEqual((events[0]["event"], events[0]["step"], events[-1]["event"]), ("resume", at, "done"))
        self.assertEqual(again.history["step"], sorted(set(again.history["step"])))
        self.assertEqual(again.history["step"][-1], at + 10)
        self.assertEqual(cresnet.resume("stopped/last", progress=False, steps=at + 11).path, run.path)

    def test_resumed_equals_uninterrupted(self):
        whole = quick("whole", steps=20)
        quick("parts", steps=7)
        parts = cresnet.resume("parts", steps=20, progress=False)
        self.assertEqual(whole.history["val_loss"][-1], parts.history["val_loss"][-1])

    def test_function_stops_or_fails(self):
        for value, keys, end in ((True, {"steps": 0, **LONG}, "stopped"), (1, {"steps": 12}, "done")):
            run = quick(f"returned{value}", on_event=lambda e, value=value: value if e["event"] == "train" else None, **keys)
            self.assertEqual(run.events[-1]["event"], end)

        def fails(event):
            raise KeyError(event["event"])
        with self.assertRaises(KeyError):
            quick("failed", on_event=fails, **{"steps": 0, **LONG})
        self.assertEqual(cresnet.Run("failed").events[-1]["event"], "stopped")

    def test_interrupt(self):
        before = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        sent = []

        def press(event):
            if event["event"] == "train" and not sent:
                sent.append(1)
                os.kill(os.getpid(), signal.SIGINT)
        with self.assertRaises(KeyboardInterrupt):
            quick("pressed", on_event=press, **{"steps": 0, **LONG})
        self.assertEqual(cresnet.Run("pressed").events[-1]["event"], "stopped")
        run = quick("pressed2", wait=False, **{"steps": 0, **LONG})
        until(lambda: run.history.get("step"))
        waiting = run._ended.wait

        def pressed_while_waiting(timeout=None):
            if len(sent) == 1:
                sent.append(2)
                os.kill(os.getpid(), signal.SIGINT)
            return waiting(timeout)
        with mock.patch.object(run._ended, "wait", pressed_while_waiting):
            self.assertRaises(KeyboardInterrupt, run.wait)
        self.assertEqual(run.events[-1]["event"], "stopped")
        run = quick("twice", wait=False, **{"steps": 0, **LONG})
        until(lambda: run.history.get("step"))
        waiting = run._ended.wait
        with mock.patch.object(run._ended, "wait", side_effect=[KeyboardInterrupt, KeyboardInterrupt, True]), \
                mock.patch.object(run, "stop"), self.assertRaises(KeyboardInterrupt):
            run.wait()
        waiting()
        self.assertEqual((run._error.status, run.events[-1]["event"] != "stopped"), ("killed", True))
        with mock.patch.object(_child.Child, "wait", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            quick("pressed3")  # twice: ended at once
        with mock.patch.object(_child.Child, "wait", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            run.evaluate()
        with mock.patch.object(_child.Child, "wait", side_effect=[KeyboardInterrupt, True]), self.assertRaises(KeyboardInterrupt):
            run.evaluate()

    def test_threads_and_asyncio(self):
        runs = {}
        threads = [threading.Thread(target=lambda i=i: runs.update({i: quick(f"thread{i}", seed=7)})) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(runs[0].history["loss"], runs[1].history["loss"])

        async def both():
            loop = asyncio.get_running_loop()

            def answered(event):  # the loop runs while the training runs
                answer = threading.Event()
                loop.call_soon_threadsafe(answer.set)
                self.assertTrue(answer.wait(600), event)
            beside = await loop.run_in_executor(None, lambda: quick("beside", seed=7, on_event=answered))
            return beside, quick("inside", seed=7)  # as a cell of a notebook: blocks the loop
        beside, inside = asyncio.run(both())
        self.assertEqual(beside.history["loss"], inside.history["loss"])

        starter = []  # the child outlives the thread that called train(), not Python
        thread = threading.Thread(target=lambda: starter.append(quick("starter", wait=False)))
        thread.start()
        thread.join()
        self.assertEqual(starter[0].wait().events[-1]["event"], "done")

    @unittest.skipUnless(importlib.util.find_spec("pytest"), "no pytest")
    def test_pytest(self):
        with open("test_under_pytest.py", "w", encoding="utf-8") as file:
            file.write("""
import cresnet, pytest
def test_trains():
    assert cresnet.train("tiny.ini", steps=5, output="pytest").events[-1]["event"] == "done"
def test_wrong_key():
    with pytest.raises(cresnet.ArgumentError, match="unknown key"):
        cresnet.train("tiny.ini", optim_lrr=1)
""")
        ran = subprocess.run([sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_under_pytest.py"], capture_output=True,
                             text=True, check=False)
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assertIn("2 passed", ran.stdout)

    def test_killed_child(self):
        killed = []

        def kill(event):  # once: one read of the log may give several events, and a process that was reaped has no child
            if event["event"] == "train" and not killed:
                launcher = child_of("thread-self")
                killed.append(child_of(f"{launcher}/task/{launcher}"))
                os.kill(killed[0], signal.SIGKILL)
        with self.assertRaisesRegex(cresnet.CresnetError, r"cresnet train was ended by signal 9 \(SIGKILL\)") as raised:
            quick("killed", on_event=kill, **{"steps": 0, **LONG})
        self.assertEqual(raised.exception.status, "killed")
        self.assertEqual(_child._signal_name(1000), "unknown")

    def test_killed_parent(self):
        for wait, stop, signals in ((True, "os.kill(os.getpid(), 9)", -9), (False, "os.kill(os.getpid(), 9)", -9), (False, "sys.exit()", 0)):
            output = f"orphan{wait}{signals}"
            code = f"""
import cresnet, os, sys, time
def on_event(event):
    if event["event"] == "train" and {wait}: {stop}
run = cresnet.train("tiny.ini", epochs=100000, train_eval_every=0, output="{output}", wait={wait}, on_event=on_event, progress=False)
while not run.history.get("step"): time.sleep(0.02)
launcher = run._child._process.pid
print(child_of(f"{{launcher}}/task/{{launcher}}"), flush=True)
{stop}
"""
            code = f"{inspect.getsource(child_of)}{code}"
            ran = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, check=False)
            self.assertEqual(ran.returncode, signals, ran.stderr)
            until(lambda: cresnet.Run(output).events[-1]["event"] == "stopped")  # it has saved
            if not wait:
                until(lambda: gone(int(ran.stdout)))
        self.assertEqual(subprocess.run([sys.executable, "-I", "-S", _child._LAUNCH, "1", "/bin/true"], check=False).returncode,
                         128 + signal.SIGTERM)  # the parent died before the child asked for the signal

    @unittest.skipUnless(os.geteuid() == 0, "mounts a small disk")
    def test_full_disk(self):
        os.mkdir("disk")
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", "disk"], capture_output=True, check=False).returncode:
            self.skipTest("no tmpfs")
        try:
            with self.assertRaisesRegex(RuntimeError, "disk full"):
                quick("disk/run", steps=20)
        finally:
            subprocess.run(["umount", "disk"], check=True)

    def test_damaged_log(self):
        quick("cut")
        with open("cut/log.jsonl", "a", encoding="utf-8") as file:
            file.write('{"event":"train","ste\n[1]\n{"event":"eval","step":10,"loss":null,"top1":0.5}\n{"event":"tra')
        history = cresnet.Run("cut").history
        self.assertEqual((history["step"], history["val_top1"][1]), ([5, 10], 0.5))
        self.assertNotEqual(history["val_loss"][1], history["val_loss"][1])
        os.remove("cut/log.jsonl")
        os.remove("cut/best.json")
        self.assertEqual((cresnet.Run("cut").history, cresnet.Run("cut").best), ({}, None))

    def test_no_run(self):
        os.mkdir("empty")
        for open_run in (cresnet.Run, cresnet.resume, lambda path: cresnet.prune(path, output="never", sparsity=0.5),
                         lambda path: cresnet.quantize(path, output="never"), lambda path: cresnet.export(path, "never.safetensors")):
            for path in ("none", "empty", "tiny.ini/none"):
                with self.assertRaisesRegex(cresnet.ArgumentError, path):
                    open_run(path)
        self.assertFalse(os.path.exists("never"))
        self.assertFalse(cresnet.Run(quick("exists").path + "/last").events)  # a checkpoint, which has no log

    def test_progress(self):
        for module, shown, swept in (("tqdm.auto", "evaluation at step 10", "2 of 2 run"),
                                     ("nothing.such", "evaluation at step 10: top-1", "sweep: 2 of 2 ended")):
            class Bar:
                n = 0
                lines = []
                def __init__(self, total, initial, unit): self.total, self.unit = total, unit
                def update(self, steps): self.n += steps
                def set_postfix(self, values): self.lines.append(f"{self.n} of {self.total} {values}")
                def close(self): self.lines.append(f"{self.n} of {self.total} {self.unit}")
                write = lines.append
            with mock.patch.object(_progress, "_bar", return_value=Bar if "tqdm" in module else None), \
                    contextlib.redirect_stdout(io.StringIO()) as out:
                quick(f"progress-{module}", progress=True)
                cresnet.sweep("tiny.ini", output=f"sweep-{module}", train_seed=[1, 2], steps=2, jobs=1)
            said = "\n".join(Bar.lines) + out.getvalue()
            self.assertIn(shown, said)
            self.assertIn(swept, said)
            if "tqdm" in module:
                self.assertRegex(said, r"10 of 10 \{'loss': '\d")
        with mock.patch("importlib.import_module", side_effect=ImportError):
            self.assertIsNone(_progress._bar())


class Commands(unittest.TestCase):
    def test_options_are_those_of_the_program(self):
        for command, options in _arguments.OPTIONS.items():
            text = subprocess.run([BIN, command, "--help"], capture_output=True, text=True, check=True).stdout
            known = dict(re.findall(r"^ {2}(?:-\w,|   ) --([a-z-]+)( \S+)?", text, re.M))
            for option in options:
                word = option.replace("_", "-")
                self.assertIn(word, known, command)
                self.assertEqual(option in _arguments._FLAGS, not known[word], f"{command} --{word}")

    def test_lines(self):
        self.assertEqual(_arguments.arguments("sweep", {"optim_lr": [0.1, 0.2], "model_widths": [[8, 16], [16, 32]], "train_seed": range(1, 3)}),
                         ["optim.lr=0.1,0.2", 'model.widths="8,16","16,32"', "train.seed=1,2"])
        self.assertEqual(_arguments.arguments("prune", {"target_ms": 3, "keep_shape": True, "last": False}), ["--target-ms=3", "--keep-shape"])

    def test_finetune(self):
        run = quick("base")
        keys = {"weights": run.path, "device": "cpu", "threads": 1, "epochs": 1, "progress": False}
        subprocess.run([BIN, "data", "shapes", "photos", "data.train_images=60", "data.val_images=20", "-q"], check=True)
        tuned = cresnet.finetune("photos", **keys)
        self.assertEqual((tuned.path, tuned.events[-1]["event"]), (f"{WORK}/checkpoints/finetune-photos", "done"))
        events = []
        self.assertEqual(cresnet.finetune("photos", on_event=events.append, **keys).path, tuned.path)
        self.assertEqual(events, [])  # it had ended, and nothing is to do
        again = cresnet.finetune("photos", on_event=events.append, **{**keys, "epochs": 2})  # trains again, in a new run
        self.assertEqual((again.path, events[0]["event"]), (f"{WORK}/checkpoints/finetune-photos-2", "start"))
        for first in ("start", "resume"):
            events.clear()
            run = cresnet.finetune("photos", output="tuned", on_event=lambda e: events.append(e) or e["event"] == "train", train_patience=0, **{**keys, **LONG})
            self.assertEqual((events[0]["event"], run.events[-1]["event"]), (first, "stopped"))

    def test_tools(self):
        run = quick("tools")
        scores = run.evaluate(device="cpu", per_class=True)
        self.assertEqual((scores["images"], round(scores["top1"], 6)), (40, run.best["top1"]))
        self.assertEqual(len(scores["per_class"]), 10)
        self.assertAlmostEqual(cresnet.prune(run, output="pruned", sparsity=0.5, device="cpu").evaluate(device="cpu")["images"], 40)
        self.assertEqual(cresnet.quantize("tools", output="int8", device="cpu", images=32).evaluate(device="cpu")["images"], 40)
        self.assertEqual(cresnet.export(run, "net.onnx", fold=True), "net.onnx")
        self.assertGreater(os.path.getsize("net.onnx"), 1000)
        runs = cresnet.sweep("tiny.ini", output="lrs", optim_lr=[0.01, 0.1], steps=3, jobs=1, progress=False)
        self.assertEqual([r.history["val_step"] for r in runs], [[3], [3]])
        with self.assertRaisesRegex(ValueError, "unknown"):
            cresnet.prune(run, output="x", prune_nothing=1)

    @support.needs_library
    def test_model(self):
        import numpy as np
        run = quick("model")
        with run.model(max_batch=2) as model:
            self.assertEqual(model.info.classes, 10)
        pixels = np.random.default_rng(1).integers(0, 256, (3, 32, 32, 3), np.uint8)
        by_array = run.predict(pixels, top=2, logits=True)
        self.assertEqual((by_array.labels.shape, by_array.logits.shape), ((3, 2), (3, 10)))
        for wrong in (pixels[0], [pixels[0], "a.png"]):
            with self.assertRaisesRegex(TypeError, "must be a list of images|not both"):
                run.predict(wrong)
        with cresnet.Model("~/model", max_batch=3, settings={"model.depths": [1]}) as model:  # 33 images a part, so that Ctrl-C need not wait
            parts = mock.Mock(side_effect=cresnet._lib().cresnet_classify_encoded)
            with mock.patch.object(cresnet._lib(), "cresnet_classify_encoded", parts):
                numbers = [text.partition(":")[0] for text in model.classify_encoded([b"no image"] * 70).errors]
            self.assertEqual((parts.call_count, numbers), (3, [f"image {i}" for i in range(70)]))
            many = model.classify_tensor(np.concatenate([pixels] * 24), top=2, logits=True)
            self.assertTrue((many.logits == np.concatenate([by_array.logits] * 24)).all())
        subprocess.run([BIN, "data", "shapes", "some", "data.train_images=10", "data.val_images=10", "-q"], check=True)
        folder = run.predict("~/some/val")
        files = sorted(os.path.join(place, name) for place, _, names in os.walk("some/val") for name in names)
        self.assertTrue((folder.labels == run.predict(files).labels).all())
        said = subprocess.run([BIN, "predict", "model", files[0], "--json", "-q", "-k", "1"], capture_output=True, text=True, check=True).stdout
        self.assertEqual(json.loads(said)["top"][0]["label"], run.predict(files[0]).labels[0, 0])


if __name__ == "__main__":
    support.main()
