"""The nodes of a tree of drafts as paths of tokens."""


def paths_of(token_ids: list[int], parents: list[int], num_draft_tokens: int) -> list[tuple[int, ...]]:
    """Token paths of a tree's nodes, in their order."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(token_ids[:num_draft_tokens], parents, strict=False):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found
