; Primes by a sieve in a vector, and by filtering a list.
(define (sieve n)
  (let ((composite (make-vector (+ n 1) #f)))
    (let loop ((i 2) (count 0))
      (cond ((> i n) count)
            ((vector-ref composite i) (loop (+ i 1) count))
            (else
             (do ((j (* i i) (+ j i))) ((> j n)) (vector-set! composite j #t))
             (loop (+ i 1) (+ count 1)))))))

(define (interval low high) (if (> low high) '() (cons low (interval (+ low 1) high))))
(define (keep-indivisible n l)
  (cond ((null? l) '())
        ((= (remainder (car l) n) 0) (keep-indivisible n (cdr l)))
        (else (cons (car l) (keep-indivisible n (cdr l))))))
(define (primes l)
  (if (null? l) '() (cons (car l) (primes (keep-indivisible (car l) (cdr l))))))

(write (sieve 1000000)) (newline)
(write (primes (interval 2 200))) (newline)
(write (length (primes (interval 2 5000)))) (newline)
