"""JupyterLab, which takes another token at SIGUSR2: that of the file `token` in its private directory. Every earlier
one, and the cookies that it gave, are refused from then on. `notebook.py` starts this; arguments are those of
JupyterLab."""
import os
import runpy
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


signal.signal(signal.SIGUSR2, renew)
sys.argv[0] = "jupyterlab"
runpy.run_module("jupyterlab", run_name="__main__", alter_sys=True)
