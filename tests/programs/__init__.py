"""Programs written for torch in plain style. tests/backend/test_programs.py runs each twice: as it is, and with every
`torch` in its import lines replaced by `weft`. Nothing else is changed.

Each has `make_model()` and `train(model, steps)`, which returns the losses.
"""
