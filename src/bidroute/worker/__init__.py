"""`bidroute worker`: an OpenAI-compatible stand-in for a vLLM server, its engine simulated in real time."""
