#!/usr/bin/env python3
"""weights_server.py FOLDER LOG: an HTTP server for tests that fails in every way. Prints its port. The path of a request is /MODE/FILE; LOG
gets a line `MODE RANGE` for each. A mode that ends in 1 fails at the first request of its file only.

  ok      ranges are supported          norange   the whole file, whatever range is requested
  404 ... that status                   page      200 with a page of text instead of the file
  cut     closes after half             reset     resets the connection after half
  stall   sends half, then nothing      short     announces half of the length and sends that much
  long    announces more than it has    changed   one byte is wrong
  shifted 206 with the wrong range      redirect  to ok        loop  to itself      file  redirects to a file: URL
  slow    waits a second before it answers
  drip    a byte every 0.05 s           steady   40 kB every 0.1 s of a file without end
The server is also a proxy: requests of absolute URLs are answered from the same folder.
"""
import http.server
import os
import socket
import struct
import sys
import threading
import time
import urllib.parse

FOLDER, LOG = sys.argv[1], sys.argv[2]
seen = {}
lock = threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, code, data, length=None, **headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def stop(self, reset):
        self.close_connection = True
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.wfile = self.rfile = open(os.devnull, "r+b")

    def send_file(self, mode, data, begin):
        half = len(data[begin:]) // 2
        code, headers = (206, {"Content_Range": f"bytes {begin}-{len(data) - 1}/{len(data)}"}) if begin else (200, {})
        part = data[begin:]
        if mode in ("cut", "reset", "stall"):
            self.reply(code, part[:half], len(part), **headers)
            if mode == "stall":
                time.sleep(30)
            self.stop(mode == "reset")
        elif mode in ("drip", "steady"):
            self.reply(code, b"", 1 << 40)
            while True:  # until the connection is closed
                self.wfile.write(b"x" * {"drip": 1, "steady": 40000}[mode])
                self.wfile.flush()
                time.sleep({"drip": 0.05, "steady": 0.1}[mode])
        elif mode == "short":
            self.reply(code, part[:half], **headers)
        elif mode == "long":
            self.reply(code, part, len(part) + 100, **headers)
            self.stop(False)
        else:
            self.reply(code, part, **headers)

    def do_GET(self):
        _, mode, name = urllib.parse.urlsplit(self.path).path.split("/", 2)
        requested = self.headers.get("Range", "")
        with lock:
            seen[self.path] = seen.get(self.path, 0) + 1
            first = seen[self.path] == 1
            with open(LOG, "a") as log:
                log.write(f"{mode} {requested or '-'}\n")
        if mode.endswith("1"):
            mode = mode[:-1] if first else "ok"
        with open(os.path.join(FOLDER, os.path.basename(name)), "rb") as f:
            data = f.read()
        begin = int(requested[6:-1]) if requested else 0
        if mode == "slow":
            time.sleep(1)
        if mode.isdigit():
            return self.reply(int(mode), b"an error page")
        if mode == "page":
            return self.reply(200, b"<html>please log in</html>")
        if mode in ("redirect", "loop", "file"):
            return self.reply(302, b"", Location={"redirect": f"/ok/{name}", "loop": self.path, "file": "file:///etc/passwd"}[mode])
        if mode == "norange" or mode == "changed":
            begin = 0
        if mode == "changed":
            data = data[:-1] + bytes([data[-1] ^ 1])
        if mode == "shifted" and begin:
            return self.reply(206, data[begin - 7:-7], Content_Range=f"bytes {begin}-{len(data) - 1}/{len(data)}")
        if begin >= len(data):
            return self.reply(416, b"", Content_Range=f"bytes */{len(data)}")
        return self.send_file(mode, data, begin)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass


server = Server(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
