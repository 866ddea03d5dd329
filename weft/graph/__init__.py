"""The graph: nodes, the primitives with their rules, and the spec of a legal graph."""
