"""What a run leaves in its folder, as one HTML page that opens from disk without a network.

`write(run_folder)` reads the files of the folder (`files.Run`), each of which may be missing: `config.json`,
`environment.json`, `metrics.csv` (a row for each epoch), `steps.csv`, and what `describe` adds at the end of a run:
`layers.json` (rows of `nn.summary`), `network.svg`, `memory.json` (the memory of the compiled step), `kernels.json`
(`Profile.to_dict()`). `page` makes the text of them; pictures are inline SVG, there is no script.
"""

from __future__ import annotations

from weft.report.details import describe as describe
from weft.report.files import write as write
