#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Test programs of which one file is broken: a copy of the file is compiled by the very command by which make compiles
it for tests, and linked by the very command of the program, with the broken object in the place of the other.

    build = Build("build")                              # folder of a finished build of the test programs
    with Broken(build, {"codeheap/collect/mark.c": text}) as broken:
        program = broken.link("adversary_graph")        # its path; BuildFailed has the compiler's words
        verdict = run(build, program, "s04_cycles_and_self_loops_die_polls", limit=25)

The folder of a Broken is below the build's, and goes with it. A broken header is compiled with each file that includes
it, as far as the program has it; objects are compiled once, when a program asks for them."""
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile

from programs import program_of, sources

SPECIAL = {"stress": "stress/stress-tested", "corpus": "fuzz/replay"}
SKIPPED, NO_SUCH_CASE = 77, 2


class BuildFailed(Exception):
    """The compiler's or the linker's words."""


def settings_of_make():
    """What the make that started this was told: CC=clang-14, SAN=thread."""
    return [word for word in shlex.split(os.environ.get("MAKEFLAGS", "")) if re.match(r"[A-Z_]+=", word)]


def commands_of(recipe):
    """The commands of a recipe line, as lists of words."""
    words = shlex.shlex(recipe, posix=True, punctuation_chars=";&|<>")
    words.whitespace_split = True
    words.commenters = ""
    command = []
    for word in words:
        if set(word) <= set(";&|<>"):
            yield command
            command = []
        else:
            command.append(word)
    yield command


class Build:
    """What make would do for the test programs of one build, asked once."""

    def __init__(self, folder, settings=()):
        self.folder = folder  # as make says it, in which objects have their names
        self.settings = list(settings)
        self.compiles = {}  # object: command
        self.archives = {}  # archive: objects
        self.links = {}     # program's path: command
        self.vars = {}
        self.ask(["vars"])
        if os.path.samefile(folder, self.vars["BUILD"]):
            self.folder = self.vars["BUILD"]
        self.ask(path for path in self.candidates() if os.access(path, os.X_OK))
        self.emulator = shlex.split(self.vars.get("EMULATOR", ""))
        self.includers = {}  # file: objects that are made of it
        for made in self.compiles:
            for file in self.files_of(made):
                self.includers.setdefault(file, []).append(made)

    def candidates(self):
        for source in sources():
            if not source.endswith(".sh"):
                yield os.path.join(self.folder, "tests", program_of(source))
        for path in SPECIAL.values():
            yield os.path.join(self.folder, path)

    def ask(self, goals):
        environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
        said = subprocess.run(["make", "-n", "-B", "--no-print-directory", *self.settings, *goals], capture_output=True,
                              text=True, env=environment, check=False)
        if said.returncode != 0:
            raise BuildFailed(said.stderr)
        for line in said.stdout.replace("\\\n", " ").split("\n"):
            if not re.search(r" -o |\bar rcs |^printf ", line):
                continue
            for command in commands_of(line):
                self.take(command)

    def take(self, command):
        if command[:1] == ["printf"]:
            self.vars.update(word.split("=", 1) for word in command if re.match(r"[A-Z_]+=", word))
        elif "rcs" in command:
            at = command.index("rcs")
            self.archives[command[at + 1].removesuffix(".new")] = command[at + 2:]
        elif "-o" in command and command[0] != "ld":
            made = command[command.index("-o") + 1].removesuffix(".new")
            (self.compiles if "-c" in command else self.links)[made] = command

    def files_of(self, made):
        """The source and the headers of an object, as its .d file has them."""
        try:
            with open(made.removesuffix(".o") + ".d", encoding="utf-8") as file:
                first = file.read().replace("\\\n", " ").split("\n")[0]
        except OSError:
            return [self.compiles[made][-1]]
        return first.split(":", 1)[1].split()

    def path_of(self, program):
        return os.path.join(self.folder, SPECIAL.get(program, "tests/" + program))

    def has_program(self, program):
        return self.path_of(program) in self.links

    def objects_of(self, program):
        """Those that its link may take."""
        for word in self.links[self.path_of(program)]:
            if word in self.archives:
                yield from self.archives[word]
            elif word in self.compiles:
                yield word

    def is_old(self, program):
        """Whether one of its objects is gone, or older than a file that it is made of."""
        def is_new(made):
            return os.path.isfile(made) and all(os.path.isfile(file) and os.path.getmtime(file) <= os.path.getmtime(made)
                                                for file in self.files_of(made))
        return not all(map(is_new, self.objects_of(program)))


class Broken:
    """Files of the tree with other texts, and the programs that are made of them."""

    def __init__(self, build, texts, affected=None):
        """affected: the objects that differ; None: all that are made of the files"""
        self.build, self.texts = build, texts
        self.affected = affected
        if affected is None:
            self.affected = {made for file in texts for made in build.includers.get(file, [])}
        self.objects = {}  # object: the broken one

    def __enter__(self):
        under = os.path.join(self.build.folder, "breaks")
        os.makedirs(under, exist_ok=True)
        # Those of who was killed go.
        for left in os.listdir(under):
            if not os.path.exists("/proc/" + left.split("-")[0]):
                shutil.rmtree(os.path.join(under, left), ignore_errors=True)
        self.folder = tempfile.mkdtemp(dir=under, prefix=f"{os.getpid()}-")
        for file, text in self.texts.items():
            path = self.source(file)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as copy:
                copy.write(text)
        os.mkdir(os.path.join(self.folder, "tests"))
        native = os.path.join(self.build.folder, "tests/native")
        if os.path.isdir(native):
            os.symlink(os.path.abspath(native), os.path.join(self.folder, "tests/native"))
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)

    def source(self, file):
        return os.path.join(self.folder, "source", file)

    def compile(self, made):
        """The object, of the broken text."""
        if made in self.objects:
            return self.objects[made]
        command, out = [], os.path.join(self.folder, "objects", made)
        words = iter(self.build.compiles[made])
        for word in words:
            if word in ("-MT", "-MF", "-o"):
                next(words)
            elif word == "-I." and "-I." not in command:
                command += ["-I" + os.path.join(self.folder, "source"), "-I."]
            elif word not in ("-MMD", "-MP", "-Werror"):
                command.append(word)
        file = command.pop()
        os.makedirs(os.path.dirname(out), exist_ok=True)
        # What is beside the file is beside its copy, too, and the copy calls itself by the file's name.
        command.append("-fmacro-prefix-map=" + os.path.join(self.folder, "source") + "/=")
        command += ["-w", "-iquote", os.path.dirname(file), "-o", out, self.source(file) if file in self.texts else file]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode != 0:
            raise BuildFailed(said.stderr)
        self.objects[made] = out
        return out

    def link(self, program):
        """The program's path."""
        objects = {made: self.compile(made) for made in self.build.objects_of(program) if made in self.affected}
        if not objects:
            raise BuildFailed(f"{program} is not made of {' and '.join(self.texts)}")
        out = os.path.join(self.folder, "tests", os.path.basename(self.build.path_of(program)))
        command = []
        for word in self.build.links[self.build.path_of(program)]:
            if word.removesuffix(".new") == self.build.path_of(program):
                word = out
            elif any(made in objects for made in self.build.archives.get(word, [])):
                word = self.archive(word, objects)
            command.append(objects.get(word, word))
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode != 0:
            raise BuildFailed(said.stderr)
        return out

    def archive(self, archive, objects):
        """A copy with broken objects in it; it is the same for each program that has all of them."""
        copy = os.path.join(self.folder, "archives", archive)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        shutil.copyfile(archive, copy)
        changed = [objects[made] for made in self.build.archives[archive] if made in objects]
        subprocess.run([self.build.vars.get("AR") or "ar", "r", copy, *changed], capture_output=True, check=True)
        return copy


def run(build, program, words, limit, environment=None):
    """Runs it with these words; 0, another exit status, or -signal; None: it did not end."""
    child = subprocess.Popen([*build.emulator, program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, start_new_session=True,
                             env=dict(os.environ, **(environment or {})))
    try:
        status = child.wait(limit)
    except subprocess.TimeoutExpired:
        status = None
    # Its children go with it.
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()
    return status
