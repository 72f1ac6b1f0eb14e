"""`SCRIPTS`: the function that each shell calls when the user presses Tab. It passes the words of
the command line to ``ergo completion --words``, and offers the answers.
"""

from typing import Final

__all__ = ["SCRIPTS"]

# The bash of macOS is version 3.2, without `mapfile` and `compopt`. `<(...)` needs /dev/fd.
_BASH: Final = r"""# Completion of ergo for bash. Put this line into ~/.bashrc:
#     eval "$(ergo completion bash)"
_ergo() {
    local current="${COMP_WORDS[COMP_CWORD]}" found line
    found="$("${COMP_WORDS[0]}" completion --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)"
    if [[ $found == :files ]]; then
        compopt -o filenames 2>/dev/null
        found="$(compgen -f -- "$current")"
    fi
    COMPREPLY=()
    while IFS= read -r line; do
        [[ -z $line ]] || COMPREPLY+=("${line%%$'\t'*}")
    done <<<"$found"
}
complete -F _ergo ergo
"""

_ZSH: Final = r"""# Completion of ergo for zsh. Put this line into ~/.zshrc, after compinit:
#     eval "$(ergo completion zsh)"
_ergo() {
    local line
    local -a found
    for line in "${(@f)$("${words[1]}" completion --words "${(@Q)words[2,CURRENT]}" 2>/dev/null)}"
    do
        if [[ $line == :files ]]; then
            _files
            return
        elif [[ -n $line ]]; then
            found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
        fi
    done
    _describe ergo found
}
compdef _ergo ergo
"""

_FISH: Final = r"""# Completion of ergo for fish. Run this line once:
#     ergo completion fish > ~/.config/fish/completions/ergo.fish
function __ergo_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l found ($words[1] completion --words $words[2..-1] "$current" 2>/dev/null)
    if test "$found[1]" = ":files"
        __fish_complete_path "$current"
    else
        printf '%s\n' $found
    end
end
complete -c ergo -f -a '(__ergo_complete)'
"""

SCRIPTS: Final = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
"""The script for each shell."""
