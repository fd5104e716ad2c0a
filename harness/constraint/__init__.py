"""Where reasoning ends, the grammar of the answer after it, and the policies that join them to speculative decoding.

It knows token ids, parsers and grammars; it does not know the engine, models or time.
"""
