"""What `bench_gpu.py` measures, a file for each kind of measurement."""
