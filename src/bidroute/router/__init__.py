"""The live router: `bidroute serve` in front of real vLLM and SGLang workers."""
