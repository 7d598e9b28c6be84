"""Does what takes long at its first time, in the process that servers of tests are forked from."""

from simstrag.ddp.server import server_main

server_main.warm_up()
