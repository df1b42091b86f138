#!/usr/bin/env python3
"""test_dlpack.py: images in the memory of NumPy and PyTorch, and logits for them: the same addresses, the same values as by classify_tensor, what
cannot be taken, who frees what. The part on a GPU needs PyTorch with CUDA; scripts/gpu-check.sh runs it."""
import ctypes
import gc
import importlib.util
import subprocess
import sys
import threading
import unittest
from unittest import mock

import support
import numpy as np
import cresnet
from cresnet import _dlpack

torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
on_gpu = unittest.skipUnless(torch is not None and torch.cuda.is_available(), "no PyTorch with CUDA")


def address_of(images):
    """What the library gets."""
    tensor, _, keep = _dlpack.tensor_of(images, None)
    address = tensor.data or 0
    del keep  # after the tensor was read
    return address


class Owner:
    """An array of another library, by DLPack alone: its capsule counts how often the tensor is freed."""

    def __init__(self, array, device=(1, 0), **members):
        self.array, self.device, self.freed, self.streams = array, device, 0, []
        self.tensor, self.keep = _dlpack._made(array.ctypes.data, array.shape, array.strides, array.dtype, device[0], None)
        self.tensor.index = device[1]
        for name, value in members.items():
            setattr(self.tensor, name, value)
        deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.free)
        self.managed = _dlpack._Managed(self.tensor, None, deleter)

    def free(self, _):
        self.freed += 1

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **stream):
        self.streams.append(stream)
        return _dlpack._new_capsule(ctypes.addressof(self.managed), b"dltensor", ctypes.cast(_dlpack._free_capsule, ctypes.c_void_p))


class Interface:
    """An array of another library, by the CUDA array interface alone."""

    def __init__(self, array, **members):
        self.__cuda_array_interface__ = {**array.__array_interface__, **members}


@support.needs_library
class OnTheHost(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.run_ = cresnet.train("tiny.ini", steps=5, progress=False, output="run")
        cls.images = np.random.default_rng(1).integers(0, 256, (5, 32, 32, 3), np.uint8)
        cls.model = cls.run_.model(device="cpu", max_batch=2)
        cls.want = cls.model.classify_tensor(cls.images, logits=True).logits

    @classmethod
    def tearDownClass(cls):
        cls.model.close()

    def same(self, images, want=None, model=None):
        logits = (model or self.model).classify(images)
        self.assertEqual((logits.shape, logits.dtype, logits.__dlpack_device__()), ((len(self.want), 10), "float32", (1, 0)))
        np.testing.assert_array_equal(np.asarray(logits), self.want if want is None else want)

    def test_numpy(self):
        self.same(self.images)
        read_only = self.images.copy()
        read_only.flags.writeable = False
        self.same(read_only)
        nchw = np.ascontiguousarray(self.images.transpose(0, 3, 1, 2))
        self.same(nchw)
        self.same(self.images.transpose(0, 3, 1, 2))  # channels_last
        self.assertEqual(self.model.classify(self.images[:0]).shape, (0, 10))
        self.same(Owner(self.images))
        shifted = np.concatenate([np.zeros(7, np.uint8), self.images.ravel()])
        self.same(Owner(shifted[7:].reshape(self.images.shape), data=shifted.ctypes.data, offset=7))

    def test_floats(self):
        with self.run_.model(device="cpu", f32_tensors=True, max_batch=3) as model:
            values = ((self.images / 255 - model.info.mean) / model.info.std).astype(np.float32)
            want = model.classify_tensor(values, logits=True).logits
            self.same(values, want, model)
            self.same(values.transpose(0, 3, 1, 2), want, model)
            self.assertRaisesRegex(cresnet.ArgumentError, "float64: they must be", model.classify, values.astype(float))
            odd = np.concatenate([np.zeros(1, np.uint8), values.view(np.uint8).ravel()])
            self.assertRaisesRegex(cresnet.ArgumentError, "no multiple of 4", model.classify,
                                   Owner(values, data=odd.ctypes.data, offset=1))

    def test_logits(self):
        logits = self.model.classify(self.images)
        view = np.asarray(logits)
        address = logits._tensor.data
        self.assertEqual((view.ctypes.data, address % 256, repr(logits)), (address, 0, "<cresnet.Logits [5, 10] float32 in host memory>"))
        again = [np.from_dlpack(logits) for _ in range(2)] if hasattr(np, "from_dlpack") else []
        self.assertTrue(all(array.ctypes.data == address for array in again))
        copy = np.array(logits, dtype=np.float64)
        capsule = logits.__dlpack__(stream=None, max_version=(1, 0), dl_device=(1, 0), copy=False)
        del logits, capsule
        gc.collect()
        for array in (view, copy, *again):
            np.testing.assert_array_equal(array, self.want)
        logits = self.model.classify(self.images)
        self.assertRaises(BufferError, logits.__dlpack__, copy=True)
        self.assertRaises(BufferError, logits.__dlpack__, dl_device=(2, 0))
        self.assertFalse(hasattr(logits, "__cuda_array_interface__"))
        with self.run_.model(device="cpu") as model:
            kept = np.asarray(model.classify(self.images))
            model.synchronize()
        np.testing.assert_array_equal(kept, self.want)
        self.assertRaisesRegex(ValueError, "closed", model.classify, self.images)
        model.synchronize()

    def test_capsules_are_freed(self):
        owner = Owner(self.images)
        self.same(owner)
        self.assertEqual((owner.freed, owner.streams), (1, [{}]))
        refused = Owner(self.images[:, :3].copy())
        self.assertRaises(cresnet.ArgumentError, self.model.classify, refused)
        self.assertEqual(refused.freed, 1)

    def test_what_cannot_be_taken(self):
        wide = np.zeros((5, 32, 40, 3), np.uint8)

        class Fails(Owner):
            def __dlpack__(self, **stream):
                raise BufferError("it is read-only")

        class Grows(Owner):
            def __dlpack__(self, **stream):
                raise RuntimeError("it requires a gradient")

        class Renamed(Owner):
            def __dlpack__(self, **stream):
                return object()
        for images, text in ((wide[:, :, :32], "the images are not contiguous in the order"),
                             (self.images[:, ::-1], "the images are not contiguous"),
                             (self.images.transpose(0, 2, 1, 3)[:, :, :, ::-1], "the images are not contiguous"),
                             (self.images[0], r"must be \[N, 32, 32, 3\] or \[N, 3, 32, 32\], not \[32, 32, 3\]"),
                             (wide, r"not \[5, 32, 40, 3\]"),
                             (self.images.astype(np.int8), "type int8: they must be uint8, uint16 or float32"),
                             (self.images.astype(">u2"), "type uint16 in the byte order of other machines"),
                             (self.images.astype(np.uint16), "images of this network have 8 bits"),
                             (self.images.astype(np.float32), "open the model with f32_tensors=True"),
                             (Owner(self.images, lanes=4), "type uint8 in vectors"), (Owner(self.images, code=4, bits=16), "type bfloat16"),
                             (Owner(self.images, (2, 0)), r"on a GPU, but the model is on the CPU \(CPU"),
                             (Owner(self.images, (13, 1)), "on a GPU, but the model"), (Owner(self.images, (10, 0)), "device of type 10"),
                             (Fails(self.images), "read in place: it is read-only"),
                             (Grows(self.images), "read in place: it requires a gradient"), (Renamed(self.images), "returns no capsule"),
                             (Interface(self.images, stream=1), "on a GPU, but the model"),
                             (Interface(self.images, mask=self.images), "have a mask"),
                             (Interface(self.images, strides=(3072, 96, 3, 1), typestr="<f4"), "gaps that are no multiple")):
            with self.subTest(text):
                self.assertRaisesRegex(cresnet.ArgumentError, text, self.model.classify, images)
        self.assertRaisesRegex(TypeError, "list has neither", self.model.classify, [1])

    def test_streams(self):
        class Torch:
            cuda_stream = 0

        class CuPy:
            ptr = 77

        class Core:
            def __cuda_stream__(self):
                return 0, 78
        self.assertEqual([_dlpack.stream_handle(s) for s in (None, 1, 2, 99, Torch(), CuPy(), Core())], [None, 1, 1, 99, 1, 77, 78])
        self.assertRaisesRegex(cresnet.ArgumentError, "stream = 0: give 1", self.model.classify, self.images, stream=0)
        self.assertRaisesRegex(TypeError, "stream must be a number or a CUDA stream, not str", self.model.classify, self.images, stream="x")
        for stream, asked in ((None, 1), (2, 1), (99, 99)):
            owner = Owner(self.images, (2, 0))
            self.assertRaises(cresnet.ArgumentError, self.model.classify, owner, stream=stream)
            self.assertEqual(owner.streams, [{"stream": asked}])
        self.assertRaisesRegex(cresnet.ArgumentError, "belong to the stream 0x63, not to the stream 0x4d", self.model.classify,
                               Interface(self.images, stream=99), stream=CuPy())
        tensor, stream, _ = _dlpack.tensor_of(Interface(self.images, stream=99), None)
        self.assertEqual((tensor.data, tensor.index, stream), (self.images.ctypes.data, -1, 99))

    def test_end_of_python(self):
        code = """
import cresnet, numpy as np
model = cresnet.Model("run", device="cpu")
logits = model.classify(np.zeros((1, 32, 32, 3), np.uint8))
kept = np.asarray(logits), logits.__dlpack__()
print(kept[0].shape)
"""
        ran = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, check=False)
        self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, "(1, 10)\n", ""))

    @unittest.skipUnless(torch, "no PyTorch")
    def test_torch(self):
        images = torch.from_numpy(self.images.copy())
        with self.subTest("NHWC"):
            self.same(images)
        self.same(images.permute(0, 3, 1, 2))
        self.same(images.permute(0, 3, 1, 2).contiguous())
        logits = self.model.classify(images)
        tensor = torch.from_dlpack(logits)
        self.assertEqual(tensor.data_ptr(), logits._tensor.data)
        self.assertEqual(address_of(images), images.data_ptr())
        del logits
        np.testing.assert_array_equal(tensor.numpy(), self.want)
        self.assertRaisesRegex(cresnet.ArgumentError, "gradient", self.model.classify, images.float().requires_grad_())


class OrderOfStreams(unittest.TestCase):
    """What logits on a GPU ask of the library, which is a mock."""

    def logits(self, stream, dtype=np.float16, **members):
        self.owner = Owner(np.zeros((2, 10), dtype), (2, 0), **members)
        self.addCleanup(id, self.owner)  # logits of an earlier call may still be freed
        self.model, self.functions = mock.Mock(), mock.Mock()
        patched = mock.patch.object(_dlpack, "lib", return_value=self.functions)
        patched.start()
        self.addCleanup(patched.stop)
        return _dlpack.Logits(ctypes.addressof(self.owner.managed), self.model, stream)

    def users(self):
        return [call.args[1] for call in self.functions.cresnet_logits_retain.call_args_list]

    def test_capsules(self):
        for stream, asked, user, waits in ((77, 77, 77, 0), (77, 78, 78, 1), (77, None, 1, 1), (77, 2, 1, 1), (77, -1, -1, 0), (1, None, 1, 0), (1, 2, 1, 0),
                                           (None, 5, 5, 0)):
            with self.subTest((stream, asked)):
                logits = self.logits(stream)
                capsules = [logits.__dlpack__(stream=asked, max_version=(1, 1), dl_device=(2, 0)) for _ in range(2)]
                self.assertEqual((self.users(), self.model.synchronize.call_count), ([user, user], waits))
                del logits, capsules
                gc.collect()
                self.assertEqual(self.owner.freed, 3)
        logits = self.logits(1)
        self.assertRaisesRegex(cresnet.ArgumentError, "stream = 0", logits.__dlpack__, stream=0)
        self.assertRaises(BufferError, logits.__dlpack__, dl_device=(1, 0))

    def test_other_views(self):
        logits = self.logits(77)
        self.assertEqual(repr(logits), "<cresnet.Logits [2, 10] float16 in GPU 0>")
        self.assertEqual(logits.__cuda_array_interface__, {"version": 3, "shape": (2, 10), "typestr": "<f2", "stream": 77,
                                                           "data": (self.owner.array.ctypes.data, False)})
        self.assertEqual(self.users(), [-1])  # any stream may use them now
        self.assertRaisesRegex(TypeError, "on a GPU: use torch.from_dlpack", np.asarray, logits)
        self.assertFalse(hasattr(self.logits(77, np.uint16, code=4), "__cuda_array_interface__"))

    def test_calls(self):
        images = Owner(np.zeros((2, 4, 4, 3), np.uint8), (2, 0))
        for stream, asked, given, waits in ((None, 1, 1, 1), (2, 1, 1, 0), (99, 99, 99, 0)):
            with self.subTest(stream):
                made = self.logits(1)  # sets up the mock
                del made
                self.functions.cresnet_classify_dlpack.side_effect = lambda handle, tensor, stream, out, error: self.answer(stream, given, out)
                logits = _dlpack.classify(ctypes.c_void_p(), self.model, images, stream)
                self.assertEqual(images.streams.pop(), {"stream": asked})
                self.assertEqual((self.model.synchronize.call_count, logits._stream), (waits, None if waits else given))

    def answer(self, stream, want, out):
        self.assertEqual(stream, want)
        out._obj.value = ctypes.addressof(self.owner.managed)
        return 0


@support.needs_library
@on_gpu
class OnAGpu(unittest.TestCase):
    COUNT, BATCH = 20, 8

    @classmethod
    def setUpClass(cls):
        cls.run_ = cresnet.train("tiny.ini", steps=5, progress=False, output="gpu")
        cls.host = np.random.default_rng(1).integers(0, 256, (cls.COUNT, 32, 32, 3), np.uint8)
        cls.images = torch.from_numpy(cls.host).cuda()
        cls.precisions = {name: cls.run_.model(device="cuda", precision=name, max_batch=cls.BATCH) for name in ("fp32", "fp16", "bf16")}
        cls.model = cls.precisions["fp16"]
        cls.want = cls.logits_of(cls.host)

    @classmethod
    def tearDownClass(cls):
        for model in cls.precisions.values():
            model.close()

    @classmethod
    def logits_of(cls, images, model=None):
        """The same program on images that the host copies."""
        return (model or cls.model).classify_tensor(images, logits=True).logits

    @staticmethod
    def busy(stream, milliseconds=50):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(int(milliseconds * 2e6))  # clock cycles

    def test_pointers_and_logits_are_equal(self):
        for name, model in self.precisions.items():
            want = self.logits_of(self.host, model)
            for images in (self.images, self.images.permute(0, 3, 1, 2), self.images[:3], self.images[:0]):
                with self.subTest(name, images=list(images.shape)):
                    self.assertEqual(address_of(images), images.data_ptr())
                    logits = model.classify(images)
                    tensor = torch.from_dlpack(logits)
                    self.assertEqual(tensor.data_ptr(), (logits._tensor.data if len(images) else 0))
                    self.assertEqual((tensor.dtype, tensor.device.type, tensor.device.index), (getattr(torch, logits.dtype), "cuda", 0))
                    self.assertEqual(logits.dtype, {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[name])
                    np.testing.assert_array_equal(tensor.float().cpu().numpy(), want[:len(images)])
        self.assertRaises(TypeError, np.asarray, self.model.classify(self.images))
        interface = Interface(self.host, **{**self.images.__cuda_array_interface__, "stream": 1})
        logits = self.model.classify(interface)
        self.assertEqual(torch.as_tensor(logits, device="cuda").data_ptr(), logits._tensor.data)
        np.testing.assert_array_equal(torch.from_dlpack(logits).float().cpu().numpy(), self.want)

    def test_floats(self):
        with self.run_.model(device="cuda", precision="fp16", max_batch=self.BATCH, f32_tensors=True) as model:
            values = ((self.host / 255 - model.info.mean) / model.info.std).astype(np.float32)
            got = torch.from_dlpack(model.classify(torch.from_numpy(values).cuda())).float().cpu().numpy()
            np.testing.assert_array_equal(got, self.logits_of(values, model))
            self.assertRaisesRegex(cresnet.ArgumentError, "in the form that the network reads", model.classify, self.images)

    def test_order_of_a_stream(self):
        """Work of the stream writes the images late, changes them after the call and reads the logits; the host waits for nothing."""
        streams = [torch.cuda.Stream() for _ in range(3)]
        for turn in range(30):
            stream, images = streams[turn % 3], torch.zeros_like(self.images)
            torch.cuda.synchronize()
            self.busy(stream, 5)
            with torch.cuda.stream(stream):
                images.copy_(self.images)
                logits = self.model.classify(images, stream=stream)
                images.fill_(7)
                got = torch.from_dlpack(logits).clone()
            other = torch.from_dlpack(logits).float() if turn % 2 else None  # on the default stream
            np.testing.assert_array_equal(got.float().cpu().numpy(), self.want)
            if other is not None:
                np.testing.assert_array_equal(other.cpu().numpy(), self.want)

    def test_call_with_a_stream_does_not_wait(self):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(2):
                torch.from_dlpack(self.model.classify(self.images, stream=stream))  # reserves memory, which this stream may use again
            torch.cuda.synchronize()
            self.busy(stream, 2000)
            logits = self.model.classify(self.images, stream=stream)
        self.assertFalse(stream.query())  # the GPU is still busy with what came before
        with torch.cuda.stream(stream):
            got = torch.from_dlpack(logits).float()
        np.testing.assert_array_equal(got.cpu().numpy(), self.want)

    def test_call_without_a_stream_waits(self):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            images = torch.zeros_like(self.images)
            self.busy(stream)
            images.copy_(self.images)
            logits = self.model.classify(images)
            images.fill_(7)
            got = torch.from_dlpack(logits).float()
        np.testing.assert_array_equal(got.cpu().numpy(), self.want)

    def test_memory(self):
        """Logits are written into memory that was used before; no array is made on the way."""
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            addresses = {torch.from_dlpack(self.model.classify(self.images, stream=stream)).data_ptr() for _ in range(50)}
        torch.cuda.synchronize()
        free, allocated = torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()
        with torch.cuda.stream(stream):
            addresses |= {torch.from_dlpack(self.model.classify(self.images, stream=stream)).data_ptr() for _ in range(50)}
        torch.cuda.synchronize()
        self.assertLessEqual(len(addresses), 2)
        self.assertEqual((torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()), (free, allocated))
        with self.run_.model(device="cuda", precision="fp16", max_batch=self.BATCH) as model:
            kept = torch.from_dlpack(model.classify(self.images))
            for _ in range(3):
                model.classify(255 - self.images)
        np.testing.assert_array_equal(kept.float().cpu().numpy(), self.want)

    def test_errors_leave_the_model_usable(self):
        with self.assertRaisesRegex(cresnet.ArgumentError, "the order N, H, W, C and uint8"):
            self.model.classify(self.images.permute(0, 3, 1, 2).contiguous())
        with self.run_.model(device="cpu") as model:
            self.assertRaisesRegex(cresnet.ArgumentError, "on a GPU, but the model is on the CPU", model.classify, self.images)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        images = self.images.clone()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
            self.assertRaisesRegex(cresnet.ArgumentError, "captured", self.model.classify, images, stream=stream)
            images.add_(1)
        np.testing.assert_array_equal(torch.from_dlpack(self.model.classify(self.images)).float().cpu().numpy(), self.want)

    def test_threads(self):
        wrong = []

        def call(number):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for i in range(30):
                    first = (3 * number + i) % (self.COUNT - 5)
                    logits = self.model.classify(self.images[first:first + 5], stream=stream if number % 2 else None)
                    logits = torch.from_dlpack(logits).float().cpu().numpy()
                    close = np.allclose(logits, self.want[first:first + 5], atol=2e-2)
                    wrong.extend([] if close else [(number, i)])
        threads = [threading.Thread(target=call, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    @unittest.skipUnless(importlib.util.find_spec("cupy"), "no CuPy")
    def test_cupy(self):
        import cupy
        logits = self.model.classify(cupy.asarray(self.host))
        array = cupy.from_dlpack(logits)
        self.assertEqual(array.data.ptr, logits._tensor.data)
        np.testing.assert_array_equal(cupy.asnumpy(array.astype(np.float32)), self.want)


if __name__ == "__main__":
    support.main()
