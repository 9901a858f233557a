; Mutual recursion and tail calls in every tail position.
(define (even1? n) (if (= n 0) #t (odd1? (- n 1))))
(define (odd1? n) (if (= n 0) #f (even1? (- n 1))))
(write (even1? 1000000)) (newline)

(define (machine tape)
  (define (start l n) (if (null? l) (list 'start n) (if (= (car l) 0) (start (cdr l) (+ n 1)) (one (cdr l) n))))
  (define (one l n) (cond ((null? l) (list 'one n)) ((= (car l) 0) (two (cdr l) n)) (else (one (cdr l) (+ n 2)))))
  (define (two l n) (and #t (or #f (if (null? l) (list 'two n) (begin 1 (let ((x (car l))) (when #t (start (cdr l) (+ n x)))))))))
  (start tape 0))
(define tape (let loop ((i 0) (l '())) (if (= i 300000) l (loop (+ i 1) (cons (modulo (quotient (* i i) 7) 2) l)))))
(write (machine tape)) (newline)

(define (loop-apply f n) (if (= n 0) 'done (apply f (list f (- n 1)))))
(write (loop-apply loop-apply 300000)) (newline)

(define (cps-sum n k) (if (= n 0) (k 0) (cps-sum (- n 1) (lambda (v) (k (+ v n))))))
(write (cps-sum 100000 (lambda (v) v))) (newline)

(define (ack m n)
  (cond ((= m 0) (+ n 1)) ((= n 0) (ack (- m 1) 1)) (else (ack (- m 1) (ack m (- n 1))))))
(write (ack 2 300)) (newline)
(define (deep n) (if (= n 0) 0 (+ 1 (deep (- n 1)))))
(write (deep 9000)) (newline)
