"""Pictures as SVG text, without a dependency: line charts, bars and networks, light or dark by the viewer's preference.

Nothing here knows where its numbers come from, or writes a file."""
