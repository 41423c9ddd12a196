"""Copies what the containers of the encrypted network need out of an image into a directory: a few programs, and the
libraries and modules that they load. collect.py DIRECTORY"""
import glob
import importlib
import os
import re
import shutil
import subprocess
import sys

PROGRAMS = ("ip", "nft", "sed", "sh", "sleep", "wg", "wireguard-go")
# what the agent imports, with the encoding of host names
MODULES = (
    "encodings.idna", "errno", "hashlib", "ipaddress", "json", "os", "select", "selectors", "signal", "socket",
    "subprocess", "sys", "threading", "time",
)
# how host names are found, and where libraries are
FILES = ("/etc/nsswitch.conf", "/etc/ld.so.cache")
# libraries that the C library loads by itself: for host names, and to end threads
LOADED = ("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2", "libgcc_s.so.1")
PLACES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Copy:
    def __init__(self, root):
        self.root = root
        self.copied = set()

    def path(self, path):
        return self.root + os.path.abspath(path)

    def file(self, path):
        """Copies what a path leads to, under that path."""
        if path in self.copied or not os.path.isfile(path):
            return
        self.copied.add(path)
        os.makedirs(os.path.dirname(self.path(path)), exist_ok=True)
        shutil.copy(path, self.path(path))

    def program(self, path):
        """Copies a program or a library, and the libraries that it loads."""
        if path in self.copied:
            return
        self.file(path)
        # a program without libraries makes ldd fail
        listed = subprocess.run(["ldd", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()
        for library in re.findall(r"(?:=> |^\s*)(/\S+) \(0x", listed, re.M):
            self.file(library)

    def python(self):
        """Copies this interpreter, and makes sure that it is found."""
        # not that of a virtual environment
        program = os.path.realpath(sys.executable)
        self.program(program)
        for name in MODULES:
            importlib.import_module(name)
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if not path or module.__name__ == "__main__":
                continue
            # some modules of a package have other names when they have been imported
            others = glob.glob(os.path.join(os.path.dirname(path), "*.py")) if hasattr(module, "__path__") else []
            for file in [path] + others:
                self.program(file) if ".so" in os.path.basename(file) else self.file(file)
        os.makedirs(os.path.join(self.path(os.path.dirname(os.__file__)), "lib-dynload"), exist_ok=True)
        os.makedirs(self.path("/usr/local/bin"), exist_ok=True)
        os.symlink(program, self.path("/usr/local/bin/python3"))


def main():
    copy = Copy(sys.argv[1])
    copy.python()
    for name in PROGRAMS:
        path = shutil.which(name, path=os.environ.get("PATH", "") + ":" + PLACES)
        if path is None:
            sys.exit("collect.py: the image has no " + name)
        copy.program(path)
        if os.path.dirname(path) not in PLACES.split(":"):
            os.symlink(path, copy.path("/usr/local/bin/" + name))
    for path in FILES:
        copy.file(path)
    known = {os.path.dirname(path) for path in copy.copied if ".so" in path}
    for name in LOADED:
        for directory in known:
            for path in glob.glob(os.path.join(directory, name)):
                copy.program(path)
    for directory in ("/tmp", "/run", "/var/run"):
        os.makedirs(copy.path(directory), exist_ok=True)


if __name__ == "__main__":
    main()
