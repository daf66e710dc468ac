"""Kernel names short enough for a record and a table, and different where the kernels are."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

LONGEST = 60
ELLIPSIS = "…"
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
# Prefixes and namespaces that most names have; compilers' words for a nameless namespace are several.
_LEFT_OUT = re.compile(
    r"^(?:void|static|__global__|std::enable_if<[^>]*>::type)\s+"
    r"|\(anonymous namespace\)::|<unnamed>::|\b(?:at|c10|native)::"
)
# What tells one instance of a template kernel from another, where plain types of arguments do not.
_TELLING = re.compile(
    r"\bCopy<|\w*(?:[Ff]unctor|Ops?|Copy|Softmax|SoftMax|Epilogue|Norm|Loss|[Kk]ernel)\w*|(?:cutlass|sm\d+|cublas)\w+"
)
# What nearly all of PyTorch's instances have in common.
_WRAPPERS = re.compile(r"gpu_kernel_impl\w*|(?:Unary|Binary|BUnary|AUnary)Functor|ReduceOp")
# Inductor puts all that a kernel does into its name.
_COMPILED = "triton_"


def short_names(names: Iterable[str]) -> dict[str, str]:
    """A short name for each of these kernel names; different names stay different.

    Where two would become the same, each gets the first digits of its full name's SHA-256 behind it.
    """
    full = sorted(set(names))
    short = {name: shortened(name) for name in full}
    counts = Counter(short.values())
    return {name: _told_apart(name, text) if counts[text] > 1 else text for name, text in short.items()}


def _told_apart(name: str, text: str) -> str:
    return f"{text}#{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def shortened(name: str) -> str:
    """Base name and the template arguments that tell; no parameters, plain types and namespaces of PyTorch.

    Operators (aten::mm) and names without a template keep all but their parameters, up to LONGEST characters. What
    perfscribe.instruments.profiling.families tells a kernel's family from stays in its name.
    """
    bare = _LEFT_OUT.sub("", name.strip())
    base, opening, rest = bare.partition("<")
    if not opening or not _IDENTIFIER.search(base):
        return _cut(re.sub(r"(?<=\S)\([^()]*\)$", "", bare))
    found = _TELLING.findall(rest[: _closing(rest)])
    told = dict.fromkeys(f"{one}>" if one.endswith("<") else one for one in found if not _WRAPPERS.fullmatch(one))
    return _cut(f"{base}<{', '.join(told)}>" if told else base)


def _closing(rest: str) -> int:
    """Where the template that is open at the start of this text closes."""
    depth = 1
    for place, character in enumerate(rest):
        depth += {"<": 1, ">": -1}.get(character, 0)
        if depth == 0:
            return place
    return len(rest)


def _cut(text: str) -> str:
    if len(text) <= LONGEST or text.startswith(_COMPILED):
        return text
    return text[: LONGEST - len(ELLIPSIS)] + ELLIPSIS
