"""The loop: schedule → run → postprocess, step by step, until every request has its reason to end.

In the order of a step:

- `llm.py`: LLM, the Python API for whole answers and streams.
- `shared_engine.py`: several threads, one engine, one at a time; `request_stream.py`: what a stream of it gives.
- `async_llm.py`: AsyncLLM, the same for asyncio; any number of tasks wait.
- `engine_thread.py`: the one thread that steps an engine, its commands; `streams.py`: what it hands to event loops,
  and `mailbox.py`: how; `jobs.py`: work beside the requests, piece by piece between steps;
  `turns.py`: several engines in one process.
- `llm_engine.py`: LLMEngine; `step` is the loop's body and fits on one screen.
- `intake.py`: a request checked, its sequences made; `postprocessor.py`: a step's tokens handed to their answers.
- `engine_stats.py`: queues, blocks and counters.
- `beam_search.py`, `embedding.py`: what is no request and needs no scheduler.
- `loading.py`: a model's name to its decoder and tokenizer.
- `validation.py`: what is refused before any work starts.
- `prompts.py`: what a caller gives to ids that fit; `overflow.py`, `compress.py`: what is left out where they do not.
- `scheduler.py`: who computes how many tokens next; ints and lists only.
- `fairness.py`: turns for clients of equal priority; `step_pace.py`: how long a step will take.
- `saved_cache.py`: the prefix cache in a file.
- `tracing/`: what a step did, for requests that asked to be traced.
- `model_runner.py`: the step as arrays, the model, the sampler.
- `output_processor.py`: token ids to text and logprobs; when an answer ends.
- `stop.py`: stop strings across token boundaries.
- `interrupt.py`: Ctrl-C between steps, not inside one.
"""
