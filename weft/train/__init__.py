"""Training: what fits a model into memory and gradients of many small batches."""
