# Prints the first module that a script imports before it does anything else, and that this Python does not have.
# It is given on standard input; behind it comes `check(SCRIPT, OWN)`: the script's text, and the modules next to it.
import ast
import importlib.util


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


def check(script, own):
    """Prints what is missing. A module of the project may change what can be imported, too."""
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
