"""The shipped placers, one file each; see `simstrag.cluster.placer` for the contract."""
