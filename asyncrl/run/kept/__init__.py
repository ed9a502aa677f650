"""Episodes that a run keeps as files: trained ones and evaluated ones."""
