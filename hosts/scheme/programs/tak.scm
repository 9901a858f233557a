; The Takeuchi function, three ways of passing the numbers: fixnums, lists, continuations.
(define (tak x y z)
  (if (not (< y x))
      z
      (tak (tak (- x 1) y z) (tak (- y 1) z x) (tak (- z 1) x y))))

(define (listn n) (if (= n 0) '() (cons n (listn (- n 1)))))
(define (shorter? x y)
  (and (not (null? y)) (or (null? x) (shorter? (cdr x) (cdr y)))))
(define (mas x y z)
  (if (not (shorter? y x))
      z
      (mas (mas (cdr x) y z) (mas (cdr y) z x) (mas (cdr z) x y))))

(define (cpstak x y z)
  (define (tak x y z k)
    (if (not (< y x))
        (k z)
        (tak (- x 1) y z
             (lambda (v1)
               (tak (- y 1) z x
                    (lambda (v2)
                      (tak (- z 1) x y
                           (lambda (v3) (tak v1 v2 v3 k)))))))))
  (tak x y z (lambda (a) a)))

(write (tak 18 12 6)) (newline)
(write (tak 24 16 8)) (newline)
(write (length (mas (listn 18) (listn 12) (listn 6)))) (newline)
(write (cpstak 20 13 6)) (newline)
