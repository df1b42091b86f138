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
raw("no-bytes", b"", "only 0 bytes")
raw("seven-bytes", b"\2\0\0\0\0\0\0", "only 7 bytes")
raw("no-header", struct.pack("<Q", 0), "does not start with '{'")
head("length-beyond-file", entry(), 8, "but the file has only", n=500)
head("length-all-ones", entry(), 8, "but the file has only", n=2**64 - 1)
head("length-sign-bit", entry(), 8, "but the file has only", n=2**63)
head("length-too-small", entry(), 8, "header, byte", n=20)
head("length-zero-then-json", entry(), 8, "'{' expected", n=0)
# other files
raw("zip", b"PK\3\4" + bytes(60), "cresnet export")
raw("pickle", b"\x80\2\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19." + bytes(40), "cresnet export")
raw("text", b"this is a text and not a tensor file at all", "but the file has only")
# JSON
head("space-first", " " + entry(), 8, "does not start with '{'")
head("array", "[]", 0, "does not start with '{'")
head("unclosed", '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}', 8, "',' or '}' expected")
head("trailing-comma", "{" + A + ",}", 8, "a string in quotes expected")
head("missing-colon", '{"a"{}}', 0, "':' expected")
head("two-objects", entry() + "{}", 8, "after the end")
head("zero-padding", entry() + "\0\0\0", 8, "after the end")
head("string-without-end", '{"a', 0, "not terminated")
head("entry-not-object", '{"a":5}', 0, "'{' expected")
head("entry-null", '{"a":null}', 0, "'{' expected")
head("deep", '{"a":' + "[" * 3000, 0, "'{' expected")
head("deep-objects", '{"a":' * 3000, 0, "unknown field")
head("comment", "{/**/" + A + "}", 8, "a string in quotes expected")
# strings
head("control-in-name", '{"a\x01":{}}', 0, "control character")
head("zero-in-name", '{"a\\u0000b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', 8, "a zero character")
head("bare-zero-in-name", '{"a\0b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', 8, "control character")
head("bad-escape", '{"a\\x":{}}', 0, "unknown escape")
head("short-unicode-escape", '{"a\\u12":{}}', 0, "four hexadecimal digits")
head("lone-high-surrogate", '{"a\\ud800":{}}', 0, "surrogate")
head("lone-low-surrogate", '{"a\\udc00":{}}', 0, "surrogate")
head("two-high-surrogates", '{"a\\ud800\\ud800":{}}', 0, "surrogate")
head("high-surrogate-then-letter", '{"a\\ud800\\u0041":{}}', 0, "surrogate")
head("utf8-cut", b'{"a\xc3":{}}', 0, "UTF-8")
head("utf8-overlong", b'{"a\xc0\xaf":{}}', 0, "UTF-8")
head("utf8-overlong-three", b'{"a\xe0\x80\xaf":{}}', 0, "UTF-8")
head("utf8-overlong-four", b'{"a\xf0\x8f\xbf\xbf":{}}', 0, "UTF-8")
head("utf8-surrogate", b'{"a\xed\xa0\x80":{}}', 0, "UTF-8")
head("utf8-above-limit", b'{"a\xf4\x90\x80\x80":{}}', 0, "UTF-8")
head("utf8-latin1", b'{"\xe9":{}}', 0, "UTF-8")
# fields
head("no-dtype", '{"a":{"shape":[2],"data_offsets":[0,8]}}', 8, "dtype is missing")
head("no-shape", '{"a":{"dtype":"F32","data_offsets":[0,8]}}', 8, "shape is missing")
head("no-offsets", '{"a":{"dtype":"F32","shape":[2]}}', 8, "data_offsets is missing")
head("empty-entry", '{"a":{}}', 0, "dtype is missing")
head("unknown-field", '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"stride":[1]}}', 8, 'unknown field "stride"')
head("dtype-twice", '{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', 8, 'duplicate field "dtype"')
head("shape-twice", '{"a":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}}', 8, 'duplicate field "shape"')
head("dtype-number", '{"a":{"dtype":4,"shape":[2],"data_offsets":[0,8]}}', 8, "a string in quotes expected")
head("dtype-unknown", entry(dtype="F31"), 8, 'unknown element type "F31"')
head("dtype-lower-case", entry(dtype="f32"), 8, 'unknown element type "f32"')
head("dtype-unused", entry(dtype="C64", offsets="[0,16]"), 16, "of type C64, which cresnet does not support")
head("dtype-bool", entry(dtype="BOOL", offsets="[0,2]"), 2, "of type BOOL, which cresnet does not support")
# numbers
head("shape-negative", entry(shape="[-2]"), 8, "a non-negative integer")
head("shape-fraction", entry(shape="[2.0]"), 8, "without fraction")
head("shape-exponent", entry(shape="[2e0]"), 8, "without fraction")
head("shape-leading-zero", entry(shape="[02]"), 8, "starts with 0")
head("shape-string", entry(shape='["2"]'), 8, "a non-negative integer")
head("shape-nested", entry(shape="[[2]]"), 8, "a non-negative integer")
head("shape-number", entry(shape="2"), 8, "'[' expected")
head("shape-beyond-u64", entry(shape="[99999999999999999999]"), 8, "number is too large")
head("shape-beyond-i64", entry(shape="[9223372036854775808]"), 8, "too large")
head("shape-product-overflow", entry(shape="[4294967296,4294967296]"), 8, "too large")
head("shape-bytes-overflow", entry(shape="[4611686018427387904]"), 8, "too large")
head("shape-nine-dims", entry(shape="[1,1,1,1,1,1,1,1,2]"), 8, "more than 8 dimensions")
head("shape-larger-than-bytes", entry(shape="[3]"), 8, "needs 12 bytes")
head("shape-smaller-than-bytes", entry(shape="[1]"), 8, "needs 4 bytes")
head("shape-zero-with-bytes", entry(shape="[0]"), 8, "needs 0 bytes")
# offsets
head("offsets-one", entry(offsets="[8]"), 8, "',' expected")
head("offsets-three", entry(offsets="[0,8,8]"), 8, "',' or ']' expected")
head("offsets-empty", entry(offsets="[]"), 8, "a non-negative integer")
head("offsets-backwards", entry(offsets="[8,0]"), 8, "is before the begin")
head("offsets-beyond-u64", entry(offsets="[18446744073709551616,18446744073709551624]"), 8, "number is too large")
head("offsets-wrap", '{%s,"b":{"dtype":"F32","shape":[2],"data_offsets":[18446744073709551600,18446744073709551608]}}' % A, 8,
     "belong to no tensor")
head("first-not-at-zero", entry(offsets="[8,16]"), 16, "8 bytes before tensor")
# cover
B = '"b":{"dtype":"F32","shape":[2],"data_offsets":[%d,%d]}'
head("hole", "{" + A + "," + B % (12, 20) + "}", 20, '4 bytes before tensor "b"')
head("overlap", "{" + A + "," + B % (4, 12) + "}", 12, 'tensor "b" overlaps')
head("same-place", "{" + A + "," + B % (0, 8) + "}", 8, 'tensor "b" overlaps')
head("empty-inside", "{" + A + ',"b":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}}', 8, "overlaps")
head("file-cut-short", entry(), 7, "truncated")
head("file-without-data", entry(), 0, "truncated")
head("file-too-long", entry(), 9, "1 bytes at the end")
head("data-without-tensors", "{}", 4, "4 bytes at the end")
# names twice, metadata
head("name-twice", "{" + A + ',"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}', 16, 'duplicate tensor "a"')
head("name-twice-by-escape", "{" + A + ',"\\u0061":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}', 16, "duplicate tensor")
head("meta-number", '{"__metadata__":{"step":5},%s}' % A, 8, "a string in quotes expected")
head("meta-nested", '{"__metadata__":{"x":{"y":"z"}},%s}' % A, 8, "a string in quotes expected")
head("meta-string", '{"__metadata__":"x",%s}' % A, 8, "'{' expected")
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
