; Loops on flonums: sums, a Mandelbrot set, numerical integration, Newton's method.
(define (sumfp n)
  (let loop ((i n) (sum 0.)) (if (< i 0.) sum (loop (- i 1.) (+ i sum)))))

(define (mandelbrot-row y width limit)
  (let loop ((x 0) (count 0))
    (if (= x width)
        count
        (let ((cr (- (/ (* 3. x) width) 2.)) (ci (- (/ (* 2. y) width) 1.)))
          (loop (+ x 1)
                (+ count
                   (let iterate ((zr 0.) (zi 0.) (n 0))
                     (cond ((= n limit) 1)
                           ((> (+ (* zr zr) (* zi zi)) 4.) 0)
                           (else (iterate (+ (- (* zr zr) (* zi zi)) cr)
                                          (+ (* 2. zr zi) ci)
                                          (+ n 1)))))))))))
(define (mandelbrot size limit)
  (let loop ((y 0) (count 0))
    (if (= y size) count (loop (+ y 1) (+ count (mandelbrot-row y size limit))))))

(define (integrate f a b n)
  (let ((h (/ (- b a) n)))
    (let loop ((i 0) (sum 0.))
      (if (= i n) (* sum h) (loop (+ i 1) (+ sum (f (+ a (* h (+ i .5))))))))))
(define (newton f df x) (let ((next (- x (/ (f x) (df x)))))
                          (if (< (abs (- next x)) 1e-12) next (newton f df next))))

(write (sumfp 1000000.)) (newline)
(write (mandelbrot 90 150)) (newline)
(write (/ (round (* 1e6 (integrate (lambda (x) (* x x)) 0. 3. 20000))) 1e6)) (newline)
(write (/ (round (* 1e9 (newton (lambda (x) (- (* x x) 2.)) (lambda (x) (* 2. x)) 1.))) 1e9)) (newline)
(write (list 1.5 -0.25 100.0 1e21 1e22 1.5e-7 .001 123456.789 (/ 1. 3.) (sqrt 2.) (exact 3.)))
(newline)
