; Records: a bank, and a simulation over a vector of bodies.
(define-record-type account (make-account owner balance) account?
  (owner account-owner)
  (balance account-balance set-account-balance!))
(define-record-type body (make-body x v) body? (x body-x set-body-x!) (v body-v set-body-v!))

(define accounts
  (vector (make-account 'ann 1000) (make-account 'bob 500) (make-account 'cyd 0)))
(define (transfer! from to amount)
  (if (< (account-balance from) amount)
      #f
      (begin
        (set-account-balance! from (- (account-balance from) amount))
        (set-account-balance! to (+ (account-balance to) amount))
        #t)))
(define (run n)
  (let loop ((i 0) (done 0))
    (if (= i n) done
        (loop (+ i 1)
              (if (transfer! (vector-ref accounts (modulo i 3))
                             (vector-ref accounts (modulo (+ i 1 (quotient i 7)) 3))
                             (modulo (* i 13) 97))
                  (+ done 1)
                  done)))))
(write (run 2000000)) (newline)
(write (map (lambda (a) (cons (account-owner a) (account-balance a))) (vector->list accounts)))
(newline)
(write (map account? (list (vector-ref accounts 0) (make-body 1 2) 'ann 5))) (newline)

(define bodies (let ((v (make-vector 10)))
                 (do ((i 0 (+ i 1))) ((= i 10) v) (vector-set! v i (make-body (* i 10) (- i 5))))))
(define (step! b)
  (set-body-x! b (+ (body-x b) (body-v b)))
  (if (or (< (body-x b) 0) (> (body-x b) 100)) (set-body-v! b (- (body-v b)))))
(do ((i 0 (+ i 1))) ((= i 50000)) (vector-for-each step! bodies))
(write (map body-x (vector->list bodies))) (newline)
