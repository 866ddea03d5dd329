"""How each C-like language spells types, launches, shared memory and built-in functions.

A `Dialect` is a table that `render.clike` prints kernels with; a new language is a new table. Modules named `cuda_*`
hold CUDA's functions: they and CUDA's table are the only places outside the CUDA backend with NVIDIA's numbers, as the
modules named `hip*` are with AMD's.

One set of names is used everywhere else; this table says what each language calls them:

| here          | CUDA                     | HIP           | OpenCL       | WGSL                |
|---------------|--------------------------|---------------|--------------|---------------------|
| lane          | thread                   | thread        | work-item    | invocation          |
| subgroup      | warp                     | wavefront     | sub-group    | subgroup            |
| workgroup     | block                    | block         | work-group   | workgroup           |
| shared memory | shared memory            | LDS           | local memory | workgroup memory    |
| private array | registers, local memory  | registers     | private      | function, private   |
| processor     | streaming multiprocessor | compute unit  | compute unit | (not visible)       |
"""
