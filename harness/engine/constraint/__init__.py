"""Grammar, end of reasoning, and what may be committed across it, for one request on the host.

Knows token ids, parsers and grammars; knows no engine, model or clock.
"""
