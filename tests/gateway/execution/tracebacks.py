"""Cells that raise, and what plain IPython shows of them: run as a script by the kernel's own interpreter.

All cases' cells go into one shell, one after another; they print and raise what a user's code could.
"""

from __future__ import annotations

import contextlib
import io
import json

_SOURCE = """\
#### function of an earlier cell
def ratio(a, b):
    # the source of this cell is shown
    return a / b
# %%
x = 1
# %%
y = 0
ratio(x,
      y)
#### syntax error
x = (1,
print('x'
#### syntax error with text before
a = 1
b = = 2
c = 3
#### indentation
if True:
    a = 1
   b = 2
#### inside exec
code = 'a = 1\\nb = a / 0'
# %%
exec(code)
#### compiled from a string
exec(compile('def f():\\n    1 / 0\\nf()', 'named.py', 'exec'))
#### decorator
import functools
def twice(f):
    @functools.wraps(f)
    def inner(*args):
        return f(*args), f(*args)
    return inner
# %%
@twice
def broken(n):
    return [][n]
# %%
broken(3)
#### async
import asyncio
async def inner():
    await asyncio.sleep(0)
    raise LookupError('async')
# %%
await inner()
# %%
await asyncio.gather(inner())
#### generator
def count():
    yield 1
    raise ValueError('no more')
# %%
list(count())
# %%
[1 / n for n in (1, 0)]
#### chained
def parse(text):
    try:
        return int(text)
    except ValueError as error:
        raise KeyError(text) from error
# %%
parse('x')
# %%
try:
    1 / 0
except ZeroDivisionError:
    undefined_name
# %%
try:
    1 / 0
except ZeroDivisionError:
    raise TypeError('alone') from None
#### recursion
def down(n):
    return down(n + 1)
# %%
down(0)
#### group
def gather():
    raise ExceptionGroup('several', [ValueError('one'), TypeError('two')])
# %%
gather()
#### notes
error = ValueError('noted')
error.add_note('a note')
raise error
#### assertion
assert 1 == 2, 'not so'
#### exit
import sys
sys.exit(3)
#### interrupt
raise KeyboardInterrupt
#### library
import json
json.loads('{')
#### pandas
import pandas
# %%
frame = pandas.DataFrame({'a': [1]})
frame['b']
#### magic
%no_such_magic
# %%
%%no_such_cell_magic
body
# %%
%timeit -n1 -r1 1/0
#### class
class Own(Exception):
    pass
class C:
    @property
    def p(self):
        raise Own('p')
# %%
C().p
#### thread
import threading
def work():
    1 / 0
# %%
t = threading.Thread(target=work, name='worker'); t.start(); t.join()
#### traceback printed
import traceback
try:
    1 / 0
except ZeroDivisionError:
    traceback.print_exc()
#### deep
def a():
    b()
def b():
    c()
def c():
    raise OSError(2, 'gone')
# %%
a()
"""


def cases() -> dict[str, list[str]]:
    """The cells of each case."""
    parts = [part.partition("\n") for part in _SOURCE.split("#### ")[1:]]
    return {name: [cell.rstrip("\n") for cell in text.split("# %%\n")] for name, _, text in parts}


def shown() -> list[tuple[str, str]]:
    """Per cell of all cases what plain IPython shows: the lines of its traceback, and what went to stderr."""
    from IPython.core.interactiveshell import InteractiveShell  # the kernel's environment has it
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    told: list[str] = []
    shell._showtraceback = lambda _kind, _error, lines: told.extend(lines)
    answers = []
    for code in [code for cells in cases().values() for code in cells]:
        told.clear()
        printed = io.StringIO()
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
            shell.run_cell(code, store_history=True)
        answers.append(("\n".join(told), printed.getvalue()))
    return answers


if __name__ == "__main__":
    print(json.dumps(shown()))
