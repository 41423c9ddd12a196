# Prints the first module that a script imports before it does anything else, and that this Python does not have.
# It is given on standard input; behind it comes `check(SCRIPT, DIRECTORY, OWN)`: the script's text and directory, and
# the modules next to it. Earlier jobs may have left modules in the directory.
import ast
import importlib.util
import sys


def first_imports(text):
    """Yields the modules that are imported before anything runs that may change what can be imported, with their
    lines."""
    tree = ast.parse(text)
    for statement in tree.body[ast.get_docstring(tree) is not None :]:
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and not statement.level:
            names = [statement.module]
        else:
            return
        for name in names:
            yield name.split(".")[0], statement.lineno


def is_there(name):
    """Returns whether a module can be found; it is not imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return True


def check(script, directory, own):
    """Prints what is missing. A module of the project may change what can be imported, too."""
    sys.path.insert(0, directory)
    try:
        for name, line in first_imports(script):
            if name in own:
                return
            if not is_there(name):
                print("missing", name, line)
                return
    except (SyntaxError, ValueError):
        # the program itself will say so
        pass
