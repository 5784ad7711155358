from cc.base cimport Control
from cc.signals cimport AckSignal, LossSignal

cdef class Nscc(Control):
    cdef public double cwnd
    cdef public double average_delay
    cdef double _segment
    cdef double _most
    cdef double _base_rtt
    cdef double _target
    cdef double _clear_delay
    cdef double _alpha
    cdef double _fair
    cdef double _fast_scale
    cdef double _eta
    cdef double _gamma
    cdef double _least_factor
    cdef double _adapt_delay
    cdef double _adapt_below
    cdef double _adjust_bytes
    cdef double _increase
    cdef double _received
    cdef double _clear
    cdef double _achieved
    cdef double _stale
    cdef bint _fast
    cdef bint _lost
    cdef bint _open
    cdef long long _period_end
    cdef long long _adjusted_at
    cdef long long _cut_at
    cdef long long _sampled_at
    cpdef object _restart(self, long long now)
    cpdef object _grow(self, double size, double delay)
    cpdef object _cut(self, long long now)
    cpdef object _fulfil(self, long long now, bint limited)
    cpdef bint _adapt(self, long long now, double delay, long long in_flight)
    cpdef object _begin(self, long long now)
    cpdef object _set(self, double cwnd)
