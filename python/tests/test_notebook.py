#!/usr/bin/env python3
"""test_notebook.py: training in a kernel of Jupyter, whose event loop runs: events, the stop button (SIGINT), a restart of the kernel. Needs
ipykernel."""
import importlib.util
import os
import queue
import time
import unittest

import support
import cresnet

LONG = "epochs=100000, train_eval_every=0, progress=False"


@unittest.skipUnless(importlib.util.find_spec("ipykernel"), "no ipykernel")
class Notebook(unittest.TestCase):
    def setUp(self):
        from jupyter_client.manager import start_new_kernel
        self.manager, self.client = start_new_kernel(startup_timeout=600)
        self.run_cell("import cresnet, asyncio")

    def tearDown(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()

    def run_cell(self, code, meanwhile=lambda: None):
        """The text that a cell prints and the name of its exception."""
        asked, printed, failed = self.client.execute(code), "", None
        while True:
            meanwhile()
            try:
                message = self.client.get_iopub_msg(timeout=0.1)
            except queue.Empty:
                self.assertTrue(self.manager.is_alive())
                continue
            content = message["content"]
            if message["parent_header"].get("msg_id") != asked:
                continue
            printed += content.get("text", "") if message["msg_type"] == "stream" else ""
            failed = content["ename"] if message["msg_type"] == "error" else failed
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return printed, failed

    @staticmethod
    def steps(name):
        return cresnet.Run(name).history.get("step", []) if os.path.exists(f"{name}/log.jsonl") else []

    def ends(self, name):
        while not (cresnet.Run(name).events or [{"event": None}])[-1]["event"] == "stopped":
            time.sleep(0.02)

    def test_cells(self):
        said = self.run_cell('run = cresnet.train("tiny.ini", steps=10, output="cell", progress=False, on_event=lambda e: print(e["event"]))')
        self.assertEqual(said, ("start\ntrain\ntrain\nsave\neval\ndone\n", None))
        said = self.run_cell("""
async def both():
    def answered(event):  # the loop of the kernel runs while the training runs
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(600)
    loop = asyncio.get_running_loop()
    return await asyncio.to_thread(cresnet.train, "tiny.ini", steps=10, output="thread", progress=False, on_event=answered)
print((await both()).history["loss"] == run.history["loss"])
""")
        self.assertEqual(said, ("True\n", None))
        self.assertEqual(self.run_cell('cresnet.train("tiny.ini", optim_lrr=1, progress=False)'), ("", "ArgumentError"))
        with_bar = self.run_cell('cresnet.train("tiny.ini", steps=10, output="bar")')
        self.assertIsNone(with_bar[1])

    def test_stop_button(self):
        pressed = []

        def press():
            if self.steps("pressed") and not pressed:
                pressed.append(True)
                self.manager.interrupt_kernel()
        self.assertEqual(self.run_cell(f'cresnet.train("tiny.ini", output="pressed", {LONG})', press), ("", "KeyboardInterrupt"))
        self.assertEqual(cresnet.Run("pressed").events[-1]["event"], "stopped")
        self.assertEqual(self.run_cell("print(1)"), ("1\n", None))  # the kernel goes on

    def test_restart_of_the_kernel(self):
        self.run_cell(f'run = cresnet.train("tiny.ini", output="restart", wait=False, {LONG})')
        while not self.steps("restart"):
            time.sleep(0.02)
        self.manager.restart_kernel(now=True)
        self.ends("restart")
        self.assertTrue(os.path.exists("restart/last/model.safetensors"))


if __name__ == "__main__":
    support.main()
