"""`python -m simstrag` is the command `simstrag`."""

from simstrag.cli import main

main()
