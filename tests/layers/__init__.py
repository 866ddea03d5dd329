"""The layer harness: one record per layer, put through the acceptance list of every layer.

`record` says what a record is, `oracles` makes oracles of torch's modules, `checks` are what every record passes, and
`records` has one file per family. tests/backend/test_layers.py runs them; a layer of the catalogue without a record
fails there.
"""
