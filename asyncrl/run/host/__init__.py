"""What a run needs of the host: processes, signals, Ray, GPUs, output."""
