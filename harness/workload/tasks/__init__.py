"""Tasks with known answers: one module each, which tells whether an answer is right. They know text, no tokens.

| task      | right is                                                       | runs code |
|-----------|----------------------------------------------------------------|-----------|
| gsm8k     | the number that the answer ends with is the known one          | no        |
| humaneval | the function passes the tests of the data set, in a sandbox    | yes       |
"""

RUNS_CODE = ("humaneval",)
"""Those that run what a model wrote."""
