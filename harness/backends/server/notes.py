"""What readers of the records of a server must know, in words; found by the backend."""

RETRIED = (
    "some requests were sent again after an answer 429 or 503, without a connection, or where it closed before "
    "anything came back; their TTFT holds the wait"
)
OTHER_PROMPTS = "the server read other prompt tokens than the workload's tokenizer gives, in some or all requests"
CACHED_PROMPTS = "the server took prompt tokens from its prefix cache: their prefill was free"
DISAGREE = "the server's answers and its counters tell of different numbers of draft tokens; the answers are recorded"
OTHER_CLIENTS = "the server gave more tokens than it was asked for here: others used it meanwhile"
SERVER_SAMPLES = "the server was not told top_k, min_p and penalties: its defaults, or those of the model, apply"
CHUNKS_ARE_STEPS = (
    "the server tells of its drafts by counters alone; every chunk of an answer was taken for a step, because all of "
    "them are as many, and hold as many tokens at each position, as the counters say"
)
PLACES_ARE_GUESSED = (
    "the server does not tell which steps of an answer had no drafts, and a step whose draft was rejected gives one "
    "token as well: drafts are in their order, but acceptance by context length, and what counts as evidence at the "
    "end of an answer, are uncertain"
)
SHORT_DRAFTS = (
    "some steps drafted fewer than K tokens although more were left to write (client:num_missing_draft_tokens of each "
    "block): the engine cuts drafts by itself, or has steps without"
)
ENDED_EARLY = (
    "the server ended answers for their length before decoding.max_new_tokens: it has a lower limit, such as "
    "max_new_tokens in the model's generation_config.json"
)
STOP_IS_NOT_TOLD = (
    "the server does not tell which answers ended at a stop string (decoding.stop), nor their tokens: those count as "
    "ended by an end of sequence"
)
BEYOND_STOP = (
    "drafts that the server made behind a stop string, before it had read the text, are among its counts of drafts"
)
WAITED = (
    "requests waited at the server for a place (server.num_waiting): that wait is in their TTFT and E2E, which do not "
    "compare with those of an engine of this process"
)
