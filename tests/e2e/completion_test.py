"""Completion in a shell."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from answers import PROGRAM


def offered(shell: str, *words: str) -> list[str]:
    """What the shell offers for the last of the words."""
    script = subprocess.run([PROGRAM, "env", "completion", shell], capture_output=True, text=True, check=True).stdout
    line = " ".join(f"'{word}'" for word in ("patchbench", *words))
    ask = f"COMP_WORDS=({line})\nCOMP_CWORD={len(words)}\n_patchbench\necho ${{COMPREPLY[@]}}\n"
    if shell == "zsh":  # what ~/.zshrc has before, and how bashcompinit calls a function
        script, ask = "autoload -U compinit && compinit -u -D\n" + script, "emulate sh\n" + ask
    done = subprocess.run([shell, "-f" if shell == "zsh" else "--norc"], input=script + ask, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("rep",), ["reproduce"]),
        (("ledger", "exp"), ["export"]),
        (("ledger", "export", "--wh"), ["--whole"]),
        (("reproduce", "mamba3_mimo_g"), ["mamba3_mimo_gqa_bwd"]),
        (("reproduce", "mamba3_mimo_gqa_bwd", "--expl"), ["--explore", "--explain"]),
        (("reproduce", "no_such_word"), []),
    ],
)
def test_bash_offers_commands_options_and_packs(words: tuple[str, ...], wanted: list[str]) -> None:
    assert sorted(offered("bash", *words)) == sorted(wanted)


def test_zsh_takes_the_script() -> None:
    if not shutil.which("zsh"):
        pytest.skip("no zsh here")
    words = offered("zsh", "ledger", "exp")  # zsh itself leaves out what does not begin with the last word
    assert "export" in words and "reproduce" not in words


def test_another_shell_is_refused() -> None:
    done = subprocess.run([PROGRAM, "env", "completion", "fish"], capture_output=True, text=True)
    assert done.returncode == 2 and "bash" in done.stderr and "zsh" in done.stderr
