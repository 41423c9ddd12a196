"""Plays episodes with the weights that the trainer sends, over HTTP. Each rank is a server of its own.

It keeps nothing between two requests, so hvdctl can start it again at any time (`ends = "restarts 3"`).
"""
import argparse
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy
import walk

parser = argparse.ArgumentParser(description="Play episodes for a trainer.")
parser.add_argument("--port", type=int, required=True)
options = parser.parse_args()
rank = int(os.environ["RANK"])
random = numpy.random.RandomState(rank)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        # 1. hvdctl starts the trainer when this answers (`ready` in hvdctl.toml).
        self.answer(200 if self.path == "/health" else 404, {})

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        weights = numpy.array(request["weights"])
        self.answer(200, {"episodes": [walk.episode(weights, random) for _ in range(request["episodes"])]})

    def answer(self, code, document):
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass  # a line for each request would be most of the job's log


# 2. Programs on other nodes reach it, so it listens at every address of its own.
print(f"generator {rank} listens on port {options.port}", flush=True)
ThreadingHTTPServer(("", options.port), Handler).serve_forever()
