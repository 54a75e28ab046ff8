"""The command line: one file per verb, imported only when the verb is used.

main.py          arguments → verb; errors → one sentence and an exit code
exit_codes.py    how a command ends
verbs.py         the table of verbs and their one-line help
flags.py         flags made from SamplingParams and EngineArgs, so that no default stands here
console.py       standard output and error: JSON, colours, the line of figures after an answer
loading.py       model and parameters of generate, chat and bench
streaming.py     an answer printed while it is made
progress_bar.py  the bar of `pull`
generate.py chat.py serve.py tokenize.py inspect.py pull.py list.py bench.py     the verbs
"""
