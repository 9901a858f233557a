; What the programs take for granted, for Guile's R7RS mode.
(import (scheme base) (scheme write) (scheme read) (scheme char) (scheme cxr) (scheme inexact)
        (scheme eval) (scheme repl) (scheme time))
