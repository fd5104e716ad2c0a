"""Requests of two kinds in a stand-in for vLLM while it is recorded."""

CUT, HOT = {"temperature": 0.7, "top_k": 6}, {"temperature": 1.0}


def recorded(folder, engine, method="block", num_steps=14, num_requests=6, **params):
    """Run requests of two kinds while it is recorded."""
    engine.worker.start_recording(str(folder), method, certify=False)
    for index in range(num_requests):
        sampling = params or (CUT if index % 2 else HOT)
        engine.start(f"r{index}", [index % 3, 1 + index % 2, index % 4], max_tokens=24, eos_token_id=9, **sampling)
    for _ in range(num_steps):
        engine.step()
    return engine.worker.stop_recording()
