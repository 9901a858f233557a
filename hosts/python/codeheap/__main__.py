# SPDX-License-Identifier: MIT
"""python3.11 -m codeheap [OPTIONS] FILE | -m MODULE | -c CODE | -  [ARGUMENTS]

Runs a program as python3.11 itself would, its functions on trampolines.

  --sinks=NAMES     unwind,perfmap,jitdump,gdb,libunwind or none; instead of CODEHEAP_SINKS
  --mode=MODE       trampolines; forward (a bare hook); kept (nothing is freed, as in CPython 3.12)
  --fork=POLICY     copy, cow or none
  --pool=BYTES      size of the pool
  --stats           at the end, the heap's statistics on stderr
  --profile=FILE    a flame graph of the program, SVG, or folded stacks where FILE ends in .folded or .txt
  --profile-rate=N  samples for each second of a thread's CPU time
  --profile-wall    of time instead: threads that wait are sampled, too
"""

import atexit
import importlib.machinery
import io
import os
import pkgutil
import runpy
import sys
import types

import codeheap


def usage(text):
    print("codeheap: " + text, file=sys.stderr)
    print(__doc__.split("\n\n")[0], file=sys.stderr)
    sys.exit(2)


def number(name, value):
    try:
        return int(value, 0)
    except ValueError:
        usage("--%s=%s is no number" % (name, value))


def parse(words):
    """(options for activate, whether to print statistics, options of a profile, what to run and its arguments)"""
    options, stats, profile = {}, False, {}
    while words and words[0].startswith("--"):
        name, _, value = words.pop(0)[2:].partition("=")
        if name == "":
            break
        if name == "help":
            print(__doc__.strip())
            sys.exit(0)
        elif name == "stats":
            stats = True
        elif name in ("sinks", "mode", "fork"):
            options[name] = value
        elif name == "pool":
            options["pool_bytes"] = number(name, value)
        elif name == "profile":
            profile["path"] = value
        elif name == "profile-rate":
            profile["rate"] = number(name, value)
        elif name == "profile-wall":
            profile["wall"] = True
        else:
            usage("there is no option --" + name)
    if not words or words[0] in ("-m", "-c") and len(words) == 1:
        usage("nothing to run")
    if profile and "path" not in profile:
        usage("--profile-rate and --profile-wall go with --profile=FILE")
    return options, stats, profile, words


def new_main(**names):
    """An empty __main__ in place of this one, as the interpreter makes it."""
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={}, **names)
    sys.modules["__main__"] = module
    return module.__dict__


def set_path(first):
    """`-m codeheap` put a folder before sys.path; the program's own one takes its place."""
    if not sys.flags.safe_path:
        sys.path[0] = first


def code_of_file(path):
    with io.open_code(path) as file:
        code = pkgutil.read_code(file)
        if code is None:
            file.seek(0)
            code = file.read()
    return code


def whole(path):
    """As the interpreter makes a path absolute: nothing is resolved."""
    return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)


def prepare_file(path, begin):
    if os.path.isdir(path) or not path.endswith((".py", ".pyc")) and has_importer(path):
        set_path(whole(path))
        new_main()
        return lambda: (begin(), runpy._run_module_as_main("__main__", False))
    try:
        code = code_of_file(path)
    except OSError as error:
        print("%s: can't open file %r: [Errno %d] %s" % (
            sys.executable, whole(path), error.errno, error.strerror), file=sys.stderr)
        sys.exit(2)
    set_path(os.path.dirname(os.path.realpath(path)))
    path = whole(path)
    loaders = importlib.machinery
    loader = loaders.SourcelessFileLoader if path.endswith(".pyc") else loaders.SourceFileLoader
    names = new_main(__file__=path, __cached__=None, __loader__=loader("__main__", path))

    def run():
        begin()
        exec(code if isinstance(code, types.CodeType) else compile(code, path, "exec", dont_inherit=True), names)
    return run


def has_importer(path):
    """Whether it is a folder or an archive with a __main__ in it."""
    return not isinstance(pkgutil.get_importer(path), (type(None), importlib.machinery.FileFinder))


def prepare(words, begin):
    """Sets sys.argv, sys.path and __main__; returns what runs the program. It calls begin then, so that the functions that
    are there before run without trampolines, and are in no profile."""
    first = words[0]
    if first == "-m":
        name = words[1]
        sys.argv[:] = ["-m"] + words[2:]
        set_path(os.getcwd())
        new_main()
        return lambda: (begin(), runpy._run_module_as_main(name))
    if first == "-c":
        sys.argv[:] = ["-c"] + words[2:]
        set_path("")
        names = new_main(__loader__=importlib.machinery.BuiltinImporter)
        return lambda: (begin(), exec(compile(words[1], "<string>", "exec", dont_inherit=True), names))
    if first == "-":
        sys.argv[:] = words
        set_path("")
        names = new_main(__loader__=importlib.machinery.BuiltinImporter)
        return lambda: (begin(), exec(compile(sys.stdin.read(), "<stdin>", "exec", dont_inherit=True), names))
    sys.argv[:] = words
    return prepare_file(first, begin)


def show_without_our_frames(run):
    """Runs it; an exception reaches the interpreter with a traceback that begins in the program."""
    try:
        run()
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__.tb_next
        while trace and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        hook = sys.excepthook

        def show(kind, value, _):
            value.__traceback__ = trace
            hook(kind, value, trace)
        sys.excepthook = show
        raise


def main():
    options, stats, profile, words = parse(sys.argv[1:])
    title = " ".join(words)

    def begin():
        if stats:
            atexit.register(lambda: print(codeheap.stats(), file=sys.stderr))
        try:
            codeheap.activate(**options)
            if profile:
                whole = codeheap.flame_profile(title=title, **profile)
                whole._has_callers = False
                whole.start()
        except (ValueError, OSError, RuntimeError, MemoryError, OverflowError) as error:
            print("codeheap: %s" % error, file=sys.stderr)
            sys.exit(2)
    show_without_our_frames(prepare(words, begin))


main()
