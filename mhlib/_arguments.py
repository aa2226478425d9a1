"""Further inputs of a layer or a pool: those it does not know, and those it lacks, are named in an error."""

from typing import Any

#: What other libraries call it -> what it is called here.
_ELSEWHERE = {
    "key_padding_mask": "key_mask, where True means a real token",
    "padding_mask": "key_mask, where True means a real token",
    "lengths": "key_mask, where True means a real token",
    "attn_mask": "mask, where True means may attend",
    "attention_mask": "mask, where True means may attend",
    "is_causal": "causal",
}


def check_further(name: str, given: dict[str, Any], inputs: tuple[str, ...]) -> None:
    """Raise a TypeError unless ``given`` are exactly the further ``inputs`` of the layer or pool called ``name``."""
    if unknown := sorted(set(given) - set(inputs)):
        takes = f"; beyond the usual arguments it takes {', '.join(inputs)}" if inputs else ""
        known = "".join(f"; {word} is here {_ELSEWHERE[word]}" for word in unknown if word in _ELSEWHERE)
        raise TypeError(f"{name} does not know the argument {', '.join(unknown)}{takes}{known}")
    if missing := [needed for needed in inputs if needed not in given]:
        raise TypeError(f"{name} needs the argument {', '.join(missing)}")
