"""What the learner needs on a CPU only: machine code for attention and elementwise work, products, threads, and a Megatron
without CUDA."""
