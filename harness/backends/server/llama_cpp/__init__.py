"""llama.cpp on CPU cores: an environment of its own for its server and a public model, and what is made of that."""
