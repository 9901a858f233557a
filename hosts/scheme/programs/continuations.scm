; call/cc calls its receiver in tail position: chains of it take no stack, and each escape leads where it was made.
(define (loop n) (if (= n 0) 'done (call/cc (lambda (k) (loop (- n 1))))))
(write (loop 100000)) (newline)

; The continuation of each is that of the first.
(define (first n k) (if (= n 0) (k 'first) (call/cc (lambda (j) (first (- n 1) k)))))
(define (newest n k) (if (= n 0) (k 'newest) (call/cc (lambda (j) (newest (- n 1) j)))))
(write (list (call/cc (lambda (k) (first 1000 k))) (newest 1000 #f))) (newline)

; Two that take turns, by apply, in a variable, with more arguments than a frame has slots.
(define (ping n) (if (= n 0) 'ping (apply call/cc (list (lambda (k) (pong (- n 1)))))))
(define pong-by call/ec)
(define (pong n) (if (= n 0) 'pong (pong-by (lambda k (apply spread (- n 1) (car k) (iota 30))))))
(define (spread n k . rest) (if (= (length rest) 30) (call/cc (lambda (k) (ping n))) (k 'wrong)))
(write (list (ping 3001) (pong 3001))) (newline)

; What waits is gone on with; what is left by an escape is not.
(define (sum n) (if (= n 0) 0 (+ n (call/cc (lambda (k) (if (= n 5) (k 100) (sum (- n 1))))))))
(write (list (sum 4) (sum 10) (+ 1 (call/cc (lambda (a) (call/cc (lambda (b) (+ 10 (call/cc (lambda (c) (b 1)))))))))))
(newline)
(define (tail x) (call/cc (lambda (k) (if x (k (+ x 1)) 0))))
(write (list (call/cc (lambda (k) (+ 100 (tail 1)))) (call/cc (lambda (k) (let ((l (map tail '(1 2 #f)))) (cons 0 l))))))
(newline)
(write (call/cc (lambda (k) (call/cc call/cc) 7)))
(write (procedure? (call/cc (lambda (k) (call/cc call/cc)))))
(write (procedure? (call/cc (lambda (k) (call/cc k)))))
(newline)

; Handlers and winders are those of the place where each was called.
(define log '())
(define (note x) (set! log (cons x log)))
(define (wound n k)
  (if (= n 0) (k 'out)
      (call/cc (lambda (j) (dynamic-wind (lambda () (note n)) (lambda () (wound (- n 1) (or k j))) (lambda () (note (- n))))))))
(write (list (wound 3 #f) (reverse log))) (newline)
(define (handled n) (if (= n 0) (raise 'low) (call/cc (lambda (k) (guard (e ((eq? e n) 'caught)) (handled (- n 1)))))))
(write (guard (e (#t (list e))) (call/cc (lambda (k) (handled 5))))) (newline)

; One that was left is an error: by a return, by an error, by another escape, in a fiber that ended.
(define kept '())
(define (keep k) (set! kept (cons k kept)))
(define (kind k) (guard (e (#t (error-object-message e))) (+ 1 (k 5))))
(call/cc (lambda (k) (keep k) (call/cc (lambda (j) (keep j) 1))))
(guard (e (#t #f)) (+ 1 (call/cc (lambda (k) (keep k) (+ 1 (error "past it"))))))
(call/cc (lambda (out) (+ 1 (call/cc (lambda (k) (keep k) (+ 1 (out 1)))))))
(define fiber (make-fiber (lambda () (call/cc (lambda (k) (keep k) (fiber-yield 1) (error "ends"))))))
(fiber-resume fiber)
(guard (e (#t #f)) (fiber-resume fiber))
(define (deep n) (if (= n 0) (map kind kept) (let ((l (deep (- n 1)))) (reverse (reverse l)))))
(for-each (lambda (text) (write text) (newline)) (deep 20))
