"""Holds a causal Hugging Face model for Treadle: generation and training, over gRPC."""
