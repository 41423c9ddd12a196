# Prints "missing" if the container has no program with the name in the argument.
command -v "$1" >/dev/null || echo missing
