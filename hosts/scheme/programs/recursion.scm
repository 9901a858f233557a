; Recursions whose leaves need no call and tail calls of oneself that are loops, while what they rest on changes: another
; procedure, other types, numbers that no longer fit, an empty stack behind a deep one.
(define (show x) (write x) (newline))
(define (fib n) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2)))))
(show (fib 15))
(define old fib)
(set! fib (lambda (n) 100))
(show (list (old 1) (old 2) (old 15)))

; Defined anew by itself, in the middle.
(define (half n)
  (if (= n 3)
      (begin (set! half (lambda (n) 1000)) 3)
      (if (< n 2) n (+ (half (- n 1)) (half (- n 2))))))
(show (half 8))

(define (count n sum) (if (= n 0) sum (count (- n 1) (+ sum 1))))
(define counted count)
(show (counted 1000 0))
(set! count list)
(show (counted 1000 0))
(set! count (lambda (a . b) (cons a b)))
(show (counted 1000 0))

; A leaf that is a constant, an argument, an empty list; a test of two arguments.
(define (ones n) (if (= n 0) 1 (* 1 (ones (- n 1)))))
(define (size l) (if (null? l) 0 (+ 1 (size (cdr l)))))
(define (copy l) (if (null? l) '() (cons (car l) (copy (cdr l)))))
(define (tak x y z) (if (not (< y x)) z (tak (tak (- x 1) y z) (tak (- y 1) z x) (tak (- z 1) x y))))
(show (list (ones 50) (size '(1 2 3)) (copy '(1 2 3)) (tak 12 8 4)))

; Other types in the same place.
(define (sum n) (if (< n 2) 0.5 (+ (sum (- n 1)) (sum (- n 2)))))
(show (sum 12))
(show (tak 6.5 3.5 1.5))
(define (twice n x) (if (= n 0) x (twice (- n 1) (+ x x))))
(show (list (twice 61 1) (= (twice 80 1) (expt 2. 80)) (twice 3 0.25)))
(define (down n) (if (< n -1) n (down (- n 1))))
(show (down 1000))

; As deep as it goes, then again.
(define (deep n) (if (= n 0) 0 (+ 1 (deep (- n 1)))))
(define (endless n) (+ 1 (endless (+ n 1))))
(show (deep 20000))
(show (guard (e (#t 'too-deep)) (endless 0)))
(show (deep 20000))

; More arguments than the frame of the caller has free.
(define (turn n a b c d e f g h) (if (= n 0) (list a b c d e f g h) (turn (- n 1) h a b c d e f g)))
(show (turn 11 1 2 3 4 5 6 7 8))
