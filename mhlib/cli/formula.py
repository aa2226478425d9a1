"""LaTeX formulas of docstrings as one line of Unicode text."""

import re

_SYMBOLS = {
    "sum": "Σ", "prod": "Π", "cdot": "·", "odot": "⊙", "times": "×", "in": "∈", "infty": "∞", "approx": "≈", "le": "≤", "leq": "≤",
    "ge": "≥", "geq": "≥", "ne": "≠", "pm": "±", "mid": "|", "top": "ᵀ", "lfloor": "⌊", "rfloor": "⌋", "lceil": "⌈", "rceil": "⌉",
    "partial": "∂", "ell": "ℓ", "ldots": "…", "cdots": "…", "dots": "…", "to": "→", "nabla": "∇", "lVert": "‖", "rVert": "‖", "|": "‖",
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "zeta": "ζ", "eta": "η", "theta": "θ", "lambda": "λ",
    "mu": "μ", "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ", "phi": "φ", "varphi": "φ", "psi": "ψ", "omega": "ω",
    "Sigma": "Σ", "Delta": "Δ", "Omega": "Ω", "Phi": "Φ", "Lambda": "Λ",
    "left": "", "right": "", "big": "", "Big": "", "textstyle": "", "!": "", ",": " ", ";": " ", ":": " ", " ": " ", "quad": "   ", "qquad": "    ", "\\": "\n",
    "{": "{", "}": "}", "_": "_", "%": "%",
}  # fmt: skip
_TOKEN = re.compile(r"\\([A-Za-z]+|.)|([{}^_&])|([^\\{}^_&]+)", re.DOTALL)
_PLAIN = ("mathrm", "mathbf", "mathcal", "mathbb", "text", "operatorname", "boldsymbol")


def formula(tex: str) -> str:
    """``\\frac{a}{b + c}`` becomes ``a / (b + c)``; what is not known stays as its name."""
    tokens = [m.groups() for m in _TOKEN.finditer(tex)]
    text, _ = _read(tokens, 0, closing=False)
    return "\n".join(re.sub(r" +", " ", line).strip() if "   " not in line else line.strip() for line in text.split("\n"))


def _read(tokens: list, i: int, closing: bool) -> tuple[str, int]:
    """Text up to the end, or to the brace that closes this group."""
    out = ""
    while i < len(tokens):
        if closing and tokens[i][1] == "}":
            return out, i + 1
        piece, i = _one(tokens, i)
        out += piece
    return out, i


def _one(tokens: list, i: int) -> tuple[str, int]:
    macro, mark, text = tokens[i]
    if text is not None:
        return text, i + 1
    if mark == "{":
        return _read(tokens, i + 1, closing=True)
    if mark in ("^", "_"):
        inner, i = _argument(tokens, i + 1)
        if inner == "ᵀ":
            return inner, i
        short = re.fullmatch(r"-?[\w·*,|]+", inner) or inner.startswith("(")
        return mark + (inner if short else f"({inner})"), i
    if mark:
        return "", i + 1
    if macro == "frac":
        top, i = _argument(tokens, i + 1)
        bottom, i = _argument(tokens, i)
        return f"{_bracketed(top)} / {_bracketed(bottom)}", i
    if macro == "sqrt":
        inner, i = _argument(tokens, i + 1)
        return "√" + (inner if re.fullmatch(r"\w+", inner) else f"({inner})"), i
    if macro in _PLAIN:
        return _argument(tokens, i + 1)
    if macro in ("begin", "end"):
        return "", _argument(tokens, i + 1)[1]
    return _SYMBOLS.get(macro, macro), i + 1


def _argument(tokens: list, i: int) -> tuple[str, int]:
    """A group in braces, a macro, or one character."""
    if i >= len(tokens):
        return "", i
    text = tokens[i][2]
    if text is None:
        return _one(tokens, i)
    stripped = text.lstrip()
    if len(stripped) > 1:  # the rest stays for what follows
        tokens[i] = (None, None, stripped[1:])
        return stripped[0], i
    return stripped, i + 1


def _bracketed(text: str) -> str:
    return text if re.fullmatch(r"[\w√.^·]+|\(.*\)", text.strip()) else f"({text.strip()})"
