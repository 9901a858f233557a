# SPDX-License-Identifier: MIT
"""Every small break that the usual operators make of one C source, as replacements of text.

A tokenizer and a reader of statements are enough: what they take wrongly does not compile, and is no break then. Code
within functions only; comments, preprocessor lines, assertions and declarations stay, except what initializes a variable.
"""
import bisect
import re

TOKEN = re.compile(r"""
    (?P<space>\s+|//[^\n]*|/\*.*?\*/)
  | (?P<directive>(?<![^\n])[ \t]*\#(?:[^\n\\]|\\.)*)
  | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
  | (?P<number>(?:0[xX][0-9a-fA-F]+|[0-9]+(?:\.[0-9]+)?)[uUlLfF]*)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<sign>->|\+\+|--|<<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||\.\.\.|[-+*/%&|^]=|.)
""", re.S | re.X)
# What states a rule and does nothing.
STATED = re.compile(r"CH_ASSERT|CH_MOVE|CH_CHECK|CH_REQUIRES|CH_PUBLISHED|CH_UNANALYSED|CH_VOUCHES|CH_RELEASES|CH_ACQUIRES|"
                    r"CH_EXCLUDES|_Static_assert|static_assert|sizeof|offsetof|_Alignof|__attribute__|__asm__|asm")
HEADS = ("if", "while", "for", "switch")
DECLARES = {"const", "static", "struct", "enum", "union", "unsigned", "signed", "int", "char", "long", "short", "bool", "void",
            "float", "double", "volatile", "_Atomic", "typedef", "extern", "register", "_Thread_local", "_Alignas"}
EDGES = {"<": ("<=",), "<=": ("<",), ">": (">=",), ">=": (">",), "==": ("!=",), "!=": ("==",)}
JOINS = {"&&": "||", "||": "&&"}
TURNS = {"+": "-", "-": "+", "+=": "-=", "-=": "+=", "++": "--", "--": "++"}
WEAKER = {"memory_order_seq_cst": ("memory_order_acq_rel", "memory_order_relaxed"),
          "memory_order_acq_rel": ("memory_order_acquire", "memory_order_release", "memory_order_relaxed"),
          "memory_order_acquire": ("memory_order_relaxed",), "memory_order_release": ("memory_order_relaxed",)}
PLAIN_ATOMICS = {"atomic_load": "memory_order_acquire", "atomic_store": "memory_order_release",
                 "atomic_exchange": "memory_order_acq_rel", "atomic_fetch_add": "memory_order_acq_rel",
                 "atomic_fetch_sub": "memory_order_acq_rel", "atomic_fetch_or": "memory_order_acq_rel",
                 "atomic_fetch_and": "memory_order_acq_rel"}
PAIRS = (("lock", "unlock"), ("enter", "leave"), ("begin", "end"))
ASSIGNS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}


class Token:
    __slots__ = ("kind", "text", "at", "end", "partner")

    def __init__(self, kind, text, at):
        self.kind, self.text, self.at, self.end, self.partner = kind, text, at, at + len(text), -1


class Break:
    """Replacements [begin, end, text] of one source, and the bytes [from, to) whose lines they are about."""

    def __init__(self, operator, function, parts, about=None):
        self.operator, self.function, self.parts = operator, function, sorted(parts)
        self.about = about or [(begin, end) for begin, end, _ in self.parts]

    def apply(self, text):
        for begin, end, new in reversed(self.parts):
            # Lines keep their numbers, so that __LINE__ is no difference.
            text = text[:begin] + new + "\n" * (text[begin:end].count("\n") - new.count("\n")) + text[end:]
        return text


def tokens_of(text):
    tokens, opened = [], []
    for match in TOKEN.finditer(text):
        if match.lastgroup in ("space", "directive"):
            continue
        token = Token(match.lastgroup, match[0], match.start())
        if token.text in ("(", "[", "{"):
            opened.append(len(tokens))
        elif token.text in (")", "]", "}") and opened:
            token.partner = opened.pop()
            tokens[token.partner].partner = len(tokens)
        tokens.append(token)
    return tokens


class Statement:
    """A simple one is an expression, a declaration or a jump; the others have a head and parts."""

    def __init__(self, kind, first, last, nested=()):
        self.kind, self.first, self.last, self.nested = kind, first, last, list(nested)


class Misread(Exception):
    pass


class Source:
    def __init__(self, text):
        self.text = text
        self.tokens = tokens_of(text)
        self.starts = [0] + [match.end() for match in re.finditer("\n", text)]

    def line(self, at):
        return bisect.bisect_right(self.starts, at)

    def functions(self):
        """(name, index of the brace that opens the body) of each function."""
        n, begin = 0, 0
        while n < len(self.tokens):
            token = self.tokens[n]
            if token.text == "{" and token.partner > n:
                name = self.name_before(begin, n)
                if name:
                    yield name, n
                n = token.partner
                begin = n + 1
            elif token.text == ";":
                begin = n + 1
            elif token.text in ("(", "[") and token.partner > n:
                n = token.partner
            n += 1

    def name_before(self, begin, brace):
        if any(token.text == "=" for token in self.tokens[begin:brace]):
            return None
        n = begin
        while n + 1 < brace:
            word, following = self.tokens[n], self.tokens[n + 1]
            if following.text == "(" and word.kind == "word" and not STATED.fullmatch(word.text) and not word.text.isupper():
                return word.text
            n = following.partner if following.text == "(" else n
            n += 1
        return None

    # --- statements ---

    def block(self, brace):
        statements, n = [], brace + 1
        while n < self.tokens[brace].partner:
            statement = self.statement(n)
            statements.append(statement)
            n = statement.last + 1
        return statements

    def statement(self, n):
        tokens = self.tokens
        if n >= len(tokens) or tokens[n].text == "}":
            raise Misread
        word = tokens[n].text
        if word == "{":
            return Statement("block", n, tokens[n].partner, [self.block(n)])
        if word in HEADS or (tokens[n].kind == "word" and word != "return" and tokens[n + 1].text == "(" and
                             tokens[tokens[n + 1].partner + 1].text == "{"):
            body = self.statement(tokens[n + 1].partner + 1)
            parts, last = [[body]], body.last
            if word == "if" and tokens[last + 1].text == "else":
                other = self.statement(last + 2)
                parts.append([other])
                last = other.last
            return Statement(word if word in HEADS else "loop", n, last, parts)
        if word == "do":
            body = self.statement(n + 1)
            end = tokens[body.last + 2].partner + 1
            return Statement("do", n, end, [[body]])
        if word in ("case", "default") or (tokens[n].kind == "word" and tokens[n + 1].text == ":"):
            while tokens[n].text != ":":
                n += 1
            return Statement("label", n, n)
        return self.simple(n)

    def simple(self, n):
        first, tokens = n, self.tokens
        while tokens[n].text != ";":
            if tokens[n].text in ("(", "[", "{"):
                n = tokens[n].partner
            elif tokens[n].text == "}":
                raise Misread
            n += 1
        words = [token.text for token in tokens[first:n]]
        kind = "expression"
        if not words:
            kind = "empty"
        elif words[0] in ("return", "break", "continue", "goto"):
            kind = words[0]
        elif STATED.fullmatch(words[0]):
            kind = "stated"
        elif words[0] in DECLARES or self.declares(first, n):
            kind = "declaration"
        return Statement(kind, first, n)

    def declares(self, first, last):
        """`type name` or `type *name` begins a declaration; a product is no statement."""
        tokens = self.tokens
        n = first + 1
        while n < last and tokens[n].text == "*":
            n += 1
        return n < last and tokens[first].kind == "word" and tokens[n].kind == "word"


def spliced(source, first, last):
    return source.text[source.tokens[first].at:source.tokens[last].end]


def all_lists(statements):
    yield statements
    for statement in statements:
        for nested in statement.nested:
            yield from all_lists(nested)


def stated_ranges(source, first, last):
    """Indexes of tokens in arguments of what states a rule."""
    out, n = set(), first
    while n < last:
        token = source.tokens[n]
        if token.kind == "word" and STATED.fullmatch(token.text) and source.tokens[n + 1].text == "(":
            out.update(range(n, source.tokens[n + 1].partner + 1))
            n = source.tokens[n + 1].partner
        n += 1
    return out


def is_binary(source, n):
    before = source.tokens[n - 1]
    return before.kind in ("number", "text") or before.text in (")", "]") or \
        (before.kind == "word" and before.text not in ("return", "case", "else"))


def is_cast(source, n):
    """Whether the parenthesis that ends before token n is a cast's: `(type)` or `(type *)`."""
    if source.tokens[n - 1].text != ")":
        return False
    inner = source.tokens[source.tokens[n - 1].partner + 1:n - 1]
    return bool(inner) and all(token.kind == "word" or token.text == "*" for token in inner) and \
        (inner[-1].text == "*" or re.search(r"_t$|^(int|unsigned|char|long|bool|void)$", inner[-1].text) is not None)


def number_by_one(text):
    digits = re.match(r"0[xX][0-9a-fA-F]+|[0-9]+(?!\.)$|[0-9]+(?=[uUlL])", text)
    if not digits or "." in text:
        return
    suffix = text[digits.end():]
    value = int(digits[0], 8 if re.match("0[0-9]", text) else 0)
    for other in (value + 1, value - 1)[:2 if value else 1]:
        yield (f"0{other:o}" if re.match("0[0-9]", text) else f"{other}") + suffix


def weaker_atomic(source, n):
    """atomic_store(x, v) with an order of its own instead of the strongest."""
    word, close = source.tokens[n], source.tokens[source.tokens[n + 1].partner]
    for order in {PLAIN_ATOMICS[word.text], "memory_order_relaxed"}:
        yield [(word.at, word.end, word.text + "_explicit"), (close.at, close.end, f", {order})")]


def sizes_of_arrays(source, body):
    """Indexes of tokens in `[...]` of declarations, before what initializes the variable."""
    out = set()
    for of in all_lists(body.nested[0]):
        for statement in of:
            n = statement.first
            while statement.kind == "declaration" and n < statement.last:
                token = source.tokens[n]
                if token.text == "[":
                    out.update(range(n, token.partner))
                elif token.text == "=":
                    while n < statement.last and source.tokens[n].text != ",":
                        n = source.tokens[n].partner if source.tokens[n].text in ("(", "[", "{") else n
                        n += 1
                n += 1
    return out


def breaks_of_tokens(source, name, first, last, left_alone):
    tokens, stated = source.tokens, stated_ranges(source, first, last) | left_alone
    for n in range(first, last):
        token = tokens[n]
        if n in stated:
            continue

        def one(operator, new, at=token):
            return Break(operator, name, [(at.at, at.end, new)])

        if token.text in EDGES and not (token.text in "<>" and tokens[n + 1].text == token.text):
            for new in EDGES[token.text]:
                yield one("comparison", new)
        elif token.text in JOINS and is_binary(source, n):
            yield one("and-or", JOINS[token.text])
        elif token.text in TURNS and (len(token.text) == 2 or (is_binary(source, n) and not is_cast(source, n))):
            yield one("plus-minus", TURNS[token.text])
        elif token.kind == "number":
            for new in number_by_one(token.text):
                yield one("constant", new)
        elif token.text in WEAKER:
            for new in WEAKER[token.text]:
                yield one("order", new)
        elif token.text in PLAIN_ATOMICS and tokens[n + 1].text == "(":
            for parts in sorted(weaker_atomic(source, n)):
                yield Break("order", name, parts)
        elif token.text in ("if", "while") and tokens[n + 1].text == "(":
            begin, end = tokens[n + 1], tokens[tokens[n + 1].partner]
            yield Break("negation", name, [(begin.at, begin.end, "(!("), (end.at, end.end, "))")],
                        [(token.at, end.end)])


def dropped(source, name, statement):
    tokens, first, last = source.tokens, statement.first, statement.last
    about = [(tokens[first].at, tokens[last].end)]
    part = [(tokens[first].at, tokens[last].end, ";")]
    depth_one, n = set(), first
    while n < last:
        depth_one.add(tokens[n].text)
        n = tokens[n].partner if tokens[n].text in ("(", "[", "{") else n
        n += 1
    if depth_one & ASSIGNS or {"++", "--"} & depth_one or tokens[first].text.startswith(("atomic_", "CH_STORE_RELAXED")):
        return Break("store-dropped", name, part, about)
    return Break("call-dropped", name, part, about)


def breaks_of_statements(source, name, body):
    tokens = source.tokens
    returns_nothing = "void" in [token.text for token in tokens[max(0, body.first - 60):body.first]] and \
        is_void(source, name, body.first)
    for of in all_lists(body.nested[0]):
        for n, statement in enumerate(of):
            first, last = tokens[statement.first], tokens[statement.last]
            is_last = of is body.nested[0] and n == len(of) - 1
            if statement.kind == "expression":
                yield dropped(source, name, statement)
            elif statement.kind in ("return", "break", "continue", "goto") and not is_last:
                yield Break("return-dropped" if statement.kind == "return" else "jump-dropped", name,
                            [(first.at, last.end, ";")])
            if statement.kind in ("expression", "if", "for", "while", "loop") and (n or of is not body.nested[0]):
                early = "return; " if returns_nothing else "return 0; "
                # Where only one statement may stand, the rest of it goes with the return.
                yield Break("early-return", name, [(first.at, first.at, "{ " + early + "} ")] if len(of) > 1 else
                            [(first.at, first.at, "if (1) " + early + "else ")], [(first.at, first.end)])
            following = of[n + 1] if n + 1 < len(of) else None
            if following and statement.kind == following.kind == "expression" and not are_apart(source, statement, following):
                yield swapped(source, name, statement, following)


def are_apart(source, one, other):
    """Two assignments without calls, of which neither names the variable or member that the other sets."""
    named = []
    for statement in (one, other):
        tokens = source.tokens[statement.first:statement.last]
        sets = next((n for n, token in enumerate(tokens) if token.text == "="), 0)
        calls = any(token.kind == "word" and following.text == "(" for token, following in zip(tokens, tokens[1:]))
        if not sets or calls or tokens[sets - 1].kind != "word":
            return False
        named.append((tokens[sets - 1].text, {token.text for token in tokens}))
    return named[0][0] not in named[1][1] and named[1][0] not in named[0][1]


def swapped(source, name, one, other):
    tokens = source.tokens
    begin, middle = tokens[one.first].at, tokens[one.last].end
    again, end = tokens[other.first].at, tokens[other.last].end
    text = source.text
    return Break("swapped", name, [(begin, end, text[again:end] + text[middle:again] + text[begin:middle])],
                 [(begin, middle), (again, end)])


def is_void(source, name, brace):
    for n in range(brace - 1, 0, -1):
        if source.tokens[n].text == name and source.tokens[n + 1].text == "(":
            return source.tokens[n - 1].text == "void"
    return False


def breaks_of_pairs(source, name, body):
    """A lock or region left out: both calls of the same name and arguments, wherever they stand in the function."""
    calls = {}
    for of in all_lists(body.nested[0]):
        for statement in of:
            tokens = source.tokens[statement.first:statement.last + 1]
            if statement.kind == "expression" and tokens[0].kind == "word" and tokens[1].text == "(" and \
                    tokens[1].partner == statement.last - 1:
                key = tokens[0].text, "".join(token.text for token in tokens[2:-2])
                calls.setdefault(key, []).append((tokens[0].at, tokens[-1].end))
    for (call, arguments), places in calls.items():
        for opens, closes in PAIRS:
            if not call.endswith("_" + opens):
                continue
            ends = calls.get((call[:-len(opens)] + closes, arguments))
            if ends:
                yield Break("lock-left-out", name, [(begin, end, ";") for begin, end in places + ends], places + ends)


def breaks_of(text):
    """All breaks of a source, in the order of their places; the source beside them."""
    source = Source(text)
    found = []
    for name, brace in source.functions():
        end = source.tokens[brace].partner
        try:
            body = Statement("block", brace, end, [source.block(brace)])
        except (Misread, IndexError):
            found += breaks_of_tokens(source, name, brace + 1, end, set())
            continue
        found += breaks_of_tokens(source, name, brace + 1, end, sizes_of_arrays(source, body))
        found += breaks_of_statements(source, name, body)
        found += breaks_of_pairs(source, name, body)
    found = [one for one in found if one.apply(text) != text]
    return source, sorted(found, key=lambda one: (one.parts[0][0], one.operator, one.parts))
