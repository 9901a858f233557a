; Doubly recursive Fibonacci on fixnums.
(define (fib n)
  (if (< n 2)
      n
      (+ (fib (- n 1)) (fib (- n 2)))))

(write (fib 32))
(newline)
