"""A registry with one image of one layer, the same on every machine, on a port of this machine's own loopback, where
Docker asks for no TLS. Every reference to it is answered with the same image, to those who log in. Arguments: the port,
the layer's size in bytes, and the login, USER:PASSWORD."""
import base64
import gzip
import hashlib
import http.server
import io
import json
import random
import sys
import tarfile

port, size = int(sys.argv[1]), int(sys.argv[2])
LOGIN = "Basic " + base64.b64encode(sys.argv[3].encode()).decode()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


raw = io.BytesIO()
with tarfile.open(fileobj=raw, mode="w") as tar:
    entry = tarfile.TarInfo("noise")
    entry.size = size
    tar.addfile(entry, io.BytesIO(random.Random(1).randbytes(size)))
layer = gzip.compress(raw.getvalue(), 1, mtime=0)
config = json.dumps({
    "architecture": "amd64", "os": "linux", "config": {"Cmd": ["/noise"]},
    "rootfs": {"type": "layers", "diff_ids": [digest(raw.getvalue())]},
}).encode()
KIND = "application/vnd.docker.distribution.manifest.v2+json"
manifest = json.dumps({
    "schemaVersion": 2, "mediaType": KIND,
    "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(config),
               "digest": digest(config)},
    "layers": [{
        "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", "size": len(layer), "digest": digest(layer),
    }],
}).encode()
BLOBS = {digest(data): data for data in (layer, config)}


class Registry(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers["Authorization"] != LOGIN:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="test"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        last = self.path.rsplit("/", 1)[-1]
        if self.path == "/v2/":
            data, kind = b"{}", "application/json"
        elif "/manifests/" in self.path:
            data, kind = manifest, KIND
        elif last in BLOBS:
            data, kind = BLOBS[last], "application/octet-stream"
        else:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Docker-Content-Digest", digest(data))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", port), Registry).serve_forever()
