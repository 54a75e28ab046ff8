"""Templates are untrusted: they stay in the sandbox, and end."""

from __future__ import annotations

import resource
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pellucid.errors import ChatTemplateError
from pellucid.tokenizer.chat_template import ChatTemplate

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]


def render(source: str) -> str:
    return ChatTemplate(source).render(MESSAGES).text


def grow(start: str, step: str, end: str = "{{ ns.x }}") -> str:
    """A template that takes `step` sixty times."""
    return (
        f"{{% set ns = namespace(x={start}) %}}{{% for i in range(60) %}}{{% set ns.x = {step} %}}{{% endfor %}}{end}"
    )


ESCAPES = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "subscript": "{{ ''['__class__']['__mro__'] }}",
    "attr filter": "{{ (''|attr('__class__')).__mro__ }}",
    "map attribute": "{{ (messages|map(attribute='__class__')|first).__name__ }}",
    "format": "{{ '{0.__class__.__init__.__globals__}'.format(cycler) }}",
    "format kept": "{% set f = '{0.__class__.__mro__}'.format %}{{ f(1) }}",
    "format_map": "{{ '{x.__class__.__mro__}'.format_map({'x': 1}) }}",
    "format by filter": "{{ ['{0.__class__}']|map('format', 1)|list }}",
    "cycler globals": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "joiner globals": "{{ joiner.__init__.__globals__.__builtins__.open('/etc/passwd').read() }}",
    "namespace globals": "{{ namespace.__init__.__globals__ }}",
    "helper globals": "{{ raise_exception.__globals__['__builtins__'] }}",
    "helper wrapped": "{{ strftime_now.__code__.co_consts }}",
    "context": "{{ self._TemplateReference__context.environment }}",
    "macro": "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "environment": "{% macro m() %}{% endmacro %}{{ m._environment.globals }}",
    "namespace slot": "{% set ns = namespace() %}{% set ns._Namespace__attrs = {} %}",
    "namespace keyword": "{{ namespace(__class__=1) }}",
    "generator": "{{ (messages|map('upper')).gi_frame.f_globals }}",
    "lipsum": "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "append": "{{ messages.append(1) }}",
    "update": "{{ messages[0].update({'role': 'x'}) }}",
    "mro": "{{ dict.mro() }}",
    "import": "{% import 'os' as os %}{{ os.getcwd() }}",
    "warnings": (
        "{% for x in ().__class__.__base__.__subclasses__() %}{% if 'warning' in x.__name__ %}"
        "{{ x()._module.__builtins__['__import__']('os').popen('id').read() }}{% endif %}{% endfor %}"
    ),
}


@pytest.mark.parametrize("source", ESCAPES.values(), ids=ESCAPES.keys())
def test_no_way_out_of_the_sandbox(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        render(source)


@pytest.mark.parametrize("name", ["__class__", "__init__", "__globals__", "_x"])
def test_underscore_names_read_as_nothing(name: str) -> None:
    for value in ("messages", "''", "cycler", "range", "namespace()", "strftime_now"):
        assert render(f"{{{{ {value}.{name} }}}}{{{{ {value}|attr('{name}') }}}}") == ""


MEGABYTE = "{% set b = 'a' * 1000000 %}"
BOMBS = {
    "repeat": "{{ 'a' * 10**9 }}",
    "repeat list": "{{ [1] * 10**9 }}",
    "power": "{{ 2**100000000 }}",
    "squares": grow("3", "ns.x * ns.x"),
    "doubling +": grow("'aaaaaaaa'", "ns.x + ns.x"),
    "doubling ~": grow("'aaaaaaaa'", "ns.x ~ ns.x"),
    "doubling list": grow("[1]", "ns.x + ns.x"),
    "nested lists": grow("[1]", "[ns.x, ns.x]"),
    "nested dicts": grow("[1]", "dict(a=ns.x, b=ns.x)", "{{ ns.x | tojson }}"),
    "nested tuples as keys": grow("(1, 2)", "(ns.x, ns.x)", "{{ {ns.x: 1} }}"),
    "nested batches": grow("[1]", "(ns.x * 2) | batch(2) | list"),
    "nested in comparison": grow("[1]", "[ns.x, ns.x]", "{{ ns.x == [1] }}"),
    "nested arguments": (
        "{% set ns = namespace(x=[1]) %}{% macro m() %}{% set ns.x = varargs %}{% endmacro %}"
        "{% for i in range(60) %}{{ m(ns.x, ns.x) }}{% endfor %}{{ ns.x }}"
    ),
    "loops": "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "loops over one range": ("{% set r = range(100000) %}" + "{% for a in r %}" * 3 + "{% endfor %}" * 3),
    "loops with text": "{% for a in range(100000) %}" + "x" * 10_000 + "{% endfor %}",
    "cycler": "{% set c = cycler(1) %}" + "{% for a in range(99999) %}" * 2 + "{{ c.next() }}" + "{% endfor %}" * 2,
    "macros": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "macro forever": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "block forever": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "loop forever": "{% for x in [messages] recursive %}{{ loop([x]) }}{{ loop([x]) }}{% endfor %}",
    "range list": "{% for i in range(100000) %}{% set x = range(100000) | list %}{% endfor %}",
    "captured text": MEGABYTE + "{% set c %}{% for i in range(1000) %}{{ b }}{% endfor %}{% endset %}",
    "slices": MEGABYTE + "{% set l = [" + ",".join(["b[1:]"] * 1000) + "] %}",
    "searches": MEGABYTE + "{% for i in range(100000) %}{% set x = 'b' in b %}{% endfor %}",
    "center": "{{ 'a' | center(10**9) }}",
    "indent": "{{ ('\n' * 100000) | indent(100000) }}",
    "batch": "{{ [1] | batch(10**9, 0) | list }}",
    "slice": "{{ [1] | slice(10**9) | list }}",
    "sum": "{{ ([[1] * 1000] * 1000) | sum(start=[]) }}",
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "zfill": "{{ 'a'.zfill(10**9) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**9) }}",
    "replace": MEGABYTE + "{{ b.replace('a', b) }}",
    "replace filter": MEGABYTE + "{{ b | replace('a', b) }}",
    "join": MEGABYTE + "{{ b.join(b) }}",
    "join filter": MEGABYTE + "{{ b | join(b) }}",
    "join generator": MEGABYTE + "{{ ''.join(range(100000) | map('replace', '', b)) }}",
    "split": "{% for i in range(1000) %}{% set x = ('a,' * 200000).split(',') %}{% endfor %}",
    "translate": "{{ 'aaaa'.translate({97: 'b' * 100000}) }}",
    "percent": "{{ '%1000000000d' % 3 }}",
    "percent star": "{{ '%*d' % (10**9, 3) }}",
    "percent filter": "{{ '%1000000000d' | format(3) }}",
    "format": "{{ '{:>1000000000}'.format('a') }}",
    "format nested": "{{ '{0:>{1[w]}}'.format('a', {'w': 10**9}) }}",
    "format many": MEGABYTE + "{{ ('{0}' * 1000).format(b) }}",
    "mapped format": "{{ ['%1000000000d'] | map('format', 3) | list }}",
    "to_bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "tojson indent": "{{ messages | tojson(indent=10**9) }}",
    "striptags": "{{ (('<!--' * 1000000) | safe).striptags() }}",
    "titles": "{{ ('a ' * 4000000) | title }}",
    "words": "{% for i in range(100) %}{{ ('a ' * 400000) | wordcount }}{% endfor %}",
    "sorts": "{% set l = range(99999) | list %}{% for i in range(100) %}{% set x = l | sort %}{% endfor %}",
    "groups": "{% for i in range(100) %}{{ range(20000) | groupby('real') | length }}{% endfor %}",
    "lazy chain": "{{ range(99999)" + "| map(attribute='real')" * 150 + " | list | length }}",
    "lazy selections": "{{ range(99999)" + "| select" * 150 + " | list | length }}",
    "long source": "x" * 200_000,
    "many nodes": "{{a}}" * 25_000,
    "deep parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep lists": "{{ " + "[" * 300 + "]" * 300 + " }}",
    "deep ifs": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "long chain": "{{ a" + ".b" * 3000 + " }}",
    "long sum": "{{ " + "+".join(["1"] * 9000) + " }}",
}


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS.keys())
def test_bombs_are_stopped_soon_and_small(source: str) -> None:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.thread_time()
    with pytest.raises(ChatTemplateError):
        render(source)
    assert time.thread_time() - start < 2.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 300 * 1024


def test_a_limit_says_what_was_used_up() -> None:
    with pytest.raises(ChatTemplateError, match=r"was stopped: it made a text of 1000000000 characters; at most \d+"):
        render("{{ 'a' * 10**9 }}")
    with pytest.raises(ChatTemplateError, match=r"was stopped: it (ran for more than 1 s|took more than)"):
        render(BOMBS["loops"])


def test_what_a_template_says_is_one_printable_line() -> None:
    for call, words in (
        ("raise_exception('a\\n\\x1b[2Jb' * 1000)", "a \ufffd\\[2Jba"),
        ("'%d' % ('x\\n' * 1000)", "failed: "),
    ):
        with pytest.raises(ChatTemplateError, match=words) as caught:
            render("{{ " + call + " }}")
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 400


def test_a_stopped_template_leaves_nothing_behind() -> None:
    with pytest.raises(ChatTemplateError):
        render(BOMBS["loops"])
    assert render("{{ messages[0].content }}") == "hi"


def test_every_rendering_has_its_own_budget() -> None:
    # Each takes 300,000 of the million steps: sharing one budget, some would be stopped.
    source = "{% for i in range(300) %}{% for j in range(1000) %}{% endfor %}{% endfor %}done"
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(render, [source] * 8)) == ["done"] * 8


def test_long_conversations_are_no_bomb() -> None:
    source = (
        "{% set ns = namespace(text='') %}{% for m in messages %}{% for n in messages[:5] %}{{ n.role }}{% endfor %}"
        "{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>\n' }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "word " * 300}] * 2000
    assert len(ChatTemplate(source).render(messages).text) > 3_000_000
