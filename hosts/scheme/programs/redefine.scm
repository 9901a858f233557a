; Global procedures that change while loops call them.
(define (f x) (+ x 1))
(define (g x) (f (f x)))
(define (run n) (let loop ((i 0) (sum 0)) (if (= i n) sum (loop (+ i 1) (+ sum (g i))))))
(write (run 1000)) (newline)
(define (f x) (* x 2))
(write (run 1000)) (newline)

(define (switcher i)
  (if (= (modulo i 100) 0)
      (if (= (modulo i 200) 0)
          (set! f (lambda (x) (- x 1)))
          (set! f (lambda (x) (+ x 3)))))
  (f i))
(write (let loop ((i 0) (sum 0)) (if (= i 1000000) sum (loop (+ i 1) (+ sum (switcher i)))))) (newline)

(define (self n)
  (set! self (lambda (n) (list 'new n)))
  (list 'old n (self (+ n 1))))
(write (self 1)) (newline)
(write (self 2)) (newline)

(define (evaluated n)
  (let loop ((i 0) (sum 0))
    (if (= i n) sum
        (begin
          (eval (list 'define '(h) i) (interaction-environment))
          (loop (+ i 1) (+ sum (eval '(h) (interaction-environment))))))))
(write (evaluated 8000)) (newline)

(define (deep n)
  (if (= n 50) (set! deep (lambda (n) 1000)))
  (if (= n 0) 0 (+ 1 (deep (- n 1)))))
(write (deep 100)) (newline)
(write (deep 100)) (newline)
