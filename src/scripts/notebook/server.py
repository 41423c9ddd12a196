"""JupyterLab. Its kernel `python3` is this Python, which is that of the ranks, whatever the image has registered, and a
kernel that is killed is named. It takes another token at SIGUSR2: that of the file `token` in its private directory.
Every earlier one, and the cookies that it gave, are refused from then on. `notebook.py` starts this; arguments are
those of JupyterLab."""
import json
import os
import runpy
import shutil
import signal
import sys

# `-m jupyterlab`, but modules are not looked for in the project, where a file may be named like one of Python's, nor
# next to this file
sys.path[:] = [path for path in sys.path if path and path != os.path.dirname(os.path.abspath(__file__))]


def renew(*_):
    from jupyter_server.serverapp import ServerApp
    with open(os.path.join(os.environ["JUPYTER_RUNTIME_DIR"], "token")) as file:
        token = file.read()
    app = ServerApp.instance()
    # versions before 2 have no such object
    if hasattr(app, "identity_provider"):
        app.identity_provider.token = token
    app.web_app.settings.update(token=token, cookie_secret=os.urandom(32))


def say(text):
    print(text, file=sys.stderr, flush=True)


def register_kernel(private):
    """Registers this Python as the kernel `python3`, and says so if the image or the user has registered another one,
    which Jupyter would run (jupyter_client/kernelspec.py, `ensure_native_kernel`)."""
    try:
        from ipykernel.kernelspec import get_kernel_dict
        from jupyter_client.kernelspec import KernelSpecManager
        registered = KernelSpecManager().get_kernel_spec("python3").argv[0]
        kernel = get_kernel_dict()
    except Exception:
        return  # JupyterLab says what is missing
    kernel["argv"][0] = sys.executable
    directory = os.path.join(private, "kernels", "python3")
    os.makedirs(directory)
    with open(os.path.join(directory, "kernel.json"), "w") as file:
        json.dump(kernel, file)
    os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, [private, os.environ.get("JUPYTER_PATH")]))
    if (shutil.which(registered) or registered) not in (sys.executable, shutil.which("python3")):
        say("the kernel python3 is registered for %s here; cells run %s, as ranks do" % (registered, sys.executable))


def name_signals():
    """Lets the end of a kernel by a signal be named that Jupyter has not sent itself. It starts such a kernel again."""
    try:
        from jupyter_client.provisioning import LocalProvisioner
    except ImportError:
        return  # jupyter_client before 7
    poll = LocalProvisioner.poll

    def sends(name):
        method = getattr(LocalProvisioner, name)

        async def send(self, *arguments, **options):
            # an interrupt ends no kernel
            if name != "send_signal" or arguments[:1] != (signal.SIGINT,):
                self.hvdctl_asked = self.process
            return await method(self, *arguments, **options)

        setattr(LocalProvisioner, name, send)

    async def watch(self):
        process, code = self.process, await poll(self)
        is_new = process is not None and process is not getattr(self, "hvdctl_ended", None)
        if code is not None and code < 0 and code != -signal.SIGINT and is_new:
            self.hvdctl_ended = process
            if getattr(self, "hvdctl_asked", None) is not process:
                memory = "; the machine or the container may have run out of memory" if code == -signal.SIGKILL else ""
                say("a kernel was ended by %s%s" % (signal.Signals(-code).name, memory))
        return code

    LocalProvisioner.poll = watch
    for name in ("send_signal", "kill", "terminate"):
        sends(name)


signal.signal(signal.SIGUSR2, renew)
register_kernel(os.environ["JUPYTER_RUNTIME_DIR"])
name_signals()
sys.argv[0] = "jupyterlab"
runpy.run_module("jupyterlab", run_name="__main__", alter_sys=True)
