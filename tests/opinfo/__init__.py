"""Weft's operators on the samples that torch tests its own with (OpInfo): `python -m tests.opinfo --help`.

`database` loads torch's table, `calls` finds the Weft function that a sample calls, `convert` carries arguments over,
`compare` says whether results agree, `check` runs one operator, `misses` lists what is known to differ, `report` and
`page` print it all. No name of a supported operator is written down: what Weft has is found by its name.
"""
