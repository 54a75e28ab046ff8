"""/v1/responses: OpenAI's newer form of a conversation, over the same chat as /v1/chat/completions.

fields.py    what a body may have
items.py     its input: items → messages
request.py   a body → what is asked for
output.py    what was generated → output items, and the events that tell of them
answers.py   the response object, whole or as a stream of events
"""
