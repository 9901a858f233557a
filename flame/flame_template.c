/* SPDX-License-Identifier: MIT
 * flame_template.c: the bytes of template.svg. The assembler looks for the file where the build
 * starts, at the root of the tree. The template is a flame graph without boxes: the colours, and
 * the script for browsers (click, search, keyboard). The picture is whole without the script. The
 * script reads elements and their data attributes; no name is part of the script. The colours
 * differ in lightness, for eyes that do not tell red from green. */
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
