#!/usr/bin/env python3
"""Writes invalid safetensors files, with one error each, into tests/fuzz/corpus/fuzz_safetensors, and bad.txt in the folder of this
script: file name, tab, a part of the message. Run from the root of the repository:
  python3 tests/golden/safetensors/make_bad.py"""
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "..", "fuzz", "corpus", "fuzz_safetensors")
A = '"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
CASES = []


def raw(name, data, message):
    CASES.append((name, data, message))


def head(name, text, data_bytes, message, n=None):
    text = text if isinstance(text, bytes) else text.encode()
    raw(name, struct.pack("<Q", len(text) if n is None else n) + text + bytes(range(data_bytes)), message)


def entry(dtype="F32", shape="[2]", offsets="[0,8]", name="a"):
    return '{"%s":{"dtype":"%s","shape":%s,"data_offsets":%s}}' % (name, dtype, shape, offsets)


# length of the header
raw("no-bytes", b"", "is empty")
raw("no-header", struct.pack("<Q", 0), "does not start with '{'")
head("length-beyond-file", entry(), 8, "but the file has only", n=500)
head("length-too-small", entry(), 8, "header, byte", n=20)
# other files
raw("zip", b"PK\3\4" + bytes(60), "cresnet export")
raw("pickle", b"\x80\2\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19." + bytes(40), "cresnet export")
raw("text", b"this is a text and not a tensor file at all", "but the file has only")
# JSON
head("space-first", " " + entry(), 8, "does not start with '{'")
head("unclosed", '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}', 8, "',' or '}' expected")
head("two-objects", entry() + "{}", 8, "after the end")
head("string-without-end", '{"a', 0, "not terminated")
head("entry-not-object", '{"a":5}', 0, "'{' expected")
head("deep", '{"a":' + "[" * 3000, 0, "'{' expected")
# strings
head("control-in-name", '{"a\x01":{}}', 0, "control character")
head("zero-in-name", '{"a\\u0000b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', 8, "a zero character")
head("bad-escape", '{"a\\x":{}}', 0, "unknown escape")
head("lone-high-surrogate", '{"a\\ud800":{}}', 0, "surrogate")
head("utf8-cut", b'{"a\xc3":{}}', 0, "UTF-8")
head("utf8-overlong", b'{"a\xc0\xaf":{}}', 0, "UTF-8")
head("utf8-surrogate", b'{"a\xed\xa0\x80":{}}', 0, "UTF-8")
# fields
head("no-dtype", '{"a":{"shape":[2],"data_offsets":[0,8]}}', 8, "dtype is missing")
head("unknown-field", '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"stride":[1]}}', 8, 'unknown field "stride"')
head("dtype-twice", '{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', 8, 'duplicate field "dtype"')
head("dtype-number", '{"a":{"dtype":4,"shape":[2],"data_offsets":[0,8]}}', 8, "a string in quotes expected")
head("dtype-unknown", entry(dtype="F31"), 8, 'unknown element type "F31"')
head("dtype-unused", entry(dtype="C64", offsets="[0,16]"), 16, "of type C64, which cresnet does not support")
# numbers
head("shape-negative", entry(shape="[-2]"), 8, "a non-negative integer")
head("shape-fraction", entry(shape="[2.0]"), 8, "without fraction")
head("shape-leading-zero", entry(shape="[02]"), 8, "starts with 0")
head("shape-number", entry(shape="2"), 8, "'[' expected")
head("shape-beyond-i64", entry(shape="[9223372036854775808]"), 8, "too large")
head("shape-product-overflow", entry(shape="[4294967296,4294967296]"), 8, "too large")
head("shape-nine-dims", entry(shape="[1,1,1,1,1,1,1,1,2]"), 8, "more than 8 dimensions")
head("shape-larger-than-bytes", entry(shape="[3]"), 8, "needs 12 bytes")
head("shape-zero-with-bytes", entry(shape="[0]"), 8, "needs 0 bytes")
# offsets
head("offsets-one", entry(offsets="[8]"), 8, "',' expected")
head("offsets-backwards", entry(offsets="[8,0]"), 8, "is before the begin")
head("offsets-wrap", '{%s,"b":{"dtype":"F32","shape":[2],"data_offsets":[18446744073709551600,18446744073709551608]}}' % A, 8,
     "belong to no tensor")
head("first-not-at-zero", entry(offsets="[8,16]"), 16, "8 bytes before tensor")
# cover
B = '"b":{"dtype":"F32","shape":[2],"data_offsets":[%d,%d]}'
head("hole", "{" + A + "," + B % (12, 20) + "}", 20, '4 bytes before tensor "b"')
head("overlap", "{" + A + "," + B % (4, 12) + "}", 12, 'tensor "b" overlaps')
head("empty-inside", "{" + A + ',"b":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}}', 8, "overlaps")
head("file-cut-short", entry(), 7, "truncated")
head("file-too-long", entry(), 9, "1 bytes at the end")
head("data-without-tensors", "{}", 4, "4 bytes at the end")
# names twice, metadata
head("name-twice", "{" + A + ',"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}', 16, 'duplicate tensor "a"')
head("meta-number", '{"__metadata__":{"step":5},%s}' % A, 8, "a string in quotes expected")
head("meta-key-twice", '{"__metadata__":{"x":"1","x":"1"},%s}' % A, 8, 'duplicate metadata key "x"')
head("meta-twice", '{"__metadata__":{},"__metadata__":{},%s}' % A, 8, "duplicate __metadata__")


def main():
    os.makedirs(OUT, exist_ok=True)
    for name in os.listdir(OUT):
        if name.startswith("bad-"):
            os.remove(os.path.join(OUT, name))
    with open(os.path.join(HERE, "bad.txt"), "w") as list_file:
        for name, data, message in CASES:
            with open(os.path.join(OUT, "bad-" + name), "wb") as f:
                f.write(data)
            list_file.write("bad-%s\t%s\n" % (name, message))
    assert len({c[0] for c in CASES}) == len(CASES)
    print(len(CASES), "files")


main()
