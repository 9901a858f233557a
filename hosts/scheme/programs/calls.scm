; Every way to pass arguments, in a tail position and not: more than a frame has slots for, lists of
; any length, to procedures with and without a rest list, to built-ins, escapes and what is no longer
; the procedure it was. Each is reached anew by `eval`, so that its code is not there yet.
(define (show x) (write x) (newline))
(define (numbers from to) (if (< from to) (cons from (numbers (+ from 1) to)) '()))
(define (fresh l) (map (lambda (n) (list n (+ n 0.5))) l))
(define (sum l) (if (null? l) 0 (+ (caar l) (sum (cdr l)))))

; Calls of n fresh objects: what comes out is what went in.
(define (spelled head n) (cons head (map (lambda (k) `(list ,k ,(+ k 0.5))) (numbers 0 n))))
(define (right? l n) (equal? l (fresh (numbers 0 n))))
(define shapes
  '((lambda x x)
    (lambda (a . x) (cons a x))
    (lambda (a b c . x) (cons a (cons b (cons c x))))
    (lambda x (let ((y x)) (vector->list (list->vector y))))
    list
    (lambda x (apply list x))
    (lambda (a . x) (let loop ((x x) (out (list a))) (if (null? x) (reverse out) (loop (cdr x) (cons (car x) out)))))
    (lambda x (call-with-values (lambda () (apply values x)) list))
    (lambda x (call/cc (lambda (k) (apply k (list x)))))))
(define frames
  (list (lambda (call) call)
        (lambda (call) `((lambda () ,call)))
        (lambda (call) `(let ((v ,call)) v))
        (lambda (call) `(if (null? '()) (let ((a 1) (b 2)) ,call) 0))
        (lambda (call) `(dynamic-wind (lambda () 1) (lambda () ,call) (lambda () 2)))
        (lambda (call) `(guard (e (#t e)) (raise ,call)))
        (lambda (call) `(with-exception-handler (lambda (e) e) (lambda () ,call)))
        (lambda (call) `((make-parameter ,call)))
        (lambda (call) `(begin (define (named) ,call) (named)))))
(define (all-right? shape n)
  (let loop ((frames frames))
    (or (null? frames)
        (and (right? (eval ((car frames) (spelled shape n))) n)
             (right? (eval ((car frames) `(apply ,shape ,(spelled 'list n)))) n)
             (loop (cdr frames))))))
(define (lengths shape)
  (map (lambda (n) (all-right? shape n)) '(4 5 8 15 16 17 40)))
(for-each (lambda (shape) (show (lengths shape))) shapes)

; A chain of tail calls whose arguments grow and shrink, rest lists to rest lists.
(define (grow n . x) (if (= n 0) x (apply grow (- n 1) (list n (+ n 0.5)) x)))
(define (shrink . x) (if (< (length x) 4) x (apply shrink (cdr x))))
(show (sum (grow 60)))
(show (apply shrink (apply grow 40 (fresh (numbers 0 40)))))
(define (swap a b c d e f . x) (if (null? x) (list a b c d e f) (swap2 f a b c d e (cdr x))))
(define (swap2 a b c d e f x) (apply swap (list b) (list c) (list d) (list e) (list f) (list a) x))
(show (equal? (swap 1 2 3 4 5 6 7) '((1) (2) (3) (4) (5) (6))))

; The callee of a warm tail call becomes another: longer, shorter, a built-in, an escape.
(define (target . x) x)
(define (user a b c) (target (list a) (list b) (list c) (list a b) (list b c) (list a b c)))
(define (uses k) (if (= k 0) (user 1 2 3) (begin (user 1 2 3) (uses (- k 1)))))
(define expected (uses 20))
(define (same?) (equal? (uses 5) expected))
(define (become! procedure) (set! target procedure) (same?))
(show (list (become! (lambda (a . x) (cons a x)))
            (become! list)
            (become! (lambda (a b c d e f) (list a b c d e f)))
            (become! (lambda (a b c d . x) (let* ((t (list c d)) (u (cons b t))) (cons a (append u x)))))
            (become! list)))
(show (call/cc (lambda (k) (set! target (lambda x (k (length x)))) (uses 3))))

; In threads that allocate beside each other.
(define (churn n) (if (= n 0) 'done (begin (fresh (numbers 0 50)) (churn (- n 1)))))
(define (checks n)
  (if (= n 0) #t
      (and (right? (eval (spelled '(lambda x x) (+ 3 (modulo n 20)))) (+ 3 (modulo n 20)))
           (right? (eval `(apply (lambda (a . x) (cons a x)) ,(spelled 'list (+ 1 (modulo n 50)))))
                   (+ 1 (modulo n 50)))
           (checks (- n 1)))))
(define (beside n)
  (if (= n 0) '()
      (let ((thread (spawn (lambda () (if (= 0 (modulo n 2)) (churn 300) (checks 100))))))
        (let ((rest (beside (- n 1)))) (cons (thread-join thread) rest)))))
(show (beside 4))
