/* SPDX-License-Identifier: MIT
 * flame_template.c: template.svg, as the bytes that the assembler finds where the build starts, at
 * the root of the tree. The template is a flame graph without boxes: its colours, and the script
 * that makes it live in a browser (click, search, keyboard). The picture is whole without the
 * script, which reads all from the elements and their data attributes; no name is ever part of it.
 * Colours are told apart by eyes that do not tell red from green, too: they differ in lightness. */
#include "flame/flame_tree.h"

__asm__(".pushsection .rodata\n"
	".globl ch__flame_template\n"
	".hidden ch__flame_template\n"
	".type ch__flame_template, %object\n"
	"ch__flame_template:\n"
	".incbin \"flame/template.svg\"\n"
	".byte 0\n"
	".size ch__flame_template, . - ch__flame_template\n"
	".popsection\n");
