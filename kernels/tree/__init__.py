"""A round of trees: the walk, the test of a child, what rejected siblings leave, shapes that draft rows choose."""
