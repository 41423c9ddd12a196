# Prints "missing" if the container has no program of the name that its argument is.
command -v "$1" >/dev/null || echo missing
