"""The script by which zsh completes ``quire``.

Typer's own defines the function that completes and does not call it. zsh loads the installed file
with the first TAB and runs it as that TAB's function, so that this TAB did nothing.
"""

from __future__ import annotations

from typer import _completion_shared

_ZSH = """
#compdef %(prog_name)s

%(complete_func)s() {
  eval $(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" %(autocomplete_var)s=complete_zsh %(prog_name)s)
}

compdef %(complete_func)s %(prog_name)s

# called as a function it completes; it is a mere text where the script is sourced or evaluated
if [[ "$funcstack[1]" == "_%(prog_name)s" ]]; then
  %(complete_func)s "$@"
fi
"""  # noqa: E501


def mend_zsh() -> None:
    """Let ``--install-completion`` and ``--show-completion`` give zsh a script whose first TAB
    completes."""
    _completion_shared._completion_scripts["zsh"] = _ZSH
