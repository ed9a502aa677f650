"""The program in what a model wrote, which is run as it stands there, and nothing else of the text."""

import time

import pytest

from asyncrl.envs.sandbox.fenced_code import code_in

DOCUMENTED = 'def f():\n    """Add.\n\n    ```\n    f() == 1\n    ```\n    """\n    return 1\n'
TAGGED = DOCUMENTED.replace("```\n    f", "```python\n    f")
TABBED = TAGGED.replace("    ", "\t")


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("x = 1", "x = 1"),
        ("```py\na\n```\ntext\n```py\nb\nc\n```\nend", "b\nc\n"),
        ("```\na\n```\ntext\n```\nb\n```", "b\n"),
        # How models write the tag
        ("```python3\na\n```", "a\n"),
        ("```Python\na\n```", "a\n"),
        ("``` py3 \na\n```", "a\n"),
        ("```python {.line}\na\n```", "a\n"),
        ("```{.python .line}\na\n```", "a\n"),
        ("```python:main.py\na\n```", "a\n"),
        ("```python\r\na\r\n```\r\n", "a\r\n"),
        ("The code: ```python\na\n```", "a\n"),
        ("~~~\na\n~~~", "a\n"),
        ("~~~python\na\n~~~", "a\n"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n"),
        # Text between blocks is never run
        ("Use:\n```python3\nA=1\n```\nThen\n```python3\nB=2\n```", "B=2\n"),
        ("Use:\n```bash\npip\n```\nThen\n```\nB=2\n```\nend", "B=2\n"),
        # An output, or a command, is no program
        ("```python\nprint(1)\n```\nOutput:\n```\n1\n```", "print(1)\n"),
        ("```\nprint(1)\n```\nRun it:\n```bash\npython a.py\n```", "print(1)\n"),
        ("```python\nprint(1)\n```\n```pycon\n>>> 1\n```", "print(1)\n"),
        ("```c\nint a;\n```", "int a;\n"),
        ("```python\nprint(1)\n```\n```python\n```", "print(1)\n"),
        # Indented as what it stands in is
        ("- item\n  ```python\n  x=1\n  if x:\n      y=2\n  ```", "x=1\nif x:\n    y=2\n"),
        ("1. ```python\n   x=1\n\n   y=2\n   ```", "x=1\n\ny=2\n"),
        ("  ```python\nx=1\nif x:\n  y=2\n  ```", "x=1\nif x:\n  y=2\n"),
        # Ends that are forgotten, or at the end of a line
        ("```python\nprint(1)", "print(1)"),
        ("```python\nprint(1)```", "print(1)"),
        ("```python\nprint(1)``` is it.", "print(1)"),
        ("```python\nprint(1)```\nOutput:\n```\n1\n```", "print(1)"),
        ("```python\na\n```\nor\n```python\nb(", "a\n"),
        ("```python\na\n\n```python\nb\n```", "b\n"),
        ("```\na\n```\n```", "a\n"),
        # What was thought is no program
        ("<think>\n```python\nbad()\n```\n</think>\ndef f(): ...", "\ndef f(): ..."),
        ("```python\nbad()```</think>\n```\na\n```", "a\n"),
        ("<think>No.</think>```python\na\n```", "a\n"),
        ("<think>\n```python\na\n```\n</think>\n", "a\n"),
        ("```python\ns = t.split('</think>')[1]\n```", "s = t.split('</think>')[1]\n"),
        # In a docstring it is deeper than where the block begins
        (f"```python\n{DOCUMENTED}```", DOCUMENTED),
        (f"```python\n{TAGGED}```\n", TAGGED),
        (f"```python\n{TABBED}```", TABBED),
        ("- ```python\n  def f():\n      '''\n      ```\n      '''\n  ```", "def f():\n    '''\n    ```\n    '''\n"),
        ("The code: ```python\ndef f():\n    '''\n    ```\n    '''\n```", "def f():\n    '''\n    ```\n    '''\n"),
        ("```python\nx=1\n   ```\ntext\n", "x=1\n"),
        ("```python\nx=1\n    ```\ntext\n", "x=1\n    "),
        ("```python\ndef f():\n    return 1```\ntext", "def f():\n    return 1"),
        # What is no fence
        ("print('```')", "print('```')"),
        ("```python\nprint('```')\n```", "print('```')\n"),
        ("Write ``` around it:\n```\na\n```", "a\n"),
        ("``` is a fence:\n```\na\n```", "a\n"),
        ('"""\nTitle\n~~~~~\n"""\nx = 1', '"""\nTitle\n~~~~~\n"""\nx = 1'),
        ("```x = 1```", "```x = 1```"),
        ("```python\n```", "```python\n```"),
    ],
)
def test_code_is_the_last_block_of_python(answer: str, code: str):
    assert code_in(answer) == code


@pytest.mark.parametrize("part", ["`", "` ", "```\n", "```python\n", " ", "- ", "~", "```a\n", "```python ` "])
def test_no_text_takes_long(part: str):
    began = time.process_time()
    for behind in ("", "x```", "`x`", "\n```python"):
        code_in(part * (300_000 // len(part)) + behind)
    assert time.process_time() - began < 10.0
