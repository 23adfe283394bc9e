"""What Python's syntax trees mean, whatever comments and layout there are: hashes, and names in dots."""

import ast
import hashlib

ROOT = "pipeline"
# fields of a syntax tree that mean nothing, or nothing in every version of Python
IGNORED = {"ctx", "kind", "type_comment", "type_ignores"}
# what declares a key of params.yaml: its last text is the comment above the key, and no code
DESCRIBED = {f"{ROOT}.config.sections.values.{name}": name for name in ("key", "group")}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def take_out_comments(tree: ast.Module, imports: dict[str, str]) -> None:
    """Take docstrings out of a module, and the comments above keys of params.yaml; `imports` are the names
    that it imports, with what they stand for.
    """
    described = {name for name, origin in imports.items() if origin in DESCRIBED}
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in described:
            del node.args[1:]
        elif isinstance(node, ast.JoinedStr):
            # Python 3.12 has empty texts in nested formats
            node.values = [part for part in node.values if getattr(part, "value", None) != ""]


def dotted(node: ast.AST | None) -> str:
    """ "a.b.c" of a name with attributes; "" of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def tree_hash(node: ast.AST) -> str:
    """A short hash of a syntax tree."""
    return content_hash(_written(node).encode("utf-8", errors="surrogatepass"))


def _written(node: object) -> str:
    """A syntax tree as text, the same for every version of Python (`ast.dump` differs in empty fields)."""
    if isinstance(node, list):
        return f"[{''.join(map(_written, node))}]"
    if not isinstance(node, ast.AST):
        return f"{node!r},"
    fields = [(name, getattr(node, name, None)) for name in node._fields if name not in IGNORED]
    inner = "".join(f"{name}={_written(value)}" for name, value in fields if value not in (None, []))
    return f"{type(node).__name__}({inner})"


def content_hash(content: bytes) -> str:
    """A short hash of bytes."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
