# SPDX-License-Identifier: MIT
# tests/old/program.c with the headers of 0.2.0, by `tests/tool/old_header.sh write`.
	.symver ch_address_name, ch_address_name@LIBCODEHEAP_0.2
	.symver ch_assumption_break, ch_assumption_break@LIBCODEHEAP_0.2
	.symver ch_assumption_create, ch_assumption_create@LIBCODEHEAP_0.2
	.symver ch_backtrace, ch_backtrace@LIBCODEHEAP_0.2
	.symver ch_block_abort, ch_block_abort@LIBCODEHEAP_0.2
	.symver ch_block_assume, ch_block_assume@LIBCODEHEAP_0.2
	.symver ch_block_commit, ch_block_commit@LIBCODEHEAP_0.2
	.symver ch_block_each, ch_block_each@LIBCODEHEAP_0.2
	.symver ch_block_info, ch_block_info@LIBCODEHEAP_0.2
	.symver ch_block_lines, ch_block_lines@LIBCODEHEAP_0.2
	.symver ch_block_open, ch_block_open@LIBCODEHEAP_0.2
	.symver ch_block_sites, ch_block_sites@LIBCODEHEAP_0.2
	.symver ch_block_veneer, ch_block_veneer@LIBCODEHEAP_0.2
	.symver ch_blocks_invalidate, ch_blocks_invalidate@LIBCODEHEAP_0.2
	.symver ch_branch_attach, ch_branch_attach@LIBCODEHEAP_0.2
	.symver ch_branch_link, ch_branch_link@LIBCODEHEAP_0.2
	.symver ch_code_add, ch_code_add@LIBCODEHEAP_0.2
	.symver ch_code_at, ch_code_at@LIBCODEHEAP_0.2
	.symver ch_code_free, ch_code_free@LIBCODEHEAP_0.2
	.symver ch_code_write, ch_code_write@LIBCODEHEAP_0.2
	.symver ch_edge_attach, ch_edge_attach@LIBCODEHEAP_0.2
	.symver ch_edge_attach_owner, ch_edge_attach_owner@LIBCODEHEAP_0.2
	.symver ch_fiber_attach, ch_fiber_attach@LIBCODEHEAP_0.2
	.symver ch_fiber_detach, ch_fiber_detach@LIBCODEHEAP_0.2
	.symver ch_fiber_resume, ch_fiber_resume@LIBCODEHEAP_0.2
	.symver ch_fiber_suspend, ch_fiber_suspend@LIBCODEHEAP_0.2
	.symver ch_frame_register, ch_frame_register@LIBCODEHEAP_0.2
	.symver ch_heap_check, ch_heap_check@LIBCODEHEAP_0.2
	.symver ch_heap_collect, ch_heap_collect@LIBCODEHEAP_0.2
	.symver ch_heap_create, ch_heap_create@LIBCODEHEAP_0.2
	.symver ch_heap_destroy, ch_heap_destroy@LIBCODEHEAP_0.2
	.symver ch_heap_stats, ch_heap_stats@LIBCODEHEAP_0.2
	.symver ch_mark_begin, ch_mark_begin@LIBCODEHEAP_0.2
	.symver ch_mark_end, ch_mark_end@LIBCODEHEAP_0.2
	.symver ch_mark_owner, ch_mark_owner@LIBCODEHEAP_0.2
	.symver ch_mark_stack, ch_mark_stack@LIBCODEHEAP_0.2
	.symver ch_mark_stacks, ch_mark_stacks@LIBCODEHEAP_0.2
	.symver ch_owner_cell, ch_owner_cell@LIBCODEHEAP_0.2
	.symver ch_owner_create, ch_owner_create@LIBCODEHEAP_0.2
	.symver ch_owner_info, ch_owner_info@LIBCODEHEAP_0.2
	.symver ch_owner_release, ch_owner_release@LIBCODEHEAP_0.2
	.symver ch_owner_set_entry, ch_owner_set_entry@LIBCODEHEAP_0.2
	.symver ch_patch_point_attach, ch_patch_point_attach@LIBCODEHEAP_0.2
	.symver ch_profile_start, ch_profile_start@LIBCODEHEAP_0.2
	.symver ch_profile_stop, ch_profile_stop@LIBCODEHEAP_0.2
	.symver ch_profile_write, ch_profile_write@LIBCODEHEAP_0.2
	.symver ch_ref_attach, ch_ref_attach@LIBCODEHEAP_0.2
	.symver ch_refs_visit, ch_refs_visit@LIBCODEHEAP_0.2
	.symver ch_sink_flush, ch_sink_flush@LIBCODEHEAP_0.2
	.symver ch_sink_set, ch_sink_set@LIBCODEHEAP_0.2
	.symver ch_sink_status, ch_sink_status@LIBCODEHEAP_0.2
	.symver ch_stats_file_enable, ch_stats_file_enable@LIBCODEHEAP_0.2
	.symver ch_status_text, ch_status_text@LIBCODEHEAP_0.2
	.symver ch_thread_attach, ch_thread_attach@LIBCODEHEAP_0.2
	.symver ch_thread_detach, ch_thread_detach@LIBCODEHEAP_0.2
	.symver ch_thread_park, ch_thread_park@LIBCODEHEAP_0.2
	.symver ch_thread_poll, ch_thread_poll@LIBCODEHEAP_0.2
	.symver ch_thread_poll_word, ch_thread_poll_word@LIBCODEHEAP_0.2
	.symver ch_thread_unpark, ch_thread_unpark@LIBCODEHEAP_0.2
	.symver ch_trampoline_make, ch_trampoline_make@LIBCODEHEAP_0.2
	.symver ch_trap_describe, ch_trap_describe@LIBCODEHEAP_0.2
	.symver ch_trap_install, ch_trap_install@LIBCODEHEAP_0.2
	.symver ch_vm_attach, ch_vm_attach@LIBCODEHEAP_0.2
	.symver ch_vm_detach, ch_vm_detach@LIBCODEHEAP_0.2
	.symver ch_vm_discard, ch_vm_discard@LIBCODEHEAP_0.2
	.symver ch_why, ch_why@LIBCODEHEAP_0.2
	.file	"program.c"
	.text
	.type	fallback, @function
fallback:
	orl	$-1, %eax
	ret
	.size	fallback, .-fallback
	.section	.rodata.str1.1,"aMS",@progbits,1
.LC0:
	.string	"line %d: %s\n"
	.text
	.type	wrong, @function
wrong:
	pushq	%rbx
	movl	%edi, %ebx
	call	ch_why@PLT
	leaq	.LC0(%rip), %rdi
	movl	%ebx, %esi
	movq	%rax, %rdx
	xorl	%eax, %eax
	call	printf@PLT
	movl	$3, %edi
	call	exit@PLT
	.size	wrong, .-wrong
	.type	ref, @function
ref:
	leaq	words(%rip), %rdx
	cmpq	%rdi, %rdx
	je	.L5
	pushq	%rax
	movl	$36, %edi
	call	wrong
.L5:
	movq	%rsi, %rax
	ret
	.size	ref, .-ref
	.type	hit, @function
hit:
	leaq	words(%rip), %rax
	cmpq	%rdi, %rax
	jne	.L11
	testq	%rsi, %rsi
	je	.L11
	leaq	hits(%rip), %rax
	cmpq	%rax, %rdx
	jne	.L11
	cmpq	$0, 256(%rcx)
	jne	.L12
.L11:
	pushq	%rax
	movl	$30, %edi
	call	wrong
.L12:
	incl	hits(%rip)
	movq	next(%rip), %rax
	ret
	.size	hit, .-hit
	.type	visit_site, @function
visit_site:
	leaq	words(%rip), %rax
	cmpq	%rdi, %rax
	jne	.L16
	cmpq	$0, 8(%rsi)
	jne	.L17
.L16:
	pushq	%rax
	movl	$78, %edi
	call	wrong
.L17:
	incl	visited(%rip)
	setne	%al
	ret
	.size	visit_site, .-visit_site
	.type	visit_block, @function
visit_block:
	leaq	words(%rip), %rax
	cmpq	%rdi, %rax
	jne	.L21
	cmpq	$0, (%rsi)
	je	.L21
	cmpq	$0, 8(%rsi)
	jne	.L22
.L21:
	pushq	%rax
	movl	$73, %edi
	call	wrong
.L22:
	incl	visited(%rip)
	setne	%al
	ret
	.size	visit_block, .-visit_block
	.section	.rodata.str1.1
.LC1:
	.string	"block"
	.text
	.type	open_in, @function
open_in:
	pushq	%r13
	movq	%rdi, %r13
	pushq	%r12
	movq	%rsi, %r12
	pushq	%rbp
	movl	%edx, %ebp
	pushq	%rbx
	movq	%rcx, %rbx
	subq	$104, %rsp
	cmpb	$0, frame.2(%rip)
	jne	.L26
	movq	heap(%rip), %rdi
	leaq	frame.2(%rip), %rcx
	movl	$7, %edx
	leaq	cfi.1(%rip), %rsi
	call	ch_frame_register@PLT
	movl	$93, %edi
	testl	%eax, %eax
	jne	.L32
.L26:
	xorl	%eax, %eax
	leaq	16(%rsp), %rdi
	movl	$20, %ecx
	movq	%rbx, %rsi
	rep stosl
	movl	$67108865, %eax
	leaq	8(%rsp), %rdi
	movq	$88, 8(%rsp)
	salq	$6, %rax
	movq	%r13, 24(%rsp)
	movq	%rax, 36(%rsp)
	movb	frame.2(%rip), %al
	movl	%ebp, 32(%rsp)
	movb	%al, 48(%rsp)
	leaq	.LC1(%rip), %rax
	movq	%rax, 72(%rsp)
	leaq	freed(%rip), %rax
	movq	%rax, 80(%rsp)
	call	ch_block_open@PLT
	testl	%eax, %eax
	je	.L27
	movl	$96, %edi
.L32:
	call	wrong
.L27:
	movq	8(%rbx), %rdi
	movl	%ebp, %ecx
	movq	%r12, %rsi
	rep movsb
	movl	%ebp, 56(%rbx)
	addq	$104, %rsp
	popq	%rbx
	popq	%rbp
	popq	%r12
	popq	%r13
	ret
	.size	open_in, .-open_in
	.type	visit_ref, @function
visit_ref:
	leaq	words(%rip), %rcx
	cmpq	%rdi, %rcx
	je	.L34
	pushq	%rax
	movl	$83, %edi
	call	wrong
.L34:
	movb	$0, (%rdx)
	movq	%rsi, %rax
	ret
	.size	visit_ref, .-visit_ref
	.type	block_freed, @function
block_freed:
	leaq	words(%rip), %rax
	cmpq	%rdi, %rax
	jne	.L39
	leaq	freed(%rip), %rax
	cmpq	%rax, %rsi
	je	.L40
	testq	%rsi, %rsi
	je	.L40
.L39:
	pushq	%rax
	movl	$46, %edi
	call	wrong
.L40:
	incl	freed(%rip)
	ret
	.size	block_freed, .-block_freed
	.type	roots, @function
roots:
	leaq	words(%rip), %rdx
	movq	%rdi, %rax
	cmpq	%rdx, %rdi
	je	.L50
	pushq	%rax
	movl	$41, %edi
	call	wrong
.L50:
	movq	%rsi, %rdi
	leaq	64+words(%rip), %rdx
	movq	%rax, %rsi
	jmp	ch_mark_stack@PLT
	.size	roots, .-roots
	.section	.rodata.str1.1
.LC2:
	.string	"success"
.LC3:
	.string	"first"
.LC4:
	.string	"second"
.LC5:
	.string	"/old.c"
.LC6:
	.string	"seven"
.LC7:
	.string	"\b"
.LC8:
	.string	"calls"
.LC9:
	.string	"old"
.LC10:
	.string	"/dev/null"
.LC11:
	.string	"marked"
.LC12:
	.string	"done"
	.section	.text.startup,"ax",@progbits
	.globl	main
	.type	main, @function
main:
	pushq	%r15
	xorl	%edi, %edi
	pushq	%r14
	pushq	%r13
	pushq	%r12
	pushq	%rbp
	pushq	%rbx
	subq	$2424, %rsp
	call	ch_status_text@PLT
	leaq	.LC2(%rip), %rsi
	movq	%rax, %rdi
	call	strcmp@PLT
	movl	$257, %edi
	testl	%eax, %eax
	jne	.L155
	leaq	264(%rsp), %rdx
	leaq	248(%rsp), %r8
	movl	$20, %ecx
	movq	$96, 248(%rsp)
	movq	%rdx, %rdi
	leaq	heap(%rip), %rsi
	movq	$8388608, 256(%rsp)
	rep stosl
	movq	%r8, %rdi
	call	ch_heap_create@PLT
	testl	%eax, %eax
	je	.L56
	movl	$260, %edi
.L155:
	call	wrong
.L56:
	movq	heap(%rip), %rdi
	leaq	40(%rsp), %rcx
	leaq	words(%rip), %rdx
	leaq	ops(%rip), %rsi
	call	ch_vm_attach@PLT
	movl	$261, %edi
	testl	%eax, %eax
	jne	.L155
	movq	heap(%rip), %rdi
	xorl	%edx, %edx
	xorl	%esi, %esi
	call	ch_thread_attach@PLT
	movl	$262, %edi
	testl	%eax, %eax
	jne	.L155
	movq	40(%rsp), %rbx
	leaq	fallback(%rip), %r12
	leaq	48(%rsp), %r8
	xorl	%ecx, %ecx
	movq	%r12, %rdx
	leaq	.LC3(%rip), %rsi
	movq	%rbx, %rdi
	call	ch_owner_create@PLT
	movl	$161, %edi
	testl	%eax, %eax
	jne	.L155
	movq	%rbx, %rdi
	leaq	56(%rsp), %r8
	xorl	%ecx, %ecx
	movq	%r12, %rdx
	leaq	.LC4(%rip), %rsi
	call	ch_owner_create@PLT
	movl	$162, %edi
	testl	%eax, %eax
	jne	.L155
	movq	%rbx, %rdi
	leaq	64(%rsp), %rsi
	call	ch_assumption_create@PLT
	movl	$163, %edi
	movl	%eax, %r13d
	testl	%eax, %eax
	jne	.L155
	leaq	768(%rsp), %rax
	movq	48(%rsp), %rdi
	movl	$40, %edx
	leaq	first_code(%rip), %rsi
	movq	%rax, %rcx
	movq	%rax, 16(%rsp)
	leaq	440(%rsp), %r14
	call	open_in
	movq	56(%rsp), %rdi
	leaq	896(%rsp), %rcx
	movl	$3, %edx
	leaq	second_code(%rip), %rsi
	call	open_in
	movl	%r13d, %eax
	leaq	1456(%rsp), %rdi
	movl	$10, %ecx
	rep stosl
	movq	784(%rsp), %rbx
	movq	768(%rsp), %rdi
	leaq	hits(%rip), %rdx
	leaq	1448(%rsp), %r13
	movq	56(%rsp), %r15
	movq	%rdx, 1464(%rsp)
	movq	%r14, %rdx
	leaq	8(%rbx), %rax
	movq	%r13, %rsi
	movq	%rbx, 1024(%rsp)
	movq	64(%rsp), %rbp
	movq	%rax, 1448(%rsp)
	movl	$1, 1032(%rsp)
	movq	%rax, 1040(%rsp)
	movl	$2, 1048(%rsp)
	call	ch_branch_attach@PLT
	movl	$109, %edi
	testl	%eax, %eax
	jne	.L155
	movq	768(%rsp), %rdi
	leaq	16(%rbx), %rsi
	call	ch_ref_attach@PLT
	movl	$110, %edi
	testl	%eax, %eax
	jne	.L155
	movq	768(%rsp), %rdi
	leaq	32(%rbx), %rdx
	leaq	24(%rbx), %rsi
	leaq	visited(%rip), %rcx
	call	ch_patch_point_attach@PLT
	movl	$111, %edi
	testl	%eax, %eax
	jne	.L155
	movq	768(%rsp), %rdi
	movq	896(%rsp), %rsi
	call	ch_edge_attach@PLT
	movl	$112, %edi
	testl	%eax, %eax
	jne	.L155
	movq	768(%rsp), %rdi
	movq	%r15, %rsi
	call	ch_edge_attach_owner@PLT
	movl	$113, %edi
	testl	%eax, %eax
	jne	.L155
	movq	768(%rsp), %rdi
	movq	%rbp, %rsi
	call	ch_block_assume@PLT
	movl	$114, %edi
	testl	%eax, %eax
	jne	.L155
	leaq	1024(%rsp), %rax
	movq	768(%rsp), %rdi
	movl	$2, %ecx
	leaq	.LC5(%rip), %rsi
	movq	%rax, %rdx
	movq	%rax, 24(%rsp)
	call	ch_block_lines@PLT
	movl	$115, %edi
	testl	%eax, %eax
	jne	.L155
	leaq	568(%rsp), %rax
	movq	16(%rsp), %rdi
	movq	%r12, %rsi
	movq	%rax, %rdx
	movq	%rax, 8(%rsp)
	call	ch_block_veneer@PLT
	movl	$116, %edi
	testl	%eax, %eax
	jne	.L155
	call	*568(%rsp)
	movl	$117, %edi
	incl	%eax
	jne	.L155
	movq	16(%rsp), %rdi
	movl	$2, %esi
	movq	440(%rsp), %r12
	call	ch_block_commit@PLT
	movl	$167, %edi
	testl	%eax, %eax
	jne	.L155
	movq	896(%rsp), %rax
	movq	48(%rsp), %rdi
	movq	768(%rsp), %rsi
	movq	%rax, next(%rip)
	call	ch_owner_set_entry@PLT
	movl	$169, %edi
	testl	%eax, %eax
	jne	.L155
	movq	48(%rsp), %rdi
	call	ch_owner_cell@PLT
	movq	%rax, %rbx
	call	*(%rax)
	cmpl	$42, %eax
	jne	.L73
	cmpl	$1, hits(%rip)
	je	.L74
.L73:
	movl	$171, %edi
	jmp	.L155
.L74:
	movq	%r12, %rdi
	xorl	%esi, %esi
	call	ch_branch_link@PLT
	movl	$172, %edi
	testl	%eax, %eax
	jne	.L155
	call	*(%rbx)
	cmpl	$42, %eax
	jne	.L76
	cmpl	$2, hits(%rip)
	je	.L77
.L76:
	movl	$173, %edi
	jmp	.L155
.L77:
	movq	next(%rip), %rsi
	movq	%r12, %rdi
	call	ch_branch_link@PLT
	movl	$174, %edi
	movl	%eax, %ebp
	testl	%eax, %eax
	jne	.L155
	call	*(%rbx)
	cmpl	$42, %eax
	jne	.L79
	cmpl	$2, hits(%rip)
	je	.L80
.L79:
	movl	$175, %edi
	jmp	.L155
.L80:
	movl	%ebp, %eax
	leaq	352(%rsp), %rdi
	movl	$22, %ecx
	movq	768(%rsp), %r12
	rep stosl
	leaq	120(%rsp), %rdi
	movl	$14, %ecx
	leaq	344(%rsp), %rsi
	rep stosl
	movq	24(%rsp), %rdi
	movl	$104, %ecx
	movq	$96, 344(%rsp)
	movq	$64, 112(%rsp)
	movq	48(%rsp), %r15
	rep stosl
	leaq	184(%rsp), %rdi
	movl	$16, %ecx
	movq	$416, 1024(%rsp)
	rep stosl
	movq	%r14, %rdi
	movl	$32, %ecx
	movq	$72, 176(%rsp)
	rep stosl
	movl	$242, %ecx
	movq	%r13, %rdi
	rep stosl
	movq	%r12, %rdi
	call	ch_block_info@PLT
	movl	$133, %edi
	testl	%eax, %eax
	jne	.L155
	cmpl	$2, 392(%rsp)
	jne	.L82
	leaq	.LC1(%rip), %r13
	movq	384(%rsp), %rdi
	movq	%r13, %rsi
	call	strcmp@PLT
	testl	%eax, %eax
	jne	.L82
	leaq	freed(%rip), %rax
	cmpq	%rax, 376(%rsp)
	je	.L83
.L82:
	movl	$134, %edi
	jmp	.L155
.L83:
	movq	416(%rsp), %rsi
	xorl	%edx, %edx
	xorl	%edi, %edi
	leaq	112(%rsp), %rcx
	call	ch_code_at@PLT
	testb	%al, %al
	je	.L84
	cmpq	%r12, 120(%rsp)
	je	.L85
.L84:
	movl	$135, %edi
	jmp	.L155
.L85:
	movq	heap(%rip), %rdi
	movq	24(%rsp), %rsi
	call	ch_heap_stats@PLT
	movl	$136, %edi
	testl	%eax, %eax
	jne	.L155
	cmpq	$1, 1176(%rsp)
	jbe	.L87
	cmpq	$8388608, 1056(%rsp)
	jne	.L87
	cmpq	$1, 1240(%rsp)
	je	.L88
.L87:
	movl	$137, %edi
	jmp	.L155
.L88:
	movq	%r15, %rdi
	leaq	176(%rsp), %rsi
	call	ch_owner_info@PLT
	movl	$138, %edi
	testl	%eax, %eax
	jne	.L155
	movq	208(%rsp), %rdi
	leaq	.LC3(%rip), %rsi
	call	strcmp@PLT
	testl	%eax, %eax
	jne	.L90
	cmpq	$1, 224(%rsp)
	je	.L91
.L90:
	movl	$139, %edi
	jmp	.L155
.L91:
	movq	heap(%rip), %rdi
	leaq	words(%rip), %rbp
	leaq	visit_block(%rip), %rdx
	xorl	%esi, %esi
	movq	%rbp, %rcx
	call	ch_block_each@PLT
	movl	$140, %edi
	testl	%eax, %eax
	jne	.L155
	cmpl	$1, visited(%rip)
	movl	$141, %edi
	jle	.L155
	xorl	%esi, %esi
	movq	%r12, %rdi
	movq	%rbp, %rdx
	movl	%esi, visited(%rip)
	leaq	visit_site(%rip), %rsi
	call	ch_block_sites@PLT
	movl	$143, %edi
	testl	%eax, %eax
	jne	.L155
	cmpl	$2, visited(%rip)
	movl	$144, %edi
	jle	.L155
	movq	heap(%rip), %rdi
	movq	8(%rsp), %rsi
	movl	$200, %edx
	call	ch_heap_check@PLT
	movl	$145, %edi
	testl	%eax, %eax
	jne	.L155
	movq	8(%rsp), %rcx
	movq	416(%rsp), %rsi
	xorl	%edx, %edx
	movl	$200, %r8d
	movq	heap(%rip), %rdi
	call	ch_address_name@PLT
	testq	%rax, %rax
	je	.L97
	movq	8(%rsp), %rdi
	movq	%r13, %rsi
	call	strstr@PLT
	testq	%rax, %rax
	jne	.L98
.L97:
	movl	$146, %edi
	jmp	.L155
.L98:
	movq	heap(%rip), %rdi
	leaq	80(%rsp), %rcx
	xorl	%edx, %edx
	xorl	%esi, %esi
	movl	$4, %r8d
	call	ch_backtrace@PLT
	movq	heap(%rip), %rdi
	call	ch_trap_install@PLT
	movl	$148, %edi
	testl	%eax, %eax
	jne	.L155
	movq	heap(%rip), %rdi
	movq	8(%rsp), %rcx
	leaq	1448(%rsp), %rbp
	leaq	440(%rsp), %rsi
	movl	$200, %r8d
	movq	%rbp, %rdx
	call	ch_trap_describe@PLT
	movl	$149, %edi
	testq	%rax, %rax
	jne	.L155
	movq	heap(%rip), %rdi
	movl	$1, %esi
	call	ch_sink_set@PLT
	movl	$150, %edi
	testl	%eax, %eax
	jne	.L155
	movq	heap(%rip), %rdi
	call	ch_sink_flush@PLT
	movl	$151, %edi
	testl	%eax, %eax
	jne	.L155
	leaq	36(%rsp), %rcx
	leaq	72(%rsp), %rdx
	movl	$1, %esi
	movq	heap(%rip), %rdi
	call	ch_sink_status@PLT
	testb	%al, %al
	je	.L103
	cmpl	$0, 36(%rsp)
	je	.L104
.L103:
	movl	$152, %edi
	jmp	.L155
.L104:
	movq	64(%rsp), %rdi
	movq	%rbp, %rsi
	call	ch_assumption_break@PLT
	movl	$177, %edi
	testl	%eax, %eax
	jne	.L155
	cmpq	$1, 1448(%rsp)
	je	.L106
.L107:
	movl	$178, %edi
	jmp	.L155
.L106:
	call	*(%rbx)
	incl	%eax
	jne	.L107
	leaq	next(%rip), %rdi
	movq	%rbp, %rdx
	movl	$1, %esi
	call	ch_blocks_invalidate@PLT
	movl	$179, %edi
	testl	%eax, %eax
	jne	.L155
	cmpq	$1, 1448(%rsp)
	movl	$180, %edi
	jne	.L155
	movq	56(%rsp), %rdi
	leaq	768(%rsp), %r12
	movl	$3, %edx
	leaq	second_code(%rip), %rsi
	movq	%r12, %rcx
	call	open_in
	movq	%r12, %rdi
	call	ch_block_abort@PLT
	movl	$182, %edi
	testl	%eax, %eax
	jne	.L155
	movq	48(%rsp), %rdi
	xorl	%esi, %esi
	call	ch_owner_release@PLT
	movl	$183, %edi
	testl	%eax, %eax
	jne	.L155
	movq	56(%rsp), %rdi
	movl	$1, %esi
	call	ch_owner_release@PLT
	movl	$184, %edi
	testl	%eax, %eax
	jne	.L155
	xorl	%eax, %eax
	leaq	1456(%rsp), %rdi
	movl	$22, %ecx
	movl	$6, %edx
	rep stosl
	leaq	568(%rsp), %r14
	movq	heap(%rip), %rdi
	leaq	.LC6(%rip), %rcx
	movq	%r14, %r8
	leaq	seven_code(%rip), %rsi
	movq	$96, 1448(%rsp)
	movq	40(%rsp), %rbx
	leaq	1456(%rsp), %r15
	call	ch_code_add@PLT
	movl	$193, %edi
	testl	%eax, %eax
	jne	.L155
	call	*568(%rsp)
	movl	$194, %edi
	cmpl	$7, %eax
	jne	.L155
	movq	568(%rsp), %rax
	movq	heap(%rip), %rdi
	xorl	%r8d, %r8d
	movl	$1, %ecx
	leaq	.LC7(%rip), %rdx
	leaq	1(%rax), %rsi
	call	ch_code_write@PLT
	movl	$195, %edi
	testl	%eax, %eax
	jne	.L155
	call	*568(%rsp)
	movl	$196, %edi
	cmpl	$8, %eax
	jne	.L155
	movq	%rbx, %rdi
	movq	%r12, %r8
	xorl	%ecx, %ecx
	xorl	%edx, %edx
	leaq	.LC8(%rip), %rsi
	call	ch_owner_create@PLT
	movl	$197, %edi
	testl	%eax, %eax
	jne	.L155
	pushq	%rax
	movl	$1, %ecx
	leaq	fallback(%rip), %rdx
	xorl	%r9d, %r9d
	xorl	%r8d, %r8d
	xorl	%esi, %esi
	leaq	1032(%rsp), %r13
	pushq	%r13
	movq	784(%rsp), %rdi
	call	ch_trampoline_make@PLT
	popq	%rdx
	movl	$198, %edi
	popq	%rcx
	testl	%eax, %eax
	jne	.L155
	movq	1024(%rsp), %rdi
	movq	%rbp, %rsi
	call	ch_block_info@PLT
	movl	$199, %edi
	testl	%eax, %eax
	jne	.L155
	call	*1520(%rsp)
	movl	$200, %edi
	incl	%eax
	jne	.L155
	movq	heap(%rip), %rdi
	movq	568(%rsp), %rsi
	movl	$1, %edx
	call	ch_code_free@PLT
	movl	$201, %edi
	testl	%eax, %eax
	jne	.L155
	leaq	4096+stack.0(%rip), %rdx
	movq	heap(%rip), %rdi
	movq	%rbp, %rcx
	leaq	-4096(%rdx), %rbx
	movq	%rbx, %rsi
	call	ch_fiber_attach@PLT
	movl	$208, %edi
	testl	%eax, %eax
	jne	.L155
	movq	1448(%rsp), %rdi
	movq	%rbx, %rsi
	call	ch_fiber_suspend@PLT
	movq	1448(%rsp), %rdi
	call	ch_fiber_resume@PLT
	movq	1448(%rsp), %rdi
	call	ch_fiber_detach@PLT
	movl	$211, %edi
	movl	%eax, %ebx
	testl	%eax, %eax
	jne	.L155
	call	ch_thread_park@PLT
	call	ch_thread_unpark@PLT
	call	ch_thread_poll@PLT
	movq	heap(%rip), %rdi
	call	ch_thread_poll_word@PLT
	movl	$215, %edi
	testq	%rax, %rax
	je	.L155
	movl	%ebx, %eax
	leaq	1032(%rsp), %rdi
	movl	$8, %ecx
	rep stosl
	movl	$10, %ecx
	movq	%r15, %rdi
	movq	$40, 1024(%rsp)
	rep stosl
	leaq	776(%rsp), %rdi
	movl	$6, %ecx
	movb	$1, 1032(%rsp)
	rep stosl
	leaq	.LC9(%rip), %rax
	movq	$48, 1448(%rsp)
	movq	$32, 768(%rsp)
	movq	%rax, 784(%rsp)
	call	ch_stats_file_enable@PLT
	movl	$223, %edi
	testl	%eax, %eax
	jne	.L155
	movq	heap(%rip), %rdi
	movq	%r13, %rdx
	movl	$100, %esi
	call	ch_profile_start@PLT
	movl	$224, %edi
	testl	%eax, %eax
	jne	.L155
	movq	heap(%rip), %rdi
	movq	%rbp, %rsi
	call	ch_profile_stop@PLT
	movl	$225, %edi
	testl	%eax, %eax
	jne	.L155
	cmpq	$1, 1480(%rsp)
	movl	$226, %edi
	jne	.L155
	movq	heap(%rip), %rdi
	movq	%r12, %rdx
	leaq	.LC10(%rip), %rsi
	call	ch_profile_write@PLT
	movl	$227, %edi
	testl	%eax, %eax
	jne	.L155
	movq	heap(%rip), %rdi
	call	ch_heap_collect@PLT
	movl	$267, %edi
	testl	%eax, %eax
	jne	.L155
	movq	heap(%rip), %rdi
	movq	40(%rsp), %rsi
	leaq	440(%rsp), %rcx
	leaq	344(%rsp), %rdx
	call	ch_vm_discard@PLT
	movl	$268, %edi
	testl	%eax, %eax
	jne	.L155
	movq	40(%rsp), %rdi
	call	ch_vm_detach@PLT
	movl	$269, %edi
	testl	%eax, %eax
	jne	.L155
	cmpl	$3, freed(%rip)
	movl	$270, %edi
	jne	.L155
	movq	heap(%rip), %rdi
	call	ch_thread_detach@PLT
	movl	$271, %edi
	testl	%eax, %eax
	jne	.L155
	movq	heap(%rip), %rdi
	call	ch_heap_destroy@PLT
	movl	$272, %edi
	testl	%eax, %eax
	jne	.L155
	leaq	1464(%rsp), %rdx
	movl	$20, %ecx
	leaq	1448(%rsp), %r8
	movq	%rdx, %rdi
	leaq	heap(%rip), %rsi
	rep stosl
	movq	%r8, %rdi
	movq	$96, 1448(%rsp)
	movq	$8388608, 1456(%rsp)
	movl	$1, 1480(%rsp)
	call	ch_heap_create@PLT
	movl	$239, %edi
	testl	%eax, %eax
	jne	.L155
	movq	heap(%rip), %rdi
	leaq	words(%rip), %rbx
	movq	%r14, %rcx
	leaq	ops(%rip), %rsi
	movq	%rbx, %rdx
	call	ch_vm_attach@PLT
	movl	$240, %edi
	testl	%eax, %eax
	jne	.L155
	movq	568(%rsp), %rdi
	movq	%r12, %r8
	xorl	%ecx, %ecx
	xorl	%edx, %edx
	leaq	.LC11(%rip), %rsi
	call	ch_owner_create@PLT
	movl	$241, %edi
	testl	%eax, %eax
	jne	.L155
	movq	heap(%rip), %rdi
	movq	%r13, %rsi
	call	ch_mark_begin@PLT
	movl	$242, %edi
	testl	%eax, %eax
	jne	.L155
	movq	768(%rsp), %rsi
	movq	1024(%rsp), %rdi
	call	ch_mark_owner@PLT
	movq	1024(%rsp), %rdi
	movq	%rbx, %rcx
	xorl	%esi, %esi
	leaq	visit_ref(%rip), %rdx
	call	ch_refs_visit@PLT
	movl	$244, %edi
	testl	%eax, %eax
	jne	.L155
	movq	1024(%rsp), %rdi
	call	ch_mark_stacks@PLT
	movq	1024(%rsp), %rdi
	movl	$1, %esi
	call	ch_mark_end@PLT
	movl	$246, %edi
	testl	%eax, %eax
	jne	.L155
	movq	768(%rsp), %rdi
	call	ch_owner_cell@PLT
	movl	$247, %edi
	testq	%rax, %rax
	je	.L155
	movq	568(%rsp), %rdi
	call	ch_vm_detach@PLT
	movl	$248, %edi
	testl	%eax, %eax
	jne	.L155
	movq	heap(%rip), %rdi
	call	ch_heap_destroy@PLT
	movl	$249, %edi
	testl	%eax, %eax
	jne	.L155
	leaq	.LC12(%rip), %rdi
	call	puts@PLT
	addq	$2424, %rsp
	xorl	%eax, %eax
	popq	%rbx
	popq	%rbp
	popq	%r12
	popq	%r13
	popq	%r14
	popq	%r15
	ret
	.size	main, .-main
	.local	stack.0
	.comm	stack.0,4096,16
	.section	.rodata
	.type	cfi.1, @object
	.size	cfi.1, 7
cfi.1:
	.ascii	"\f\006\020\206\002\220\001"
	.local	frame.2
	.comm	frame.2,1,1
	.type	seven_code, @object
	.size	seven_code, 6
seven_code:
	.string	"\270\007"
	.string	""
	.string	""
	.ascii	"\303"
	.type	second_code, @object
	.size	second_code, 3
second_code:
	.ascii	"\377\300\303"
	.align 32
	.type	first_code, @object
	.size	first_code, 40
first_code:
	.string	"\270)"
	.string	""
	.string	""
	.string	"\220\220\220\351"
	.string	""
	.string	""
	.string	""
	.string	""
	.string	""
	.string	""
	.string	""
	.string	""
	.string	""
	.string	""
	.string	""
	.string	""
	.string	""
	.string	""
	.string	"\251"
	.string	""
	.string	""
	.string	""
	.string	""
	.string	""
	.string	""
	.string	"\303"
	.zero	6
	.section	.data.rel.ro.local,"aw"
	.align 32
	.type	ops, @object
	.size	ops, 80
ops:
	.quad	80
	.quad	hit
	.quad	ref
	.quad	roots
	.quad	block_freed
	.byte	1
	.zero	39
	.local	words
	.comm	words,64,32
	.local	visited
	.comm	visited,4,4
	.local	freed
	.comm	freed,4,4
	.local	hits
	.comm	hits,4,4
	.local	next
	.comm	next,8,8
	.local	heap
	.comm	heap,8,8
	.ident	"GCC: (Debian 12.2.0-14+deb12u1) 12.2.0"
	.section	.note.GNU-stack,"",@progbits
