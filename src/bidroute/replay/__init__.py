"""`bidroute replay`: sends a trace to an OpenAI endpoint, and reports what came of it as `compare` does."""
