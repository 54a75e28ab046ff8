"""A load on a server, and what came of it; `pellucid bench serve` and the benchmarks' HTTP scenarios are made of it.

workload.py  what is asked: conversations from a seeded generator or a file
client.py    one request over HTTP, its moments and its failure, against any OpenAI-compatible server
driver.py    when each is sent: by rate or by concurrency
report.py    results → percentiles, rates, goodput
"""
