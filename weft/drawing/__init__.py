"""drawing: pictures as SVG text, without a dependency: line charts, bars and networks. Light and dark by the viewer's
preference. Knows nothing of where its numbers come from."""
