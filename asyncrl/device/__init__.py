"""What the learner and the weight transports know of devices: host memory that a GPU reads and writes by itself."""
