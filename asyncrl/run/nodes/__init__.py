"""The nodes of a cluster: which process goes where, which files are there, and which node is gone."""
